"""Reads and changes any bucket, declared or not, for the commands that people use."""

import itertools
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from typing import Any

from natsctl.errors import NotFoundError, WatchBrokenError
from natsctl.jetstream.bucket.bucket import NANOSECONDS, Bucket, Message
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.bucket.watch import KvWatch
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.keys import KEY_RULE, check_key
from natsctl.model.kinds import KvKind
from natsctl.model.store import (
    Applied,
    Batch,
    Deleted,
    IllegalKey,
    Listed,
    Listing,
    Stored,
    WatchEvent,
)
from natsctl.model.write_guard import UNGUARDED, WriteGuard
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

ATTEMPTS = 5  # watches that a listing tries
LOGGED_MAX = 3  # illegal keys in a log line
NAME_MAX = 200  # characters of their names


class BucketStore(KvStore):
    """A store for a bucket without a declaration, which also records when values were written.

    Does not create the bucket or compare its options.

    Args:
        bucket: the bucket.
        value_type: the type of values for writes: `bytes`, or `Object` if they have metadata.
        keys: the pattern of the keys to read.
        guard: permits or forbids each write.
    """

    def __init__(
        self,
        bucket: Bucket,
        value_type: type = bytes,
        *,
        keys: str = ">",
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        kind: KvKind[Any] = KvKind(value_type, bucket=bucket.name, keys=keys)
        kind.name = bucket.name
        super().__init__(bucket, kind, guard=guard)
        self._times: dict[str, int] = {}
        self._dated = KvWatch(bucket, keys.split(), times=self._times)

    async def find(self, key: str) -> Message:
        """Return the newest value of *key*; raises `NotFoundError`."""
        message = await self._bucket.last(check_key(key))
        if message.marker:
            raise NotFoundError(
                f"{self._bucket.name} has no {key}: it was deleted", deleted_at=message.revision
            )
        return message

    async def listing(self) -> list[Message]:
        """Return the newest value of every key, sorted by key."""
        for _ in range(ATTEMPTS - 1):
            with suppress(WatchBrokenError):
                return await self._listing()
        return await self._listing()

    def watch(
        self, shown: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch`."""
        return self._dated(shown)

    def read(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Watch to read the bucket once: a connection that does not return is a `StoreError`."""
        return self._dated(forever=False)

    def dated(self, stored: Stored) -> Message:
        """Return *stored* as a message, with the time at which a watch saw it written, if any."""
        ns = self._times.get(stored.key)
        created = "" if ns is None else datetime.fromtimestamp(ns / NANOSECONDS, UTC).isoformat()
        return Message(stored.key, stored.revision, stored.value, marker=None, created=created)

    async def _listing(self) -> list[Message]:
        values: dict[str, Stored] = {}
        illegal: dict[str, None] = {}
        async with self.read() as events:
            async for event in events:
                match event:
                    case IllegalKey(key, _, exists):
                        if exists:
                            illegal[key] = None
                    case Applied(stored):
                        values[stored.key] = stored
                    case Batch(states):
                        values.update((stored.key, stored) for stored in states)
                    case Deleted(key):
                        values.pop(key, None)
                    case Listed():
                        break
                    case Listing():
                        values.clear()
                        illegal.clear()
        if illegal:
            log.warning(
                "skipped illegal keys",
                bucket=self._bucket.name,
                count=len(illegal),
                keys=_first_names(illegal),
                hint=KEY_RULE,
            )
        return [self.dated(values[key]) for key in sorted(values)]


def _first_names(illegal: Collection[str]) -> str:
    first = ", ".join(itertools.islice(illegal, LOGGED_MAX))
    return f"{first[:NAME_MAX]}{', …' * (len(illegal) > LOGGED_MAX)}"


async def bucket_names(connection: Connection) -> list[str]:
    """Return the names of all buckets that this user may list, sorted."""
    streams: list[str] = []
    total = 1
    while len(streams) < total:
        answer = await connection.api("STREAM.NAMES", {"offset": len(streams)})
        page = answer.get("streams") or []
        if not page:
            break
        streams.extend(page)
        total = answer.get("total", 0)
    return sorted(name.removeprefix("KV_") for name in streams if name.startswith("KV_"))
