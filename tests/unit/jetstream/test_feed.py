"""A feed delivers the messages of a stream in order, and notices when they stop."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from nats.errors import ConnectionClosedError, FlushTimeoutError
from nats.errors import Error as NatsError

from natsctl.errors import WatchBrokenError
from natsctl.jetstream.bucket import LAST_CONSUMER
from natsctl.jetstream.feed import HEARTBEAT_S, SILENCE, Feed, hedged
from natsctl.jetstream.reader import OneTimeClient, RawMessage
from natsctl.jetstream.watch import KvWatch
from natsctl.model.store import Deleted, IllegalKey, Listed
from natsctl.testing import VirtualTimeLoop
from tests.support.stores.bucket_server import BucketServer

# ---- a feed returns every message of its consumer in order, and fails if one is missing

INBOX = b"_INBOX.x"


class Connection:
    """A connection that records the published subjects, and fails if it is closed."""

    def __init__(self) -> None:
        self.traffic = 0
        self.published: list[str] = []
        self.closed = False
        self.late_flushes = 0  # flushes that take too long before one is answered

    async def publish(self, subject: str) -> None:
        if self.closed:
            raise ConnectionClosedError
        self.published.append(subject)

    async def flush(self) -> None:
        if self.closed:
            raise ConnectionClosedError
        if self.late_flushes:
            self.late_flushes -= 1
            raise FlushTimeoutError


def feed_on(connection: Connection) -> Feed:
    return Feed("$KV.b.", cast("OneTimeClient", connection))


@pytest.fixture
def connection() -> Connection:
    return Connection()


@pytest.fixture
async def feed(connection: Connection) -> AsyncIterator[Feed]:
    feed = feed_on(connection)
    yield feed
    feed.close()


def message(number: int, key: bytes = b"shop", data: bytes = b"{}", **headers: str) -> RawMessage:
    """Return the message with this number of the consumer, at a revision that is ten higher."""
    return (
        b"$KV.b." + key,
        b"$JS.ACK.KV_b.c.1.%d.%d.1.0" % (10 + number, number),
        data,
        block(**headers) if headers else None,
    )


def block(status: str = "", **headers: str) -> bytes:
    lines = [f"NATS/1.0 {status}".rstrip()]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join((*lines, "", "")).encode()


def control(status: str, reply: bytes = b"") -> RawMessage:
    """Return a message of the server about the consumer."""
    return (INBOX, reply, b"", block(status))


def heartbeat(number: int, **headers: str) -> RawMessage:
    """Return a heartbeat after the server has sent so many messages."""
    status = block("100 Idle Heartbeat", **{LAST_CONSUMER: str(number), **headers})
    return (INBOX, b"", b"", status)


async def failure(feed: Feed) -> str:
    """Return why the feed fails."""
    with pytest.raises(WatchBrokenError) as raised:
        await exhausted(feed)
    return str(raised.value)


async def exhausted(feed: Feed) -> None:
    while await feed.take():
        pass


async def test_a_closed_feed_is_freed(connection: Connection) -> None:
    feed = feed_on(connection)
    freed = weakref.ref(feed)
    feed.close()
    del feed
    gc.collect()
    assert freed() is None


async def test_of_two_attempts_that_end_at_once_the_successful_one_counts() -> None:
    ended, attempts = asyncio.Event(), list[int]()

    async def attempt() -> str:
        attempts.append(len(attempts))
        number = attempts[-1]
        if number == 30:
            ended.set()
        await ended.wait()
        if number != 1:
            raise ConnectionClosedError
        return "answer"

    assert await hedged(attempt, every_s=1.0) == "answer"


class TestMessages:
    async def test_a_message_after_a_cancelled_take_is_taken_by_the_next(self, feed: Feed) -> None:
        taking = asyncio.create_task(feed.take())
        await asyncio.sleep(0)
        taking.cancel()
        feed.receive([message(1)])
        await asyncio.wait((taking,))
        assert len(await feed.take()) == 1

    @pytest.mark.parametrize(("operation", "purged"), [("DEL", False), ("PURGE", True)])
    async def test_a_delete_marker_is_a_deletion(
        self, feed: Feed, operation: str, *, purged: bool
    ) -> None:
        feed.receive([message(1, b"shop", b"", KV_Operation=operation)])
        assert await feed.take() == [Deleted("shop", 11, purged)]

    async def test_an_illegal_key_is_reported_with_its_existence(self, feed: Feed) -> None:
        feed.receive([message(1, b"\xff"), message(2, b"\xff", b"", KV_Operation="DEL")])
        illegal = await feed.take()
        assert [type(item) for item in illegal] == [IllegalKey, IllegalKey]
        assert [item.exists for item in illegal if isinstance(item, IllegalKey)] == [True, False]


class TestGaps:
    async def test_a_missing_message_fails_the_feed(self, feed: Feed) -> None:
        feed.receive([message(1), message(4)])
        assert await failure(feed) == "messages 2 to 3 were lost"

    async def test_a_repeated_message_fails_the_feed(self, feed: Feed) -> None:
        feed.receive([message(1), message(1)])
        assert "were lost" in await failure(feed)

    @pytest.mark.parametrize("sent", [0, 2])
    async def test_a_heartbeat_after_another_message_fails_the_feed(
        self, feed: Feed, sent: int
    ) -> None:
        feed.receive([message(1), heartbeat(sent)])
        assert await failure(feed) == f"the server has sent {sent} messages, 1 arrived"

    async def test_a_malformed_message_fails_the_feed(self, feed: Feed) -> None:
        feed.receive([(b"$KV.b.shop", b"no position", b"{}", None)])
        assert "is malformed" in await failure(feed)

    async def test_the_end_of_the_consumer_fails_the_feed(self, feed: Feed) -> None:
        feed.receive([control("409 Consumer Deleted")])
        assert await failure(feed) == "the server ended the consumer: 409 Consumer Deleted"


class TestFlowControl:
    """The server sends more once the messages before its request are processed."""

    async def test_a_request_is_answered_by_the_take_after_its_messages(
        self, feed: Feed, connection: Connection
    ) -> None:
        feed.receive([message(1), control("100 FlowControl Request", b"answer")])
        await feed.take()
        assert connection.published == []
        feed.wake()
        feed.receive([message(2)])
        await feed.take()
        assert connection.published == ["answer"]

    async def test_an_answer_that_cannot_be_sent_fails_the_feed(
        self, feed: Feed, connection: Connection
    ) -> None:
        feed.receive([message(1), control("100 FlowControl Request", b"answer")])
        await feed.take()
        connection.closed = True
        assert (await failure(feed)).startswith("cannot answer flow control")


class TestArrival:
    async def test_a_long_backlog_is_waited_for(self, feed: Feed, connection: Connection) -> None:
        connection.late_flushes = 3
        await feed.arrived()
        assert connection.late_flushes == 0


# ---- a watch creates a consumer that ends with it, and breaks if the consumer may be lost


@pytest.fixture
async def server() -> BucketServer:
    return BucketServer()


async def follow(watch: KvWatch, listed: asyncio.Event | None = None) -> None:
    async with watch() as events:
        async for event in events:
            if listed is not None and isinstance(event, Listed):
                listed.set()


async def test_a_consumer_that_sends_nothing_breaks_a_watch(server: BucketServer) -> None:
    server.silent = True
    with pytest.raises(WatchBrokenError, match="the consumer sent nothing"):
        await follow(KvWatch(server.bucket))
    assert asyncio.get_running_loop().time() <= (SILENCE + 1) * HEARTBEAT_S


async def test_a_failed_subscription_breaks_a_watch(server: BucketServer) -> None:
    server.failure = NatsError("no more subscriptions")
    with pytest.raises(WatchBrokenError, match=r"cannot subscribe to .*: no more subscriptions"):
        await follow(KvWatch(server.bucket))


async def test_a_watch_that_broke_deletes_its_consumer_before_the_next_list(
    server: BucketServer,
) -> None:
    watch = KvWatch(server.bucket)
    server.silent = True
    with pytest.raises(WatchBrokenError):
        await follow(watch)
    server.failure = NatsError("no connection")
    with pytest.raises(WatchBrokenError, match="cannot delete abandoned consumers: no connection"):
        await follow(watch)


# ---- a silent consumer breaks its watch; a blocked event loop and a backlog do not

IDLE = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 0\r\n\r\n"
HEARTBEAT = [(b"inbox", b"", b"", IDLE)]


class SilentConnection:
    """A connection without traffic, on which data of other subscriptions can arrive."""

    def __init__(self) -> None:
        self.traffic = 0
        self.flushes = 0
        self.late_flushes = 0  # flushes that take too long before one is answered
        self.waiting = 0  # flushes that wait for the answer
        self._answer = asyncio.Event()

    async def publish(self, _subject: str) -> None:
        """Do nothing."""

    async def flush(self) -> None:
        """Wait for the answer of the server, which comes after the backlog."""
        self.flushes += 1
        if self.late_flushes:
            self.late_flushes -= 1
            raise FlushTimeoutError
        self.waiting += 1
        try:
            await self._answer.wait()
        finally:
            self.waiting -= 1

    def answer(self) -> None:
        """Answer the flush, because the backlog has arrived."""
        self._answer.set()

    async def receive(self, *, seconds: float) -> None:
        """Receive data of other subscriptions."""
        for _ in range(int(seconds / HEARTBEAT_S)):
            self.traffic += 1
            await asyncio.sleep(HEARTBEAT_S)


def silent_feed(connection: SilentConnection) -> Feed:
    return Feed("$KV.b.", cast("OneTimeClient", connection))


@asynccontextmanager
async def busy(connection: SilentConnection) -> AsyncIterator[None]:
    """Receive data of other subscriptions all the time."""
    receiving = asyncio.create_task(connection.receive(seconds=1000))
    try:
        yield
    finally:
        receiving.cancel()


async def receive_heartbeats(feed: Feed, beats: int) -> None:
    for _ in range(beats):
        await asyncio.sleep(HEARTBEAT_S)
        feed.receive(HEARTBEAT)


async def silence(feed: Feed) -> float:
    """Return the seconds until the feed fails because of silence."""
    started = asyncio.get_running_loop().time()
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await only_silence(feed)
    return asyncio.get_running_loop().time() - started


async def only_silence(feed: Feed) -> None:
    while True:
        assert await feed.take() == []


async def test_silence_fails_a_feed() -> None:
    feed = silent_feed(SilentConnection())
    await receive_heartbeats(feed, 3)
    started = asyncio.get_running_loop().time()
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await only_silence(feed)
    silent_s = asyncio.get_running_loop().time() - started
    assert (SILENCE - 1) * HEARTBEAT_S <= silent_s <= SILENCE * HEARTBEAT_S
    feed.close()


async def test_a_blocked_event_loop_is_not_silence() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    feed = silent_feed(SilentConnection())
    for _ in range(5):
        loop.jump(60)
        await receive_heartbeats(feed, 1)
    assert await feed.take() == []
    feed.close()


async def test_a_heartbeat_behind_a_backlog_of_other_messages_is_not_silence() -> None:
    connection = SilentConnection()
    feed = silent_feed(connection)
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=30)
    feed.receive(HEARTBEAT)
    connection.answer()
    await receive_heartbeats(feed, 5)
    assert await feed.take() == []
    assert connection.flushes == 1
    feed.close()


@pytest.mark.parametrize("late_flushes", [0, 1])
async def test_a_silent_consumer_fails_although_data_of_others_never_ends(
    late_flushes: int,
) -> None:
    connection = SilentConnection()
    connection.late_flushes = late_flushes
    connection.answer()
    feed = silent_feed(connection)
    async with busy(connection):
        await receive_heartbeats(feed, 1)
        assert await silence(feed) <= (SILENCE + 2) * HEARTBEAT_S
    feed.close()


async def test_a_silent_connection_fails_a_feed_that_waits_for_a_backlog() -> None:
    connection = SilentConnection()
    feed = silent_feed(connection)
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=10)
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await only_silence(feed)
    feed.close()
