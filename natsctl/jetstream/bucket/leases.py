"""Where leases are kept: a bucket in which everything expires that is not written again."""

import math
from datetime import datetime
from typing import Any

from natsctl.errors import NotFoundError, StoreMissingError
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.bucket.codec import TTL
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Stored

LEASES: KvKind[bytes] = kv(bytes, bucket="natsctl_leases", history=1, replicas=None)
EXPIRE = 2.0  # of a lease's time to live: long after others may have taken it


class LeaseStore(KvStore):
    """The bucket of leases; a `Store`.

    A process that waits for a lease decides by its own clock when to take it. The server forgets
    the lease later than that, so that nothing stays of processes that have no successor. Every
    write sets that time again, a deletion too.

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

    async def living(self, pattern: str) -> list[Stored]:
        """Return the objects whose keys match, in the order of keys; none without the bucket."""
        try:
            newest = await self._bucket.newest(await self._bucket.keys(pattern))
        except StoreMissingError:
            return []
        living = [message for message in newest if message.marker is None]
        found = (Stored(message.key, message.revision, message.value) for message in living)
        return sorted(found, key=lambda stored: stored.key)

    async def quiet_s(self) -> float:
        """Return for how many seconds nothing was written here, by the server's clock.

        Returns 0 if the bucket does not exist, and never more than the bucket's age: after it was
        made again, the server does not know of earlier writes.
        """
        bucket = self._bucket
        try:
            info = await bucket.connection.api(f"STREAM.INFO.{bucket.stream}")
        except StoreMissingError:
            return 0.0
        now, created, written = info.get("ts"), info["created"], info["state"]["last_ts"]
        if now is None:
            return 0.0
        since = max(datetime.fromisoformat(created), datetime.fromisoformat(written))
        return (datetime.fromisoformat(now) - since).total_seconds()

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
