"""Answers the questions of the page, by name."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import msgspec

from natsctl.console.actions import ActionReport, Actions, Garbage, MakePlan
from natsctl.console.answers import Answer, encoded
from natsctl.console.key import (
    Comparison,
    KeyView,
    KeyViews,
    ObjectDraft,
    ShownText,
    draft,
)
from natsctl.console.keys import Keys, KeyTable, Query
from natsctl.console.overview import Overview
from natsctl.core.pauses import PAUSES, controller_record
from natsctl.daemon.messages import Verb
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.jetstream.connection import Connection
from natsctl.model.keys import check_key
from natsctl.operate.fleet import Fleet
from natsctl.operate.problems import problem_of
from natsctl.time_limit import happens

FEEDS_MAX = 32  # views that are open at a time
PING_S = 5.0  # the longest silence between two notices, apart from the time of a read
READ_S: Mapping[str, float] = {"garbage": PING_S, "buckets": PING_S}
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
        self._fleet = Fleet(connection)
        self._overview = Overview(self._fleet)
        self._keys = Keys(connection, self._overview)
        self._key_views = KeyViews(self._fleet, self._keys)
        self._actions = Actions(self._fleet, self._keys, planners)
        self._feeds: set[asyncio.Event] = set()  # set to look at the view at once
        self._stopping = False
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
        question = self._answers.get(name)
        if question is None:
            raise NotFoundError(f"the console has no answer {name}")
        return await question(parameters)

    async def act(self, name: str, body: bytes) -> ActionReport:
        return await self._actions.act(name, body)

    async def recording(self, parameters: Parameters) -> tuple[str, bytes]:
        """Return the file name and the masked text of the newest recording of a key."""
        name, key = _required(parameters, "controller"), _required(parameters, "key")
        text = await self._key_views.recording(name, key)
        return f"{name}-{key.replace('/', '-')}.json", msgspec.json.format(text, indent=1) + b"\n"

    async def live(
        self, parameters: Parameters
    ) -> AsyncGenerator[tuple[str, dict[str, object]], None]:
        """Yield the name and the data of each notice about a view, until the console stops.

        `state` has the state of the connection, first of all and whenever it changes. `changed`
        says that the view is to be read again, and `ping` nothing. Raises `NotFoundError` if there
        is no such view, and `NatsctlError` if too many are open.
        """
        view, clock = parameters.get("view", "home"), asyncio.get_running_loop().time
        if view not in self._answers:
            raise NotFoundError(f"the console has no view {view}")
        if len(self._feeds) >= FEEDS_MAX:
            raise NatsctlError(f"{FEEDS_MAX} pages of the console are open: close some")
        look, told, last, silent_since = asyncio.Event(), (False, -1), b"", clock()
        self._feeds.add(look)
        try:
            with self._connection.on_lost(lambda _: look.set()):
                while not self._stopping:
                    state = self._connection.state()
                    if (state.connected, state.losses) != told:
                        told, silent_since = (state.connected, state.losses), clock()
                        error = "" if state.connected else state.last_error or ""
                        notice = {"connected": state.connected, "since_s": state.since_s}
                        yield "state", {**notice, "error": error}
                    present = await self._present(view, parameters)
                    if present != last and last:
                        silent_since = clock()
                        yield "changed", {}
                    elif clock() - silent_since >= PING_S:
                        silent_since = clock()
                        yield "ping", {}
                    last = present
                    await happens(look, within_s=READ_S.get(view, 1.0))
                    look.clear()
        finally:
            self._feeds.remove(look)

    async def _present(self, view: str, parameters: Parameters) -> bytes:
        """Return what a view has now, or what changes with it, to be compared."""
        controller, bucket = parameters.get("controller", ""), parameters.get("bucket", "")
        try:
            async with asyncio.timeout(PING_S):
                if view == "keys":
                    revisions = await self._keys.revisions(controller, bucket)
                    row = (await self._overview.report(controller)).row if controller else None
                    return encoded((revisions, row))
                answer = await self.answer(view, parameters)
                return encoded(msgspec.structs.replace(answer, as_of=0.0))
        except (NatsctlError, TimeoutError) as error:
            return encoded(problem_of(error))

    def stop(self) -> None:
        self._stopping = True
        for look in self._feeds:
            look.set()

    async def close(self) -> None:
        await self._keys.close()
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

    async def _table(self, parameters: Parameters) -> KeyTable:
        query, (controller, bucket) = _query(parameters), _place(parameters)
        if not controller:
            return await self._keys.of_bucket(bucket, query)
        table = await self._keys.of_controller(controller, query, bucket)
        identity, off = await self._key_views.identity(), dict[str, str]()
        subjects = {
            "resync": Verb.RESYNC.subject(controller),
            "whole": f"$KV.{PAUSES.bucket}.{controller_record(controller)}",
        }
        if not table.bucket:
            off["pause"] = "they are in a cluster: use kubectl"
        elif table.rows:
            subjects["pause"] = f"$KV.{table.bucket}.{table.rows[0].key}"
        off |= {
            action: refused
            for action, subject in subjects.items()
            if (refused := identity.refusal(subject))
        }
        return msgspec.structs.replace(table, off=off)

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

    async def _traceback(self, parameters: Parameters) -> ShownText:
        controller = _required(parameters, "controller")
        return await self._key_views.traceback(controller, _required(parameters, "key"))

    async def _manifest(self, parameters: Parameters) -> ShownText:
        names = [_required(parameters, name) for name in ("controller", "kind", "key")]
        return await self._key_views.manifest(*names)

    async def _garbage(self, parameters: Parameters) -> Garbage:
        controller = _required(parameters, "controller")
        identity = await self._key_views.identity()
        plan = await (await self._fleet.offering(Verb.GC_PLAN, controller)).plan(controller)
        off = identity.refusal(Verb.GC_APPLY.subject(controller))
        return Garbage(
            controller=controller,
            orphans=plan.orphans,
            refused=plan.refused,
            more=plan.more,
            off=off,
        )


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
