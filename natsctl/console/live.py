"""Notices changes of one view, and combines them to a few notices."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from natsctl.console.answers import encoded
from natsctl.core.task_group import together
from natsctl.errors import NatsctlError
from natsctl.jetstream.connection import ConnectionState, OnLost
from natsctl.operate.problems import problem_of
from natsctl.time_limit import happens

INTERVAL_S = 0.25  # between two notices
PING_S = 5.0  # without another notice
STATE_S = 1.0  # between two looks at the connection

Read = Callable[[], Awaitable[msgspec.Struct]]


class NatsLink(Protocol):
    """The connection to NATS, as far as a view reports it; see `Connection`."""

    def state(self) -> ConnectionState:
        """Return the present state."""
        ...

    def on_lost(self, callback: OnLost) -> AbstractContextManager[None]:
        """Call *callback* at every loss and every reconnect while the context lasts."""
        ...


class Changed(msgspec.Struct, frozen=True):
    """The view is to be read again."""


class ConnectionNotice(msgspec.Struct, frozen=True):
    """The state of the connection to NATS."""

    connected: bool
    since_s: float
    error: str


class Heartbeat(msgspec.Struct, frozen=True):
    """A sign of life."""


Notice = Changed | ConnectionNotice | Heartbeat


class ViewFeed:
    """The changes of one view that were not sent yet; adding never blocks."""

    def __init__(self) -> None:
        self._changed = False
        self._state: ConnectionNotice | None = None
        self._wake = asyncio.Event()
        self.closed = False

    def changed(self) -> None:
        """Add a change of the view."""
        self._changed = True
        self._wake.set()

    def state(self, state: ConnectionNotice) -> None:
        """Replace the state of the connection."""
        self._state = state
        self._wake.set()

    def close(self) -> None:
        """End the feed."""
        self.closed = True
        self._wake.set()

    async def take(self) -> list[Notice]:
        """Wait for changes, for `PING_S` at most, and return them as at most two notices."""
        await happens(self._wake, within_s=PING_S)
        self._wake.clear()
        notices: list[Notice] = [] if self._state is None else [self._state]
        if self._changed:
            notices.append(Changed())
        self._changed, self._state = False, None
        return notices or [Heartbeat()]


async def follow(
    feed: ViewFeed,
    connection: NatsLink,
    send: Callable[[Notice], Awaitable[None]],
    *,
    read: Read,
    read_s: float = 1.0,
) -> None:
    """Send the notices of a view until the feed is closed, at most four times a second.

    *read* reads the view, or what changes with it; changes are noticed every *read_s* seconds.
    """
    async with together() as group:
        tasks = [
            group.create_task(_follow_connection(feed, connection), name="connection"),
            group.create_task(_follow_view(feed, read, read_s), name="view"),
        ]
        try:
            while not feed.closed:
                for notice in await feed.take():
                    await send(notice)
                await asyncio.sleep(INTERVAL_S)
        finally:
            for task in tasks:
                task.cancel()


async def _follow_connection(feed: ViewFeed, connection: NatsLink) -> None:
    last: tuple[bool, int] | None = None
    lost = asyncio.Event()
    with connection.on_lost(lambda _: lost.set()):
        while True:
            state = connection.state()
            if (state.connected, state.losses) != last:
                last = (state.connected, state.losses)
                error = "" if state.connected else state.last_error or ""
                feed.state(ConnectionNotice(state.connected, state.since_s, error))
            await happens(lost, within_s=STATE_S)
            lost.clear()


async def _follow_view(feed: ViewFeed, read: Read, read_s: float) -> None:
    last: bytes | None = None
    while True:
        try:
            answer = await read()
            if hasattr(answer, "as_of"):
                answer = msgspec.structs.replace(answer, as_of=0.0)
        except (NatsctlError, TimeoutError) as error:
            answer = problem_of(error)
        present = encoded(answer)
        if last is not None and present != last:
            feed.changed()
        last = present
        await asyncio.sleep(read_s)
