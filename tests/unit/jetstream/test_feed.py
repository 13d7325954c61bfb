"""A feed delivers the messages of a stream in order, and notices when they stop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from nats.errors import ConnectionClosedError, FlushTimeoutError
from nats.errors import Error as NatsError

from natsctl.errors import StoreError, WatchBrokenError
from natsctl.jetstream.bucket import LAST_CONSUMER, STALLED
from natsctl.jetstream.feed import BEGIN, HEARTBEAT_S, SILENCE, Feed
from natsctl.jetstream.reader import OneTimeClient, RawMessage
from natsctl.jetstream.watch import KvWatch
from natsctl.model.store import Deleted, IllegalKey, Listed, Stored
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


class TestMessages:
    async def test_a_value_is_an_object_at_its_revision(self, feed: Feed) -> None:
        feed.receive([message(1, b"shop", b"one")])
        assert await feed.take() == [Stored("shop", 11, b"one")]

    async def test_messages_keep_their_order(self, feed: Feed) -> None:
        feed.receive([message(1, b"a"), message(2, b"b")])
        feed.receive([message(3, b"c")])
        assert [item.key for item in await feed.take()] == ["a", "b", "c"]

    async def test_each_message_is_taken_once(self, feed: Feed) -> None:
        feed.receive([message(1, b"a")])
        await feed.take()
        feed.receive([message(2, b"b")])
        assert [item.key for item in await feed.take()] == ["b"]

    async def test_a_take_waits_for_a_message(self, feed: Feed) -> None:
        taking = asyncio.create_task(feed.take())
        await asyncio.sleep(0)
        feed.receive([message(1)])
        assert len(await taking) == 1
        assert asyncio.get_running_loop().time() == 0

    async def test_a_message_after_a_cancelled_take_is_taken_by_the_next(self, feed: Feed) -> None:
        taking = asyncio.create_task(feed.take())
        await asyncio.sleep(0)
        taking.cancel()
        feed.receive([message(1)])
        await asyncio.wait((taking,))
        assert len(await feed.take()) == 1

    async def test_a_take_does_not_wait_if_there_is_a_message(self, feed: Feed) -> None:
        feed.receive([message(1)])
        await feed.take()
        assert asyncio.get_running_loop().time() == 0

    async def test_a_position_may_be_in_the_reply_subject(self, feed: Feed) -> None:
        reply = b"$JS.ACK.KV_b.consumer.1.42.1.1700000000000000000.0"
        feed.receive([(b"$KV.b.shop", reply, b"{}", None)])
        assert await feed.take() == [Stored("shop", 42, b"{}")]

    async def test_a_value_may_have_headers(self, feed: Feed) -> None:
        feed.receive([message(1, b"shop", b"{}", X="y")])
        assert await feed.take() == [Stored("shop", 11, b"{}")]

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

    async def test_a_feed_can_be_woken_without_a_message(self, feed: Feed) -> None:
        taking = asyncio.create_task(feed.take())
        await asyncio.sleep(0)
        feed.wake()
        assert await taking == []

    async def test_a_closed_feed_has_no_messages(self, feed: Feed) -> None:
        feed.receive([message(1)])
        feed.close()
        feed.wake()
        taking = asyncio.create_task(feed.take())
        await asyncio.sleep(0)
        feed.wake()
        assert await taking == []


class TestGaps:
    async def test_a_missing_message_fails_the_feed(self, feed: Feed) -> None:
        feed.receive([message(1), message(4)])
        assert await failure(feed) == "messages 2 to 3 were lost"

    async def test_a_missing_first_message_fails_the_feed(self, feed: Feed) -> None:
        feed.receive([message(2)])
        assert await failure(feed) == "messages 1 to 1 were lost"

    async def test_a_repeated_message_fails_the_feed(self, feed: Feed) -> None:
        feed.receive([message(1), message(1)])
        assert "were lost" in await failure(feed)

    async def test_a_heartbeat_after_the_last_message_is_no_gap(self, feed: Feed) -> None:
        feed.receive([message(1), heartbeat(1)])
        assert len(await feed.take()) == 1

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

    async def test_the_first_failure_is_raised_at_every_take(self, feed: Feed) -> None:
        feed.fail("one")
        feed.fail("two")
        assert [await failure(feed), await failure(feed)] == ["one", "one"]

    async def test_a_failure_is_raised_without_a_wait(self, feed: Feed) -> None:
        feed.fail("one")
        await failure(feed)
        assert asyncio.get_running_loop().time() == 0

    async def test_a_failure_ends_a_take_that_waits(self, feed: Feed) -> None:
        taking = asyncio.create_task(feed.take())
        await asyncio.sleep(0)
        feed.fail("one")
        with pytest.raises(WatchBrokenError, match="one"):
            await taking


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

    async def test_a_heartbeat_may_have_a_request(self, feed: Feed, connection: Connection) -> None:
        feed.receive([message(1), heartbeat(1, **{STALLED: "answer"})])
        await feed.take()
        feed.receive([message(2)])
        await feed.take()
        assert connection.published == ["answer"]

    async def test_a_heartbeat_without_a_request_is_not_answered(
        self, feed: Feed, connection: Connection
    ) -> None:
        feed.receive([message(1), heartbeat(1)])
        await feed.take()
        feed.wake()
        await asyncio.wait((asyncio.create_task(feed.take()),), timeout=0.1)
        assert connection.published == []

    async def test_a_request_is_answered_once(self, feed: Feed, connection: Connection) -> None:
        feed.receive([message(1), control("100 FlowControl Request", b"answer")])
        for number in (2, 3, 4):
            await feed.take()
            feed.receive([message(number)])
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

    async def test_a_lost_connection_ends_the_wait(
        self, feed: Feed, connection: Connection
    ) -> None:
        connection.closed = True
        await feed.arrived()


# ---- a watch creates a consumer that ends with it, and breaks if the consumer may be lost


@pytest.fixture
async def server() -> BucketServer:
    return BucketServer()


async def follow(watch: KvWatch, listed: asyncio.Event | None = None) -> None:
    async with watch() as events:
        async for event in events:
            if listed is not None and isinstance(event, Listed):
                listed.set()


async def listed_once(server: BucketServer) -> None:
    """Open a watch, and close it after the list."""
    listed = asyncio.Event()
    watching = asyncio.create_task(follow(KvWatch(server.bucket), listed))
    await listed.wait()
    watching.cancel()
    await asyncio.wait((watching,))


async def test_a_consumer_needs_no_acknowledgement_and_ends_without_its_watch(
    server: BucketServer,
) -> None:
    await listed_once(server)
    (config,) = server.configs
    assert (config["ack_policy"], config["mem_storage"], config["num_replicas"]) == (
        "none",
        True,
        1,
    )
    assert config["inactive_threshold"] == 10_000_000_000


async def test_a_consumer_sends_heartbeats_and_waits_for_a_slow_watch(
    server: BucketServer,
) -> None:
    await listed_once(server)
    (config,) = server.configs
    assert (config["idle_heartbeat"], config["flow_control"]) == (500_000_000, True)


async def test_a_lost_connection_breaks_a_watch(server: BucketServer) -> None:
    listed = asyncio.Event()
    watching = asyncio.create_task(follow(KvWatch(server.bucket), listed))
    await listed.wait()
    for callback in server.callbacks:
        callback(StoreError("the connection is lost"))
    with pytest.raises(WatchBrokenError, match="the connection is lost"):
        await watching


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


async def test_a_watch_that_ended_does_not_look_at_its_connection(server: BucketServer) -> None:
    await listed_once(server)
    looks = server.looks
    await asyncio.sleep(10 * HEARTBEAT_S)
    assert (server.looks, server.callbacks) == (looks, [])


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


async def test_heartbeats_keep_a_feed_alive() -> None:
    feed = silent_feed(SilentConnection())
    await receive_heartbeats(feed, 20)
    assert await feed.take() == []
    feed.close()


async def test_silence_fails_a_feed() -> None:
    feed = silent_feed(SilentConnection())
    await receive_heartbeats(feed, 3)
    started = asyncio.get_running_loop().time()
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await only_silence(feed)
    silent_s = asyncio.get_running_loop().time() - started
    assert (SILENCE - 1) * HEARTBEAT_S <= silent_s <= SILENCE * HEARTBEAT_S
    feed.close()


async def test_a_feed_waits_longer_for_the_first_heartbeat() -> None:
    feed = silent_feed(SilentConnection())
    with pytest.raises(WatchBrokenError, match=f"nothing for {BEGIN * HEARTBEAT_S:g} s"):
        await only_silence(feed)
    feed.close()


async def test_a_feed_expects_heartbeats_once_its_consumer_exists() -> None:
    feed = silent_feed(SilentConnection())
    await asyncio.sleep(HEARTBEAT_S * (BEGIN - 1))
    feed.begin()
    with pytest.raises(WatchBrokenError, match=f"nothing for {SILENCE * HEARTBEAT_S:g} s"):
        await only_silence(feed)
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


async def test_a_silent_consumer_fails_when_the_backlog_of_others_has_arrived() -> None:
    connection = SilentConnection()
    feed = silent_feed(connection)
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=10)
    connection.answer()
    await connection.receive(seconds=2 * HEARTBEAT_S)
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await only_silence(feed)
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


async def test_a_closed_feed_waits_for_no_backlog() -> None:
    connection = SilentConnection()
    feed = silent_feed(connection)
    async with busy(connection):
        await receive_heartbeats(feed, 1)
        await asyncio.sleep((SILENCE + 1) * HEARTBEAT_S)
        feed.close()
        await asyncio.sleep(0)
    assert (connection.flushes, connection.waiting) == (1, 0)


async def test_a_closed_feed_counts_no_heartbeats() -> None:
    connection = SilentConnection()
    feed = silent_feed(connection)
    feed.close()
    async with busy(connection):
        await asyncio.sleep(2 * BEGIN * HEARTBEAT_S)
    assert connection.flushes == 0


async def test_a_silent_connection_fails_a_feed_that_waits_for_a_backlog() -> None:
    connection = SilentConnection()
    feed = silent_feed(connection)
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=10)
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await only_silence(feed)
    feed.close()


async def test_the_backlog_of_a_feed_arrives_before_the_answer_to_a_flush() -> None:
    connection = SilentConnection()
    feed = silent_feed(connection)
    arrival = asyncio.create_task(feed.arrived())
    await receive_heartbeats(feed, 20)
    assert not arrival.done()
    connection.answer()
    await arrival
    feed.close()
