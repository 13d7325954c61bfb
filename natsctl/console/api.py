"""Answers the questions of the page, by name."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from natsctl.console.actions import ActionReport, Actions, MakePlan
from natsctl.console.answers import Answer
from natsctl.console.buckets import Buckets, buckets
from natsctl.console.garbage import Garbage, garbage
from natsctl.console.home import Overview
from natsctl.console.key import Comparison, KeyView, KeyViews
from natsctl.console.keys import Keys
from natsctl.console.live import Notice, ViewFeed, follow
from natsctl.console.reads.listings import BucketListing, Listings
from natsctl.console.table import Query, Table
from natsctl.daemon.api.verbs import Verb
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.keys import check_key
from natsctl.operate.fleet import Fleet
from natsctl.operate.identity import Identity, identity_on

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
        self.fleet = Fleet(connection)
        self.listings = Listings(connection)
        self.overview = Overview(connection, self.fleet)
        self._keys = Keys(connection, self.fleet, self.listings)
        self._key_views = KeyViews(connection, self.fleet, self._keys)
        self._actions = Actions(connection, self.fleet, self._keys, planners)
        self._identity: Identity | None = None
        self._feeds: set[ViewFeed] = set()
        self._answers: dict[str, Callable[[Parameters], Awaitable[Answer]]] = {
            "session": self._session,
            "home": lambda _: self.overview.home(),
            "members": lambda _: self.overview.members(),
            "keys": self._table,
            "objects": self._table,
            "key": self._key,
            "diff": self._comparison,
            "garbage": self._garbage,
            "buckets": lambda _: self._buckets(),
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
        daemons = await self.fleet.offering(Verb.RECORDING, name)
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
        rows = view in ("keys", "objects")

        async def read() -> Answer:
            if rows:
                return await self.overview.home()
            if view == "key":
                return await self._glance(parameters)
            return await self.answer(view, parameters)

        async def listing() -> BucketListing | None:
            controller, bucket = parameters.get("controller", ""), parameters.get("bucket", "")
            return await self._keys.listing(controller, bucket)

        await follow(
            feed,
            self._connection,
            send,
            read=None if rows and not parameters.get("controller") else read,
            read_s=READ_S.get(view, 1.0),
            listing=listing if rows else None,
        )

    def stop(self) -> None:
        """End all feeds."""
        for feed in self._feeds:
            feed.close()

    async def close(self) -> None:
        """End all watches and reads."""
        await self.listings.close()
        await self.overview.close()
        await self.fleet.close()

    async def _session(self, _: Parameters) -> Session:
        state = self._connection.state()
        if self._identity is None and state.connected:
            self._identity = await identity_on(self._connection)
        return Session(
            version=self._version,
            connected=state.connected,
            server=state.server,
            since_s=state.since_s,
            error="" if state.connected else state.last_error or "",
            os_user="" if self._identity is None else self._identity.local,
            nats_user="" if self._identity is None else self._identity.nats,
            plans=self._plans,
        )

    async def _table(self, parameters: Parameters) -> Table:
        query = _query(parameters)
        controller, bucket = parameters.get("controller", ""), parameters.get("bucket", "")
        if controller:
            return await self._keys.of_controller(controller, query, bucket)
        return await self._keys.of_bucket(_required(parameters, "bucket"), query)

    async def _key(self, parameters: Parameters) -> KeyView:
        key, bucket = _required(parameters, "key"), parameters.get("bucket", "")
        controller = parameters.get("controller", "")
        if controller:
            return await self._key_views.of_controller(controller, key, bucket)
        return await self._key_views.of_bucket(_required(parameters, "bucket"), key)

    async def _glance(self, parameters: Parameters) -> KeyView:
        controller, bucket = _place(parameters)
        return await self._key_views.glance(controller, _required(parameters, "key"), bucket)

    async def _comparison(self, parameters: Parameters) -> Comparison:
        controller, bucket = _place(parameters)
        revisions = [_revision(parameters, name) for name in ("from", "to")]
        key = _required(parameters, "key")
        return await self._key_views.comparison(controller, bucket, key, revisions)

    async def _garbage(self, parameters: Parameters) -> Garbage:
        return await garbage(self.fleet, _required(parameters, "controller"))

    async def _buckets(self) -> Buckets:
        return await buckets(self._connection, await self._controllers_by_bucket())

    async def _controllers_by_bucket(self) -> dict[str, list[str]]:
        """Return the controllers of each bucket; none if the user may not look for daemons."""
        try:
            return await self.overview.controllers_by_bucket()
        except (NatsctlError, TimeoutError):
            return {}


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
