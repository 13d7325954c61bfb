"""Where leases are kept: a bucket in which everything expires that is not written again."""

import math
from typing import Any

from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.kv.bucket import Bucket
from natsctl.kv.codec import TTL
from natsctl.kv.connection import Connection
from natsctl.kv.store import KvStore
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Stored

LEASES: KvKind[bytes] = kv(bytes, bucket="natsctl_leases", history=1, replicas=None)
EXPIRE = 2.0  # of a lease's time to live: long after others may have taken it


class LeaseStore(KvStore):
    """The bucket of leases; a `Store`.

    Whoever waits for a lease decides by his own clock when to take it. That the server forgets it
    later still keeps nothing behind of those who died and whom nobody followed. Every write says
    so anew: a value, and the marker of a deletion too.

    Args:
        connection: to NATS.
        ttl_s: of the leases; the server forgets them after twice that.
        kind: what a part of the bucket holds, where it is not the bytes of all of it.
    """

    def __init__(self, connection: Connection, *, ttl_s: float, kind: KvKind[Any] = LEASES) -> None:
        super().__init__(Bucket(connection, LEASES.bucket), kind)
        self._expire_s = max(1, math.ceil(EXPIRE * ttl_s))  # a server counts whole seconds

    async def get(self, key: str) -> Stored:
        """See `Store.get`; nobody has a lease where there is no bucket."""
        try:
            return await super().get(key)
        except StoreMissingError as error:
            raise NotFoundError(str(error)) from error

    async def living(self, pattern: str) -> list[str]:
        """Return which of the keys that match have a value, in order; none where no bucket is."""
        try:
            newest = await self._bucket.newest(await self._bucket.keys(pattern))
        except StoreMissingError:
            return []
        return sorted(message.key for message in newest if message.marker is None)

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`; makes the bucket where it is missing."""
        try:
            return await super().create(key, value)
        except StoreMissingError:
            await self._bucket.ensure(LEASES)
            return await super().create(key, value)

    async def _publish(self, key: str, value: bytes, revision: int, headers: dict[str, str]) -> int:
        expiring = {**headers, TTL: f"{self._expire_s}s"}
        return await super()._publish(key, value, revision, expiring)
