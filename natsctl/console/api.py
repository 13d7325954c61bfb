"""Answers the questions of the page, by name."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Protocol

import msgspec

from natsctl.console.actions import ActionReport, Actions, Garbage, MakePlan, garbage
from natsctl.console.answers import Answer, encoded
from natsctl.console.key import (
    Comparison,
    KeyView,
    KeyViews,
    ObjectDraft,
    ShownManifest,
    Traceback,
    draft,
)
from natsctl.console.keys import Keys, Query, Table
from natsctl.console.overview import Overview
from natsctl.core.task_group import together
from natsctl.daemon.messages import Verb
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.jetstream.connection import Connection, ConnectionState, OnLost
from natsctl.model.keys import check_key
from natsctl.operate.fleet import Fleet
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


FEEDS_MAX = 32  # views that are open at a time
READ_S: Mapping[str, float] = {"garbage": 10.0, "buckets": 5.0}
"""Seconds between two reads of a view that is open; a second for the others."""

Parameters = Mapping[str, str]


class Session(Answer, frozen=True, kw_only=True):
    """The state of the console and of its connection; `plans` names controllers with code."""

    version: str
    connected: bool
    server: str
    since_s: float
    error: str
    os_user: str
    nats_user: str
    plans: list[str]


class _Rows(msgspec.Struct, frozen=True):
    """What changes whenever a page of keys does."""

    revision: int
    states: object


class Console:
    """The answers of one console, over one connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        version: str,
        planners: Mapping[str, MakePlan],
    ) -> None:
        self._connection = connection
        self._version = version
        self._plans = sorted(planners)
        self._fleet = Fleet(connection)
        self._overview = Overview(self._fleet)
        self._keys = Keys(connection, self._overview)
        self._key_views = KeyViews(self._fleet, self._keys)
        self._actions = Actions(self._fleet, self._keys, planners)
        self._feeds: set[ViewFeed] = set()
        self._answers: dict[str, Callable[[Parameters], Awaitable[Answer]]] = {
            "session": self._session,
            "home": lambda _: self._overview.home(),
            "buckets": lambda _: self._overview.buckets(),
            "keys": self._table,
            "key": self._key,
            "diff": self._comparison,
            "draft": self._draft,
            "traceback": self._traceback,
            "manifest": self._manifest,
            "garbage": self._garbage,
        }

    async def answer(self, name: str, parameters: Parameters) -> Answer:
        """Return an answer; raises `NotFoundError` if there is no such question."""
        question = self._answers.get(name)
        if question is None:
            raise NotFoundError(f"the console has no answer {name}")
        return await question(parameters)

    async def act(self, name: str, body: bytes) -> ActionReport:
        """Carry out an action; see `Actions.act`."""
        return await self._actions.act(name, body)

    async def recording(self, parameters: Parameters) -> tuple[str, bytes]:
        """Return the file name and the masked text of the newest recording of a key."""
        name = _required(parameters, "controller")
        key = check_key(_required(parameters, "key"))
        daemons = await self._fleet.offering(Verb.RECORDING, name)
        text = await daemons.recording(name, key)
        return f"{name}-{key.replace('/', '-')}.json", msgspec.json.format(text, indent=1) + b"\n"

    @asynccontextmanager
    async def feed(self, parameters: Parameters) -> AsyncIterator[ViewFeed]:
        """Open the feed of a view; raises `NatsctlError` if too many are open."""
        if parameters.get("view", "home") not in self._answers:
            raise NotFoundError(f"the console has no view {parameters['view']}")
        if len(self._feeds) >= FEEDS_MAX:
            raise NatsctlError(f"{FEEDS_MAX} pages of the console are open: close some")
        feed = ViewFeed()
        self._feeds.add(feed)
        try:
            yield feed
        finally:
            self._feeds.remove(feed)

    async def follow(
        self, feed: ViewFeed, parameters: Parameters, send: Callable[[Notice], Awaitable[None]]
    ) -> None:
        """Send the notices of a view until the feed is closed; see `follow`."""
        view = parameters.get("view", "home")
        controller, bucket = parameters.get("controller", ""), parameters.get("bucket", "")

        async def read() -> msgspec.Struct:
            if view != "keys":
                return await self.answer(view, parameters)
            revision = await self._keys.revision(controller, bucket)
            states = (await self._overview.report(controller)).row if controller else None
            return _Rows(revision, states)

        await follow(feed, self._connection, send, read=read, read_s=READ_S.get(view, 1.0))

    def stop(self) -> None:
        """End all feeds."""
        for feed in self._feeds:
            feed.close()

    async def close(self) -> None:
        """End all reads."""
        await self._overview.close()
        await self._fleet.close()

    async def _session(self, _: Parameters) -> Session:
        state = self._connection.state()
        identity = await self._key_views.identity() if state.connected else None
        return Session(
            version=self._version,
            connected=state.connected,
            server=state.server,
            since_s=state.since_s,
            error="" if state.connected else state.last_error or "",
            os_user="" if identity is None else identity.local,
            nats_user="" if identity is None else identity.nats,
            plans=self._plans,
        )

    async def _table(self, parameters: Parameters) -> Table:
        query, (controller, bucket) = _query(parameters), _place(parameters)
        if controller:
            return await self._keys.of_controller(controller, query, bucket)
        return await self._keys.of_bucket(bucket, query)

    async def _key(self, parameters: Parameters) -> KeyView:
        controller, bucket = _place(parameters)
        return await self._key_views.view(controller, _required(parameters, "key"), bucket)

    async def _comparison(self, parameters: Parameters) -> Comparison:
        controller, bucket = _place(parameters)
        revisions = [_revision(parameters, name) for name in ("from", "to")]
        key = _required(parameters, "key")
        return await self._key_views.comparison(controller, bucket, key, revisions)

    async def _draft(self, parameters: Parameters) -> ObjectDraft:
        key = check_key(_required(parameters, "key"))
        return await draft(self._connection, _required(parameters, "bucket"), key)

    async def _traceback(self, parameters: Parameters) -> Traceback:
        controller = _required(parameters, "controller")
        return await self._key_views.traceback(controller, _required(parameters, "key"))

    async def _manifest(self, parameters: Parameters) -> ShownManifest:
        names = [_required(parameters, name) for name in ("controller", "kind", "key")]
        return await self._key_views.manifest(*names)

    async def _garbage(self, parameters: Parameters) -> Garbage:
        return await garbage(self._fleet, _required(parameters, "controller"))


def _required(parameters: Parameters, name: str) -> str:
    text = parameters.get(name, "")
    if not text:
        raise UsageError(f"name a {name}")
    return text


def _place(parameters: Parameters) -> tuple[str, str]:
    """Return the controller and the bucket of a request; raises `UsageError` if both are empty."""
    controller, bucket = parameters.get("controller", ""), parameters.get("bucket", "")
    if not controller and not bucket:
        raise UsageError("name a controller or a bucket")
    return controller, bucket


def _revision(parameters: Parameters, name: str) -> int | None:
    text = parameters.get(name, "")
    if not (text.isascii() and text.isdecimal()) and text:
        raise UsageError(f"{name} is not a revision: {text}")
    return int(text) if text else None


def _query(parameters: Parameters) -> Query:
    texts = {name: text for name, text in parameters.items() if name in Query.__struct_fields__}
    try:
        return msgspec.convert({k: v for k, v in texts.items() if v}, Query, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the query is not valid: {error}") from error
