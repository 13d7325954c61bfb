"""A silent consumer breaks its watch; a blocked event loop and a backlog do not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from nats.errors import FlushTimeoutError

from natsctl.errors import WatchBrokenError
from natsctl.jetstream.feed import BEGIN, HEARTBEAT_S, SILENCE, Feed
from natsctl.jetstream.reader import OneTimeClient
from natsctl.testing import VirtualTimeLoop

IDLE = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 0\r\n\r\n"
HEARTBEAT = [(b"inbox", b"", b"", IDLE)]


class Connection:
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


def feed_on(connection: Connection) -> Feed:
    return Feed("$KV.b.", cast("OneTimeClient", connection))


@asynccontextmanager
async def busy(connection: Connection) -> AsyncIterator[None]:
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
        await exhausted(feed)
    return asyncio.get_running_loop().time() - started


async def exhausted(feed: Feed) -> None:
    while True:
        assert await feed.take() == []


async def test_heartbeats_keep_a_feed_alive() -> None:
    feed = feed_on(Connection())
    await receive_heartbeats(feed, 20)
    assert await feed.take() == []
    feed.close()


async def test_silence_fails_a_feed() -> None:
    feed = feed_on(Connection())
    await receive_heartbeats(feed, 3)
    started = asyncio.get_running_loop().time()
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await exhausted(feed)
    silent_s = asyncio.get_running_loop().time() - started
    assert (SILENCE - 1) * HEARTBEAT_S <= silent_s <= SILENCE * HEARTBEAT_S
    feed.close()


async def test_a_feed_waits_longer_for_the_first_heartbeat() -> None:
    feed = feed_on(Connection())
    with pytest.raises(WatchBrokenError, match=f"nothing for {BEGIN * HEARTBEAT_S:g} s"):
        await exhausted(feed)
    feed.close()


async def test_a_feed_expects_heartbeats_once_its_consumer_exists() -> None:
    feed = feed_on(Connection())
    await asyncio.sleep(HEARTBEAT_S * (BEGIN - 1))
    feed.begin()
    with pytest.raises(WatchBrokenError, match=f"nothing for {SILENCE * HEARTBEAT_S:g} s"):
        await exhausted(feed)
    feed.close()


async def test_a_blocked_event_loop_is_not_silence() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    feed = feed_on(Connection())
    for _ in range(5):
        loop.jump(60)
        await receive_heartbeats(feed, 1)
    assert await feed.take() == []
    feed.close()


async def test_a_heartbeat_behind_a_backlog_of_other_messages_is_not_silence() -> None:
    connection = Connection()
    feed = feed_on(connection)
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=30)
    feed.receive(HEARTBEAT)
    connection.answer()
    await receive_heartbeats(feed, 5)
    assert await feed.take() == []
    assert connection.flushes == 1
    feed.close()


async def test_a_silent_consumer_fails_when_the_backlog_of_others_has_arrived() -> None:
    connection = Connection()
    feed = feed_on(connection)
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=10)
    connection.answer()
    await connection.receive(seconds=2 * HEARTBEAT_S)
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await exhausted(feed)
    feed.close()


@pytest.mark.parametrize("late_flushes", [0, 1])
async def test_a_silent_consumer_fails_although_data_of_others_never_ends(
    late_flushes: int,
) -> None:
    connection = Connection()
    connection.late_flushes = late_flushes
    connection.answer()
    feed = feed_on(connection)
    async with busy(connection):
        await receive_heartbeats(feed, 1)
        assert await silence(feed) <= (SILENCE + 2) * HEARTBEAT_S
    feed.close()


async def test_a_closed_feed_waits_for_no_backlog() -> None:
    connection = Connection()
    feed = feed_on(connection)
    async with busy(connection):
        await receive_heartbeats(feed, 1)
        await asyncio.sleep((SILENCE + 1) * HEARTBEAT_S)
        feed.close()
        await asyncio.sleep(0)
    assert (connection.flushes, connection.waiting) == (1, 0)


async def test_a_closed_feed_counts_no_heartbeats() -> None:
    connection = Connection()
    feed = feed_on(connection)
    feed.close()
    async with busy(connection):
        await asyncio.sleep(2 * BEGIN * HEARTBEAT_S)
    assert connection.flushes == 0


async def test_a_silent_connection_fails_a_feed_that_waits_for_a_backlog() -> None:
    connection = Connection()
    feed = feed_on(connection)
    await receive_heartbeats(feed, 1)
    await connection.receive(seconds=10)
    with pytest.raises(WatchBrokenError, match="consumer sent nothing"):
        await exhausted(feed)
    feed.close()


async def test_the_backlog_of_a_feed_arrives_before_the_answer_to_a_flush() -> None:
    connection = Connection()
    feed = feed_on(connection)
    arrival = asyncio.create_task(feed.arrived())
    await receive_heartbeats(feed, 20)
    assert not arrival.done()
    connection.answer()
    await arrival
    feed.close()
