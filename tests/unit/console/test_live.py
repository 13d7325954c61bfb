"""Many changes become few notices, and none of them is lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from natsctl.console.answers import Answer
from natsctl.console.api import (
    PING_S,
    Changed,
    ConnectionNotice,
    Heartbeat,
    Notice,
    Read,
    ViewFeed,
    follow,
)
from natsctl.errors import StoreError
from natsctl.jetstream.connection import ConnectionState, OnLost
from tests.support.eventually import eventually


class FakeLink:
    """A connection that a test loses and restores."""

    def __init__(self) -> None:
        self.losses = 0
        self.connected = True
        self.callbacks: list[OnLost] = []

    def state(self) -> ConnectionState:
        return ConnectionState(
            connected=self.connected,
            server="nats://desk",
            losses=self.losses,
            since_s=0.0,
            errors=0,
            last_error="cut",
        )

    @contextmanager
    def on_lost(self, callback: OnLost) -> Iterator[None]:
        self.callbacks.append(callback)
        yield
        self.callbacks.remove(callback)

    def change(self, *, connected: bool) -> None:
        self.connected = connected
        self.losses += not connected
        for callback in self.callbacks:
            callback(StoreError("cut"))


class View(Answer, frozen=True, kw_only=True):
    """An answer of a view."""

    number: int


@asynccontextmanager
async def following(
    feed: ViewFeed, link: FakeLink, read: Read | None = None
) -> AsyncIterator[list[Notice]]:
    """Collect the notices of a view."""

    async def same() -> Answer:
        return View(number=0)

    notices: list[Notice] = []

    async def send(notice: Notice) -> None:
        notices.append(notice)

    task = asyncio.create_task(follow(feed, link, send, read=read or same))
    try:
        yield notices
    finally:
        feed.close()
        await task


def changes(notices: list[Notice]) -> list[Changed]:
    return [notice for notice in notices if isinstance(notice, Changed)]


async def test_fifty_changes_a_second_are_at_most_four_notices_a_second() -> None:
    feed = ViewFeed()
    async with following(feed, FakeLink()) as notices:
        for _ in range(500):
            feed.changed()
            await asyncio.sleep(0.02)
        await asyncio.sleep(1)
    assert len(changes(notices)) <= 41
    assert len(changes(notices)) >= 10


async def test_a_quiet_view_shows_that_it_lives() -> None:
    clock = asyncio.get_running_loop().time
    before = clock()
    assert await ViewFeed().take() == [Heartbeat()]
    assert clock() - before == PING_S


async def test_a_lost_connection_is_reported_and_its_return() -> None:
    link = FakeLink()
    async with following(ViewFeed(), link) as notices:
        await eventually(lambda: len(notices) == 1)
        link.change(connected=False)
        await eventually(lambda: len(notices) == 2)
        link.change(connected=True)
        await eventually(lambda: len(notices) == 3)
    states = [(n.connected, n.error) for n in notices if isinstance(n, ConnectionNotice)]
    assert states == [(True, ""), (False, "cut"), (True, "")]


async def test_a_view_that_reads_differently_has_changed() -> None:
    numbers = iter([1, 1, 2, 2, 2])

    async def read() -> Answer:
        return View(number=next(numbers, 2))

    async with following(ViewFeed(), FakeLink(), read=read) as notices:
        await asyncio.sleep(6)
    assert changes(notices) == [Changed()]


async def test_a_view_that_begins_to_fail_has_changed() -> None:
    view, lost = View(number=1), StoreError("cut")
    answers: Iterator[View | StoreError] = iter([view, lost, lost, view])

    async def read() -> Answer:
        answer = next(answers, view)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async with following(ViewFeed(), FakeLink(), read=read) as notices:
        await asyncio.sleep(6)
    assert changes(notices) == [Changed(), Changed()]


async def test_a_closed_feed_ends() -> None:
    async with following(ViewFeed(), FakeLink()) as notices:
        pass
    assert changes(notices) == []
