"""A bucket whose messages are bytes in memory: everything behind the socket, without a server."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from natsctl import Kind, KvKind
from natsctl.jetstream.bucket import StreamState
from natsctl.jetstream.feed import Feed
from natsctl.jetstream.reader import OneTimeClient
from natsctl.jetstream.watch import KvWatch
from natsctl.testing import MemoryStore, MemoryStores

SID = b"7"
FIRST = 10_000_000  # the revision of the first message


def message(prefix: str, stream: str, key: str, value: bytes, number: int) -> bytes:
    """Return a message as the server sends it to a push consumer; the first has number 1."""
    reply = f"$JS.ACK.{stream}.natsctl.1.{FIRST - 1 + number}.{number}.1790000000000000000.0"
    head = f"MSG {prefix}{key} {SID.decode()} {reply} {len(value)}\r\n"
    return head.encode() + value + b"\r\n"


class OfflineStores(MemoryStores):
    """Stores in memory, except that the *bucket* is watched by way of `receive`.

    The bucket lists *count* keys.
    """

    def __init__(self, bucket: str, count: int) -> None:
        super().__init__()
        self.prefix = f"$KV.{bucket}."
        self.stream = f"KV_{bucket}"
        self.name = bucket
        self.connection = self.watched_over = self
        self.began = asyncio.Event()
        self._client = OneTimeClient()
        self._sent = 0
        self._listed = FIRST - 1 + count

    async def open(self, kind: Kind[Any]) -> MemoryStore:
        store = await super().open(kind)
        if isinstance(kind, KvKind) and kind.bucket == self.name:
            watch: Any = KvWatch(self)  # type: ignore[arg-type]  # all that a watch asks a bucket
            watch._consumers = _Consumers(self)  # noqa: SLF001 - the socket begins here
            store.watch = watch  # type: ignore[method-assign]
        return store

    async def receive(self, messages: Iterable[tuple[str, bytes]]) -> None:
        """Let messages arrive, each with its key and its value."""
        await self.arrive(self.chunks(messages))

    async def arrive(self, chunks: Iterable[bytes]) -> None:
        """Let bytes arrive, a read of the socket each; other tasks run in between."""
        for chunk in chunks:
            await self._client._ps.parse(chunk)  # noqa: SLF001 - no socket
            for _ in range(3):
                await asyncio.sleep(0)

    def chunks(self, messages: Iterable[tuple[str, bytes]], size: int = 32_768) -> list[bytes]:
        """Return the bytes of messages, so many for each read of the socket."""
        data = b"".join(self._message(key, value) for key, value in messages)
        return [data[first : first + size] for first in range(0, len(data), size)]

    def _message(self, key: str, value: bytes) -> bytes:
        self._sent += 1
        return message(self.prefix, self.stream, key, value, self._sent)

    # ---- what a watch asks of its bucket, its connection and its consumers

    async def wait_connected(self, *, forever: bool) -> None:
        pass

    async def state(self) -> StreamState:
        keys = self._listed - FIRST + 1
        return StreamState(
            "then", max(self._listed, FIRST - 1 + self._sent), keys, prefix=self.prefix
        )

    async def newest_revision(self, _patterns: Sequence[str], *, seen: int = 0) -> int:
        return max(self._listed, FIRST - 1 + self._sent)

    @asynccontextmanager
    async def opened(self, *, start: int = 0) -> AsyncIterator[Feed]:
        feed = Feed(self.prefix, self._client)
        feed._timer.cancel()  # noqa: SLF001 - nobody sends heartbeats
        self._client._parser.receivers[SID] = feed.receive, feed.parser(SID)  # noqa: SLF001 - no socket
        self.began.set()
        try:
            yield feed
        finally:
            feed.close()


class _Consumers:
    """The consumers of a watch, all of which are the messages that are received."""

    def __init__(self, stores: OfflineStores) -> None:
        self.open = stores.opened

    async def delete_abandoned(self) -> None:
        pass
