"""The store of leases: a bucket whose values expire unless they are renewed."""

import math
from datetime import datetime
from typing import Any

from natsctl.errors import NotFoundError, StoreMissingError, StoreTimeoutError
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.bucket.codec import TTL
from natsctl.jetstream.bucket.consumer import names
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.kinds import KvKind, kv
from natsctl.model.store import Stored

LEASES: KvKind[bytes] = kv(bytes, bucket="natsctl_leases", history=1, replicas=None)
LASTING = ".record"  # the end of the keys whose values don't expire
EXPIRE = 2.0  # the server deletes a lease after this many times its time to live


class LeaseStore(KvStore):
    """The bucket of leases; a `Store`.

    Its watches share the connection of the requests, because the bucket is small and urgent.

    A process decides by its own clock when a lease of another process has expired. The server
    deletes the lease later, to remove a lease that no process acquires. Every write,
    including a deletion, restarts that time.

    Args:
        connection: the connection to NATS.
        ttl_s: the time to live of a lease; the server deletes it after twice that time.
        kind: a part of the bucket, or by default all of it as bytes.
    """

    def __init__(self, connection: Connection, *, ttl_s: float, kind: KvKind[Any] = LEASES) -> None:
        super().__init__(Bucket(connection, LEASES.bucket, bulk=False), kind)
        self._ensured = False  # whether the bucket of another domain exists
        self._expire_s = max(1, math.ceil(EXPIRE * ttl_s))  # the server's resolution is one second

    async def get(self, key: str) -> Stored:
        """See `Store.get`; raises `NotFoundError` also if the bucket does not exist."""
        try:
            return await super().get(key)
        except StoreMissingError as error:
            raise NotFoundError(str(error)) from error

    async def living(self, pattern: str) -> list[Stored]:
        """Return the objects whose keys match, sorted by key; none if the bucket does not exist."""
        try:
            newest = await self._bucket.newest(await names(self._bucket, pattern))
        except StoreMissingError:
            return []
        living = [message for message in newest if message.marker is None]
        objects = (Stored(message.key, message.revision, message.value) for message in living)
        return sorted(objects, key=lambda stored: stored.key)

    async def quiet_s(self) -> float:
        """Return the seconds since the last write to the bucket, by the server's clock.

        Returns 0 if the bucket does not exist, and at most the bucket's age, because a recreated
        bucket has no record of earlier writes.
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
        """See `Store.create`; creates the bucket if it does not exist."""
        if self._bucket.connection.publish_prefix and not self._ensured:
            # nobody answers a write to a missing bucket of another domain
            await self._bucket.ensure(LEASES)
            self._ensured = True
        try:
            return await super().create(key, value)
        except StoreTimeoutError:
            self._ensured = False
            raise
        except StoreMissingError:
            await self._bucket.ensure(LEASES)
            return await super().create(key, value)

    async def _publish(self, key: str, value: bytes, revision: int, headers: dict[str, str]) -> int:
        if not key.endswith(LASTING):
            headers = {**headers, TTL: f"{self._expire_s}s"}
        return await super()._publish(key, value, revision, headers)
