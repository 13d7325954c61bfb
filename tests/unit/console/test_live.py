"""Many changes become few notices, and none of them is lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from natsctl.console.answers import Answer
from natsctl.console.live import (
    KEYS_MAX,
    PING_S,
    Changed,
    ConnectionNotice,
    Heartbeat,
    Notice,
    ViewFeed,
    follow,
)
from natsctl.errors import StoreError
from natsctl.jetstream.connection.connection import ConnectionState, OnLost
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
async def following(feed: ViewFeed, link: FakeLink, **view: object) -> AsyncIterator[list[Notice]]:
    """Collect the notices of a view."""
    notices: list[Notice] = []

    async def send(notice: Notice) -> None:
        notices.append(notice)

    task = asyncio.create_task(follow(feed, link, send, **view))  # type: ignore[arg-type]
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
        for number in range(500):
            feed.changed(f"key-{number}")
            await asyncio.sleep(0.02)
        await asyncio.sleep(1)
    assert len(changes(notices)) <= 41
    keys = [key for notice in changes(notices) for key in notice.keys or ()]
    assert keys == [f"key-{number}" for number in range(500)]


async def test_a_key_that_changes_often_is_named_once() -> None:
    feed = ViewFeed()
    feed.changed("a")
    feed.changed("b")
    feed.changed("a")
    assert await feed.take() == [Changed(["a", "b"])]


async def test_a_notice_names_a_limited_number_of_keys() -> None:
    feed = ViewFeed()
    for number in range(KEYS_MAX + 5):
        feed.changed(f"key-{number}")
    (notice,) = await feed.take()
    assert isinstance(notice, Changed)
    assert (len(notice.keys or ()), notice.more) == (KEYS_MAX, 5)


async def test_a_change_of_the_whole_view_includes_the_keys() -> None:
    feed = ViewFeed()
    feed.changed("a")
    feed.changed()
    assert await feed.take() == [Changed(None)]


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
    assert changes(notices) == [Changed(None)]


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
    assert changes(notices) == [Changed(None), Changed(None)]


async def test_a_closed_feed_ends() -> None:
    async with following(ViewFeed(), FakeLink()) as notices:
        pass
    assert changes(notices) == []
