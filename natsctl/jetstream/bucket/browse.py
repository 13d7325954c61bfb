"""Reads and changes any bucket, declared or not, for the commands that people use."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, TypeVar

from natsctl.errors import NotFoundError, WatchBrokenError
from natsctl.jetstream.bucket.bucket import NANOSECONDS, Bucket, Message
from natsctl.jetstream.bucket.codec import TTL, written_ns
from natsctl.jetstream.bucket.feed import Feed, FeedLink
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.bucket.watch import KvWatch
from natsctl.jetstream.connection.client import RawMessage
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.connection.headers import parse_headers
from natsctl.model.keys import KEY_RULE, check_key
from natsctl.model.kinds import KvKind
from natsctl.model.store import (
    Applied,
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

T = TypeVar("T")

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
        self._ttls: dict[str, str] = {}
        self._dated = KvWatch(bucket, keys, feed=self._feed)

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
        return await repeated(self._listing)

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

    def ttl(self, key: str) -> str:
        """Return the time to live of the key's newest value; empty if it has none."""
        return self._ttls.get(key, "")

    async def write(self, key: str, value: bytes, *, revision: int, ttl: str = "") -> int:
        """Write the value, with a time to live if *ttl* is not empty; return its revision.

        Raises `ConflictError` unless *revision* is the newest; 0 is for a key that does not exist.
        """
        headers = {TTL: ttl} if ttl else {}
        return await self._publish(check_key(key), value, revision, headers)

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

    def _feed(self, prefix: str, link: FeedLink) -> Feed:
        return _DatedFeed(prefix, link, self._times, self._ttls)


def _do_nothing() -> None:
    """Do nothing before another attempt."""


async def repeated(
    read: Callable[[], Awaitable[T]], restart: Callable[[], None] = _do_nothing
) -> T:
    """Return the result of *read*; if its watch breaks, call *restart* and read again.

    Raises `WatchBrokenError` if `ATTEMPTS` watches break, and each other `StoreError` of *read*.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await read()
        except WatchBrokenError:
            restart()
    return await read()


def _first_names(illegal: Collection[str]) -> str:
    first = ", ".join(itertools.islice(illegal, LOGGED_MAX))
    return f"{first[:NAME_MAX]}{', …' * (len(illegal) > LOGGED_MAX)}"


class _DatedFeed(Feed):
    """A feed that also records when each key was written, and the time to live of its value."""

    def __init__(
        self,
        prefix: str,
        link: FeedLink,
        times: dict[str, int],
        ttls: dict[str, str],
    ) -> None:
        super().__init__(prefix, link)
        self._prefix_length = len(prefix)
        self._times = times
        self._ttls = ttls

    def receive(self, messages: Sequence[RawMessage]) -> None:
        """See `Feed.receive`."""
        for subject, reply, _, headers, _ in messages:
            if reply.startswith(b"$JS.ACK."):
                key = subject[self._prefix_length :].decode(errors="replace")
                self._times[key] = written_ns(reply)
                ttl = parse_headers(headers).get(TTL) if headers else None
                if ttl:
                    self._ttls[key] = ttl
                else:
                    self._ttls.pop(key, None)
        super().receive(messages)


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
