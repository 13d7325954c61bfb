"""A NATS server in memory that has one bucket, and whose consumers deliver messages."""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

from nats.errors import Error as NatsError

from natsctl import Kind, KvKind, NatsOptions
from natsctl.errors import NotFoundError, StoreError
from natsctl.jetstream.bucket import Bucket, StreamState
from natsctl.jetstream.feed import HEARTBEAT_S, Feed
from natsctl.jetstream.reader import OneTimeClient, Receive
from natsctl.jetstream.watch import KvWatch
from natsctl.testing import MemoryStore, MemoryStores

BUCKET = "b"
PREFIX = f"$KV.{BUCKET}."
DELETED = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"


class _Message(NamedTuple):
    revision: int
    value: bytes
    headers: bytes | None
    stored_at: int  # the number of writes in any stream


class _Subscription:
    def __init__(self, unsubscribe: Callable[[], object]) -> None:
        self._unsubscribe = unsubscribe

    async def unsubscribe(self) -> None:
        self._unsubscribe()


class BucketServer:
    """A connection to a server that has the bucket `BUCKET` with one revision per key.

    A consumer delivers a message every `lag_s`, always the oldest one that is still stored. If
    `stopped`, consumers send nothing but heartbeats. An answer about the stream takes `slow_s`, and
    has the state at half of that time. `created` is the identity of the stream, and `config` its
    configuration. The stream has `others` subjects that are no keys. `requests` has the endpoints
    of all requests, `listings` the patterns of those that list keys, `consumers` the existing
    consumers by name, and `configs` the configurations of all consumers. Consumers send nothing at
    all if `silent`. The client raises its `failure` if there is one. `looks` counts the looks of
    feeds at the traffic.
    """

    def __init__(self) -> None:
        self.options = NatsOptions()
        self.client = self.watches = self
        self.looks = 0
        self.created = "2026-01-01"
        self.config: dict[str, object] = {"deny_delete": True}
        self.last_seq = self.writes = 0
        self.others = 0
        self.lag_s = self.slow_s = 0.0
        self.stopped = self.silent = False
        self.failure: NatsError | None = None
        self.callbacks: list[Callable[[StoreError], None]] = []
        self.connected = asyncio.Event()
        self.connected.set()
        self.requests: list[str] = []
        self.listings: list[str] = []
        self.consumers: dict[str, asyncio.Task[None]] = {}
        self.configs: list[dict[str, Any]] = []
        self._messages: dict[str, _Message] = {}
        self._receivers: dict[str, Receive] = {}
        self._after: list[tuple[str, Callable[[], object]]] = []
        self._written = asyncio.Event()
        self._inboxes = (f"_INBOX.{number}" for number in itertools.count(1))

    @property
    def bucket(self) -> Bucket:
        return Bucket(self, BUCKET)  # type: ignore[arg-type]  # has the methods that a bucket uses

    # ---- what other clients and administrators do

    def put(self, *keys: str, value: bytes = b"{}") -> None:
        for key in keys:
            self._write(key, value, None)

    def delete(self, key: str) -> None:
        self._write(key, b"", DELETED)

    def purge(self, *keys: str) -> None:
        """Remove these keys without a trace, as an administrator can."""
        for key in keys:
            del self._messages[key]

    def recreate(self) -> None:
        self.created, self.last_seq = f"{self.created}+", 0
        self._messages.clear()

    def after(self, endpoint: str, action: Callable[[], object]) -> None:
        """Call *action* after the server has processed the next request to this endpoint."""
        self._after.append((endpoint, action))

    def _write(self, key: str, value: bytes, headers: bytes | None) -> None:
        self.last_seq += 1
        self.writes += 1
        self._messages[key] = _Message(self.last_seq, value, headers, self.writes)
        self._written.set()

    # ---- the connection

    async def wait_connected(self, *, forever: bool = True) -> None:
        await self.connected.wait()

    @property
    def traffic(self) -> int:
        self.looks += 1
        return 0

    @contextmanager
    def on_lost(self, callback: Callable[[StoreError], None]) -> Iterator[None]:
        """Call *callback* when the connection is lost."""
        self.callbacks.append(callback)
        try:
            yield
        finally:
            self.callbacks.remove(callback)

    def new_inbox(self) -> str:
        return next(self._inboxes)

    async def subscribe_raw(
        self, subject: str, receive: Receive, *, parser: object = None
    ) -> _Subscription:
        if self.failure is not None:
            raise self.failure
        self._receivers[subject] = receive
        return _Subscription(lambda: self._receivers.pop(subject))

    async def publish(self, subject: str) -> None:
        if self.failure is not None:
            raise self.failure
        self.requests.append(subject)

    async def flush(self) -> None:
        """Return at once."""

    async def api(
        self,
        endpoint: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        self.requests.append(endpoint)
        slow_s = self.slow_s if endpoint.startswith("STREAM.INFO") else 0.0
        await asyncio.sleep(slow_s / 2)
        try:
            return self._answer(endpoint, dict(body or {}))
        finally:
            for hook in self._after:
                if endpoint.startswith(hook[0]):
                    self._after.remove(hook)
                    hook[1]()
                    break
            await asyncio.sleep(slow_s / 2)

    def _answer(self, endpoint: str, body: dict[str, Any]) -> dict[str, Any]:
        match endpoint.split(".")[:2]:
            case ["STREAM", "INFO"]:
                return self._info(body.get("subjects_filter"), body.get("offset", 0))
            case ["STREAM", "MSG"]:
                return self._message(body)
            case ["CONSUMER", "CREATE"]:
                config = body["config"]
                self.configs.append(config)
                start = config.get("opt_start_seq", 0)
                consume = self._consume(config["deliver_subject"], config["filter_subject"], start)
                self.consumers[config["name"]] = asyncio.create_task(consume)
            case ["CONSUMER", "DELETE"]:
                self.consumers.pop(endpoint.rpartition(".")[2]).cancel()
        return {}

    def _info(self, pattern: str | None, offset: int) -> dict[str, Any]:
        state: dict[str, Any] = {
            "last_seq": self.last_seq,
            "num_subjects": len(self._messages) + self.others,
            "messages": len(self._messages),
        }
        config = {"name": "KV_b", **self.config}
        info: dict[str, Any] = {"created": self.created, "config": config, "state": state}
        if pattern is not None:
            keys = self._matching(pattern)
            if not offset:
                self.listings.append(pattern)
                state["subjects"] = dict.fromkeys(map(PREFIX.__add__, keys), 1)
            info |= {"total": len(keys), "limit": 100_000}
        return info

    def _message(self, query: dict[str, Any]) -> dict[str, Any]:
        """Return the newest message of a pattern, or the one at a revision."""
        keys = self._matching(query.get("last_by_subj", f"{PREFIX}>"))
        if "seq" in query:
            keys = [key for key in keys if self._messages[key].revision == query["seq"]]
        if not keys:
            raise NotFoundError(str(query))
        key = max(keys, key=lambda key: self._messages[key].revision)
        revision, value, headers, _ = self._messages[key]
        message = {"subject": PREFIX + key, "seq": revision, "data": base64.b64encode(value)}
        return {"message": message | {"hdrs": base64.b64encode(headers or b"")}}

    def _matching(self, pattern: str) -> list[str]:
        start, wildcard, _ = pattern.removeprefix(PREFIX).partition(">")
        return [
            key for key in self._messages if key == start or (wildcard and key.startswith(start))
        ]

    async def _consume(self, inbox: str, pattern: str, start: int) -> None:
        """Deliver each stored message that is newer than the last one, or send heartbeats."""
        revision = max(0, start - 1)
        for number in itertools.count(1):
            while not (newer := self._newer(pattern, revision)):
                await self._idle(inbox, number - 1)
            await asyncio.sleep(self.lag_s)
            newer = self._newer(pattern, revision) or newer
            key, (revision, value, headers, stored_at) = newer[0]
            reply = f"$JS.ACK.KV_{BUCKET}.c.1.{revision}.{number}.{stored_at}.0"
            self._receivers[inbox]([((PREFIX + key).encode(), reply.encode(), value, headers)])

    def _newer(self, pattern: str, revision: int) -> list[tuple[str, _Message]]:
        if self.stopped:
            return []
        messages = [(key, self._messages[key]) for key in self._matching(pattern)]
        newer = [item for item in messages if item[1].revision > revision]
        return sorted(newer, key=lambda item: item[1].revision)

    async def _idle(self, inbox: str, delivered: int) -> None:
        self._written.clear()
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._written.wait()
        except TimeoutError:
            if self.silent:
                return
            block = f"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: {delivered}\r\n\r\n"
            self._receivers[inbox]([(inbox.encode(), b"", b"", block.encode())])


# ---- a bucket whose messages are bytes in memory: everything behind the socket, without a server

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
        self._socket = asyncio.StreamReader()
        self._client._parser.listen(self._socket)  # noqa: SLF001 - no socket
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
        await self.arrive(self.chunks(messages))

    async def arrive(self, chunks: Iterable[bytes]) -> None:
        """Let bytes arrive, a read of the socket each; other tasks run in between."""
        for chunk in chunks:
            self._socket.feed_data(chunk)
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
