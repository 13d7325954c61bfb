"""A feed delivers the messages of a stream in order, and notices when they stop."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import cast

import pytest
from nats.errors import ConnectionClosedError, FlushTimeoutError
from nats.errors import Error as NatsError

from natsctl.errors import WatchBrokenError
from natsctl.jetstream.bucket import LAST_CONSUMER
from natsctl.jetstream.feed import HEARTBEAT_S, SILENCE, Feed, hedged
from natsctl.jetstream.reader import OneTimeClient, RawMessage
from natsctl.jetstream.watch import KvWatch
from natsctl.model.store import Deleted, IllegalKey
from natsctl.testing import VirtualTimeLoop
from tests.support.stores.bucket_server import BucketServer

INBOX = b"_INBOX.x"


class Connection:
    """A connection that records the published subjects, and fails if it is closed."""

    def __init__(self) -> None:
        self.traffic = 0
        self.published: list[str] = []
        self.closed = False
        self.flushes = 0
        self.late_flushes = 0  # flushes that take too long before one is answered
        self.answers = asyncio.Event()  # flushes; the answer comes after the backlog
        self.answers.set()

    async def publish(self, subject: str) -> None:
        if self.closed:
            raise ConnectionClosedError
        self.published.append(subject)

    async def flush(self) -> None:
        if self.closed:
            raise ConnectionClosedError
        self.flushes += 1
        if self.late_flushes:
            self.late_flushes -= 1
            raise FlushTimeoutError
        await self.answers.wait()

    async def receive(self, *, seconds: float) -> None:
        """Receive data of other subscriptions."""
        for _ in range(int(seconds / HEARTBEAT_S)):
            self.traffic += 1
            await asyncio.sleep(HEARTBEAT_S)


def feed_on(connection: Connection) -> Feed:
    return Feed("$KV.b.", cast("OneTimeClient", connection))


@pytest.fixture
async def connection() -> Connection:
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


def heartbeat(number: int) -> RawMessage:
    """Return a heartbeat after the server has sent so many messages."""
    return (INBOX, b"", b"", block("100 Idle Heartbeat", **{LAST_CONSUMER: str(number)}))


async def failure(feed: Feed) -> tuple[str, float]:
    """Return why the feed fails, and after how many seconds."""
    started = asyncio.get_running_loop().time()
    with pytest.raises(WatchBrokenError) as raised:
        await exhausted(feed)
    return str(raised.value), asyncio.get_running_loop().time() - started


async def exhausted(feed: Feed) -> None:
    while True:
        await feed.take()


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

    async def test_delete_markers_and_illegal_keys_are_reported(self, feed: Feed) -> None:
        feed.receive(
            [
                message(1, b"shop", b"", KV_Operation="DEL"),
                message(2, b"shop", b"", KV_Operation="PURGE"),
                message(3, b"\xff"),
                message(4, b"\xff", b"", KV_Operation="DEL"),
            ]
        )
        deleted, purged, *illegal = await feed.take()
        assert [deleted, purged] == [Deleted("shop", 11, False), Deleted("shop", 12, True)]
        assert [item.exists for item in illegal if isinstance(item, IllegalKey)] == [True, False]

    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            ([message(1), message(4)], "messages 2 to 3 were lost"),
            ([message(1), message(1)], "were lost"),
            ([message(1), heartbeat(0)], "the server has sent 0 messages, 1 arrived"),
            ([message(1), heartbeat(2)], "the server has sent 2 messages, 1 arrived"),
            ([(b"$KV.b.shop", b"no position", b"{}", None)], "is malformed"),
            (
                [control("409 Consumer Deleted")],
                "the server ended the consumer: 409 Consumer Deleted",
            ),
        ],
    )
    async def test_a_gap_fails_the_feed(
        self, feed: Feed, messages: list[RawMessage], reason: str
    ) -> None:
        feed.receive(messages)
        assert reason in (await failure(feed))[0]

    async def test_flow_control_is_answered_by_the_take_after_its_messages(
        self, feed: Feed, connection: Connection
    ) -> None:
        feed.receive([message(1), control("100 FlowControl Request", b"answer")])
        await feed.take()
        assert connection.published == []
        feed.wake()
        feed.receive([message(2), control("100 FlowControl Request", b"lost")])
        await feed.take()
        assert connection.published == ["answer"]
        connection.closed = True
        assert (await failure(feed))[0].startswith("cannot answer flow control")

    async def test_a_long_backlog_is_waited_for(self, feed: Feed, connection: Connection) -> None:
        connection.late_flushes = 3
        await feed.arrived()
        assert connection.late_flushes == 0


# ---- a watch creates a consumer that ends with it, and breaks if the consumer may be lost


async def follow(watch: KvWatch) -> None:
    async with watch() as events:
        async for _ in events:
            pass


async def test_a_watch_breaks_without_its_consumer_which_it_deletes_before_the_next_list() -> None:
    server = BucketServer()
    watch = KvWatch(server.bucket)
    server.silent = True
    with pytest.raises(WatchBrokenError, match="the consumer sent nothing"):
        await follow(watch)
    assert asyncio.get_running_loop().time() <= (SILENCE + 1) * HEARTBEAT_S
    server.failure = NatsError("no connection")
    with pytest.raises(WatchBrokenError, match="cannot delete abandoned consumers: no connection"):
        await follow(watch)
    with pytest.raises(WatchBrokenError, match=r"cannot subscribe to .*: no connection"):
        await follow(KvWatch(server.bucket))


# ---- a silent consumer breaks its watch; a blocked event loop and a backlog do not


async def receive_heartbeats(feed: Feed, beats: int) -> None:
    for _ in range(beats):
        await asyncio.sleep(HEARTBEAT_S)
        feed.receive([heartbeat(0)])


async def silent_s(feed: Feed) -> float:
    """Return the seconds until the feed fails because of silence."""
    reason, after_s = await failure(feed)
    assert "consumer sent nothing" in reason
    return after_s


async def test_silence_fails_a_feed(feed: Feed) -> None:
    await receive_heartbeats(feed, 3)
    assert (SILENCE - 1) * HEARTBEAT_S <= await silent_s(feed) <= SILENCE * HEARTBEAT_S


async def test_a_blocked_event_loop_is_not_silence(feed: Feed) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    for _ in range(5):
        loop.jump(60)
        await receive_heartbeats(feed, 1)
    assert await feed.take() == []


async def test_a_heartbeat_behind_a_backlog_of_other_messages_is_not_silence(
    feed: Feed, connection: Connection
) -> None:
    connection.answers.clear()
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=30)
    feed.receive([heartbeat(0)])
    connection.answers.set()
    await receive_heartbeats(feed, 5)
    assert await feed.take() == []
    assert connection.flushes == 1


@pytest.mark.parametrize("late_flushes", [0, 1])
async def test_a_silent_consumer_fails_although_data_of_others_never_ends(
    feed: Feed, connection: Connection, late_flushes: int
) -> None:
    connection.late_flushes = late_flushes
    receiving = asyncio.create_task(connection.receive(seconds=1000))
    await receive_heartbeats(feed, 1)
    assert await silent_s(feed) <= (SILENCE + 2) * HEARTBEAT_S
    receiving.cancel()


async def test_a_silent_connection_fails_a_feed_that_waits_for_a_backlog(
    feed: Feed, connection: Connection
) -> None:
    connection.answers.clear()
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=10)
    await silent_s(feed)
