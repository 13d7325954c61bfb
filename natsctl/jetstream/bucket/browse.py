"""Any bucket as it is, declared or not: for people who look into it and change it by hand."""

import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any

from natsctl.errors import NotFoundError, WatchBrokenError
from natsctl.jetstream.bucket.bucket import NANOSECONDS, Bucket, Message
from natsctl.jetstream.bucket.codec import TTL, written_ns
from natsctl.jetstream.bucket.feed import Feed
from natsctl.jetstream.bucket.store import KvStore
from natsctl.jetstream.bucket.watch import KvWatch
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

log = logging.getLogger(__name__)

ATTEMPTS = 5
SHOWN_MAX = 3  # illegal keys that are named
NAME_MAX = 200  # characters of their names


class BucketStore(KvStore):
    """What a bucket holds, and since when. The bucket is neither made nor compared with anything.

    Args:
        bucket: which one.
        of: what its values are, to whoever writes: `bytes`, or `Object` where they have metadata.
        keys: only keys that match this pattern.
    """

    def __init__(self, bucket: Bucket, of: type = bytes, *, keys: str = ">") -> None:
        kind: KvKind[Any] = KvKind(of, bucket=bucket.name, keys=keys)
        kind.name = bucket.name  # what people know it by
        super().__init__(bucket, kind)
        self._times: dict[str, int] = {}
        self._ttls: dict[str, str] = {}
        self._dated = KvWatch(bucket, keys, feed=self._feed)

    async def find(self, key: str) -> Message:
        """Return what the bucket has under *key*; raises `NotFoundError`."""
        message = await self._bucket.last(check_key(key))
        if message.marker:
            raise NotFoundError(
                f"{self._bucket.name} has no {key}: it was deleted", deleted_at=message.revision
            )
        return message

    async def listing(self) -> list[Message]:
        """Return everything that the bucket holds now, in the order of keys."""
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._listing()
            except WatchBrokenError:
                continue
        return await self._listing()

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch`."""
        return self._dated()

    def dated(self, stored: Stored) -> Message:
        """Return what a watch of this store has told, with when it was written, if told."""
        ns = self._times.get(stored.key)
        created = "" if ns is None else datetime.fromtimestamp(ns / NANOSECONDS, UTC).isoformat()
        return Message(stored.key, stored.revision, stored.value, marker=None, created=created)

    def ttl(self, key: str) -> str:
        """Return the time to live that the key's value has of its own; empty if it has none."""
        return self._ttls.get(key, "")

    async def write(self, key: str, value: bytes, *, revision: int, ttl: str = "") -> int:
        """Store the value, with a time to live if *ttl* says one; return its revision.

        Raises `ConflictError` unless *revision* is the newest; 0 means that the key has none.
        """
        headers = {TTL: ttl} if ttl else {}
        return await self._publish(check_key(key), value, revision, headers)

    async def _listing(self) -> list[Message]:
        found: dict[str, Stored] = {}
        illegal: dict[str, None] = {}
        async with self.watch() as events:
            async for event in events:
                match event:
                    case IllegalKey(key, _, exists):
                        if exists:
                            illegal[key] = None
                    case Applied(stored):
                        found[stored.key] = stored
                    case Deleted(key):
                        found.pop(key, None)
                    case Listed():
                        break
                    case Listing():
                        found.clear()
                        illegal.clear()
        if illegal:
            log.warning("%s of bucket %s skipped: %s", _named(illegal), self._bucket.name, KEY_RULE)
        return [self.dated(found[key]) for key in sorted(found)]

    def _feed(self, prefix: str, answer: Callable[[str], Awaitable[None]]) -> Feed:
        return _DatedFeed(prefix, answer, self._times, self._ttls)


def _named(illegal: Collection[str]) -> str:
    first = ", ".join(itertools.islice(illegal, SHOWN_MAX))
    if len(illegal) == 1:
        return f"illegal key {first[:NAME_MAX]}"
    return f"{len(illegal)} illegal keys ({first[:NAME_MAX]}{', …' * (len(illegal) > SHOWN_MAX)})"


class _DatedFeed(Feed):
    """Notes when each key was written last, and the time to live of its value."""

    def __init__(
        self,
        prefix: str,
        answer: Callable[[str], Awaitable[None]],
        times: dict[str, int],
        ttls: dict[str, str],
    ) -> None:
        super().__init__(prefix, answer)
        self._key_at = len(prefix)
        self._times = times
        self._ttls = ttls

    def receive(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """See `Feed.receive`."""
        if reply.startswith(b"$JS.ACK."):
            key = subject[self._key_at :].decode(errors="replace")
            self._times[key] = written_ns(reply)
            ttl = parse_headers(headers).get(TTL) if headers else None
            if ttl:
                self._ttls[key] = ttl
            else:
                self._ttls.pop(key, None)
        super().receive(subject, reply, data, headers)


async def bucket_names(connection: Connection) -> list[str]:
    """Return the names of all buckets that this user may see, in order."""
    found: list[str] = []
    total = 1
    while len(found) < total:
        answer = await connection.api("STREAM.NAMES", {"offset": len(found)})
        page = answer.get("streams") or []
        if not page:
            break
        found.extend(page)
        total = answer.get("total", 0)
    return sorted(name.removeprefix("KV_") for name in found if name.startswith("KV_"))
