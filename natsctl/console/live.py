"""Notices changes of one view, and combines them to a few notices."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from natsctl.console.answers import Answer, encoded
from natsctl.console.reads.listings import BucketListing
from natsctl.core.task_group import together
from natsctl.errors import NatsctlError, StoreError
from natsctl.jetstream.connection.connection import ConnectionState, OnLost
from natsctl.operate.problems import problem_of
from natsctl.time_limit import happens

INTERVAL_S = 0.25  # between two notices
PING_S = 5.0  # without another notice
STATE_S = 1.0  # between two looks at the connection
TOUCH_S = 10.0  # after which a listing is opened again, so that it stays open
KEYS_MAX = 100  # of one notice

Read = Callable[[], Awaitable[Answer]]
OpenListing = Callable[[], Awaitable[BucketListing | None]]


class NatsLink(Protocol):
    """The connection to NATS, as far as a view reports it; see `Connection`."""

    def state(self) -> ConnectionState:
        """Return the present state."""
        ...

    def on_lost(self, callback: OnLost) -> AbstractContextManager[None]:
        """Call *callback* at every loss and every reconnect while the context lasts."""
        ...


class Changed(msgspec.Struct, frozen=True):
    """The objects that changed; None if the whole view is to be read again.

    `more` counts the changes of other objects.
    """

    keys: list[str] | None
    more: int = 0


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
        self._keys: dict[str, None] = {}
        self._more = 0
        self._whole = False
        self._state: ConnectionNotice | None = None
        self._wake = asyncio.Event()
        self.closed = False

    def changed(self, key: str | None = None) -> None:
        """Add a change of an object; without a *key*, of the whole view."""
        if key is None:
            self._whole = True
        elif len(self._keys) < KEYS_MAX or key in self._keys:
            self._keys[key] = None
        else:
            self._more += 1
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
        notices: list[Notice] = []
        if self._state is not None:
            notices.append(self._state)
        if self._whole:
            notices.append(Changed(None))
        elif self._keys:
            notices.append(Changed(list(self._keys), self._more))
        self._keys, self._more, self._whole, self._state = {}, 0, False, None
        return notices or [Heartbeat()]


async def follow(
    feed: ViewFeed,
    connection: NatsLink,
    send: Callable[[Notice], Awaitable[None]],
    *,
    read: Read | None = None,
    read_s: float = 1.0,
    listing: OpenListing | None = None,
) -> None:
    """Send the notices of a view until the feed is closed, at most four times a second.

    *read* reads the view, whose changes are noticed every *read_s* seconds. *listing* opens the
    listing of a view that shows objects.
    """
    async with together() as group:
        tasks = [group.create_task(_follow_connection(feed, connection), name="connection")]
        if read is not None:
            tasks.append(group.create_task(_follow_view(feed, read, read_s), name="view"))
        if listing is not None:
            tasks.append(group.create_task(_follow_listing(feed, listing), name="listing"))
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
            answer: msgspec.Struct = msgspec.structs.replace(await read(), as_of=0.0)
        except (NatsctlError, TimeoutError) as error:
            answer = problem_of(error)
        present = encoded(answer)
        if last is not None and present != last:
            feed.changed()
        last = present
        await asyncio.sleep(read_s)


async def _follow_listing(feed: ViewFeed, open_listing: OpenListing) -> None:
    problem = ""
    while True:
        try:
            listing = await open_listing()
            if listing is None:
                return
            problem = ""
            with listing.notifying(feed.changed):
                if not listing.complete and await listing.completed(TOUCH_S):
                    feed.changed()
                await listing.until_ended(TOUCH_S)
        except (NatsctlError, TimeoutError) as error:
            if str(error) != problem:
                feed.changed()
            problem = str(error)
            await asyncio.sleep(1.0 if isinstance(error, StoreError) else TOUCH_S)
