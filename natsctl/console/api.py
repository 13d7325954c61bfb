"""Answers the questions of the page, and carries out what a user asks for there.

An action has the permissions of the user's own NATS credentials, and is recorded as events with the
user's name.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from natsctl.console.answers import Fields, answer, encoded
from natsctl.console.key import KeyViews, Preview, draft, edited, restored
from natsctl.console.keys import Keys, KeyTable, Query
from natsctl.console.overview import Overview
from natsctl.daemon.client import OldDaemonError
from natsctl.daemon.messages import Verb
from natsctl.errors import (
    ConflictError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    UsageError,
)
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.events import record_event
from natsctl.model.bookkeeping import PAUSES, controller_record
from natsctl.model.keys import check_key
from natsctl.model.plans import Plan
from natsctl.operate.fleet import Acted, Fleet, unqueued
from natsctl.operate.objects import Name
from natsctl.operate.pauses import duration_in, in_cluster, new_pause
from natsctl.operate.statuses import problem_of
from natsctl.time_limit import happens

FEEDS_MAX = 32  # views that are open at a time
PING_S = 5.0  # the longest silence between two notices, apart from the time of a read
READ_S: Mapping[str, float] = {"garbage": PING_S, "buckets": PING_S}
"""Seconds between two reads of a view that is open; a second for the others."""


KEYS_MAX = 100  # of one action
REASON_MAX = 500  # characters of the reason for a pause
WHOLE = "natsctl.io/controller"
"""The key of events about a whole controller."""

MakePlan = Callable[[Sequence[str]], Awaitable[Plan]]
"""Plans these keys of a controller, or all if there are none."""


class Choice(msgspec.Struct, frozen=True):
    """An object that a user chose to delete, as the page showed it."""

    kind: str
    key: str
    revision: int


class Question(Query, frozen=True, kw_only=True):
    """What the page asks about; each answer needs some of the fields."""

    view: str = "home"
    controller: str = ""
    bucket: str = ""
    key: str = ""
    kind: str = ""
    from_: int | None = msgspec.field(default=None, name="from")
    to: int | None = None


NEEDED: Mapping[str, str] = {
    "home": "",
    "buckets": "",
    "keys": "",
    "key": "key",
    "diff": "key",
    "draft": "bucket key",
    "recording": "controller key",
    "manifest": "controller kind key",
    "garbage": "controller",
}
"""The fields that each question needs."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an action, which uses some of the fields.

    It's about *keys*, of a *bucket* if the controller has primaries in several, about those of a
    *filter*, or about *everything*. `objects` are the orphans to delete, whose `count` the user
    typed. `text` is the edited object, `revision` that of the draft, or the one to restore. If the
    user isn't `sure`, the change is only shown.
    """

    controller: str = ""
    bucket: str = ""
    keys: list[str] = []
    filter: Query | None = None
    everything: bool = False
    reason: str = ""
    lasts: str = msgspec.field(default="", name="for")  # such as 2h; empty without an end
    objects: list[Choice] = []
    count: int = 0
    text: str = ""
    revision: int = 0
    sure: bool = False

    def __post_init__(self) -> None:
        if len(self.keys) > KEYS_MAX or len(self.reason) > REASON_MAX:
            raise UsageError(f"name at most {KEYS_MAX} keys, and a reason of {REASON_MAX} letters")
        for key in self.keys:
            check_key(key)


class Console:
    """The answers and actions of one console, over one connection of one user.

    *planners* plan with the user's own code, by controller.
    """

    def __init__(self, connection: Connection, planners: Mapping[str, MakePlan]) -> None:
        self._connection = connection
        self._planners = planners
        self._fleet = Fleet(connection)
        self._overview = Overview(self._fleet)
        self._keys = Keys(connection, self._overview)
        self._views = KeyViews(self._fleet, self._keys)
        self._feeds: set[asyncio.Event] = set()  # set to look at the view at once
        self._stopping = False

    async def answer(self, name: str, parameters: Mapping[str, str]) -> object:
        return await self._answer(name, _question(parameters))

    async def _answer(self, name: str, asked: Question) -> object:
        _check(name, asked)
        views, at = self._views, (asked.controller, asked.bucket, asked.key)
        answers: dict[str, Callable[[], Awaitable[object]]] = {
            "home": self._overview.home,
            "buckets": self._overview.buckets,
            "keys": partial(self._table, asked),
            "key": partial(views.view, *at),
            "diff": partial(views.comparison, *at, asked.from_, asked.to),
            "draft": partial(draft, self._connection, *at[1:]),
            "recording": partial(views.recording, asked.controller, asked.key),
            "manifest": partial(views.manifest, asked.controller, asked.kind, asked.key),
            "garbage": partial(self._garbage, asked.controller),
        }
        return await answers[name]()

    async def live(
        self, parameters: Mapping[str, str]
    ) -> AsyncGenerator[tuple[str, dict[str, object]], None]:
        """Yield the name and the data of each notice about a view, until the console stops.

        `state` has the state of the connection, first of all and whenever it changes. `changed`
        says that the view is to be read again, and `ping` nothing. Raises `NotFoundError` if there
        is no such view, and `NatsctlError` if too many are open.
        """
        asked, clock = _question(parameters), asyncio.get_running_loop().time
        _check(asked.view, asked)
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
                    present = await self._present(asked)
                    if present != last and last:
                        silent_since = clock()
                        yield "changed", {}
                    elif clock() - silent_since >= PING_S:
                        silent_since = clock()
                        yield "ping", {}
                    last = present
                    await happens(look, within_s=READ_S.get(asked.view, 1.0))
                    look.clear()
        finally:
            self._feeds.remove(look)

    async def _present(self, asked: Question) -> bytes:
        try:
            async with asyncio.timeout(PING_S):
                if asked.view == "keys":
                    name = asked.controller
                    revisions = await self._keys.revisions(name, asked.bucket)
                    row = (await self._overview.report(name)).row if name else None
                    return encoded((revisions, row))
                present = msgspec.to_builtins(await self._answer(asked.view, asked))
                return encoded({**present, "as_of": 0.0})
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

    async def _table(self, asked: Question) -> KeyTable:
        controller = asked.controller
        if not controller:
            return await self._keys.of_bucket(asked.bucket, asked)
        table = await self._keys.of_controller(controller, asked, asked.bucket)
        identity, off = await self._views.identity(), dict[str, str]()
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
        return replace(table, off=off)

    async def _garbage(self, controller: str) -> object:
        identity = await self._views.identity()
        plan = await (await self._fleet.daemons()).plan(controller)
        return answer(
            controller=controller,
            orphans=plan.orphans,
            refused=plan.refused,
            more=plan.more,
            off=identity.refusal(Verb.GC_APPLY.subject(controller)),
        )

    # ---- actions

    async def act(self, name: str, body: bytes) -> Fields:
        """Return what an action did, what it didn't, and whether events name the user."""
        try:
            request = msgspec.json.decode(body, type=Request)
        except msgspec.DecodeError as error:
            raise UsageError(f"the request is not valid: {error}") from error
        actions: dict[str, Callable[[Request], Awaitable[Acted | Preview | Plan]]] = {
            "resync": self._resync,
            "pause": self._pause,
            "resume": self._resume,
            "plan": self._plan,
            "garbage": self._collect,
            "record": self._record,
            "edit": self._edit,
            "rollback": partial(self._edit, restores=True),
        }
        if name not in actions:
            raise NotFoundError(f"the console has no action {name}")
        controller = request.controller
        if request.filter is not None:
            keys = await self._keys.selected(controller, request.filter, KEYS_MAX)
            request = replace(request, keys=keys, filter=None)
            if not keys:
                return answer(message="no key matches any more")
        acted = await actions[name](request)
        if not isinstance(acted, Acted):
            message = str(acted.summary) if isinstance(acted, Plan) else ""
            return answer(message=message, result=acted)
        if acted.failed and not acted.done:
            raise acted.failed[0]
        message, recorded = ", ".join(acted.done), False
        warnings = [problem_of(error).message for error in acted.failed] + acted.notes
        if controller:
            text = f"{name} by {await self._views.identity()} in the console: {message}"
            try:
                for key in request.keys or [WHOLE]:
                    reason = f"Console{name.title()}"
                    await record_event(self._connection, controller, key, reason, text)
                recorded = True
            except NatsctlError as error:
                warnings.insert(0, f"no event names you: {problem_of(error).message}")
        return answer(message=message, warnings=warnings[:KEYS_MAX], recorded=recorded)

    async def _resync(self, request: Request) -> Acted:
        name = request.controller
        daemons = await self._fleet.daemons()
        answers = await daemons.resync(name, request.keys)
        count = sum(answer.queued for answer in answers)
        daemon_names = ", ".join(str(answer.daemon) for answer in answers if answer.queued)
        place = f" in {daemon_names}" if daemon_names else ""
        message = f"{count} key{'' if count == 1 else 's'} of {name} queued{place}"
        return Acted([message], list(unqueued(answers)))

    async def _pause(self, request: Request) -> Acted:
        duration = duration_in(request.lasts) if request.lasts else None
        pause = new_pause(reason=request.reason, duration=duration)
        if request.everything:
            return await self._fleet.pause_controller(request.controller, pause)
        return await self._fleet.pause(await self._names(request), pause)

    async def _resume(self, request: Request) -> Acted:
        if request.everything:
            return await self._fleet.resume_controller(request.controller)
        return await self._fleet.resume(await self._names(request), request.controller)

    async def _names(self, request: Request) -> list[Name]:
        if not request.keys:
            raise UsageError("name keys, or the whole controller")
        bucket = request.bucket or await self._keys.bucket_of(request.controller)
        if not bucket:
            raise in_cluster(request.controller, request.keys[0])
        return [Name(bucket, key) for key in request.keys]

    async def _edit(self, request: Request, *, restores: bool = False) -> Acted | Preview:
        connection = self._connection
        (name,) = await self._names(request)
        if restores:
            change = await restored(connection, name, request.revision)
        else:
            change = await edited(connection, name, request.text, request.revision)
        preview = await change.preview(connection)
        if not request.sure:
            return preview
        if preview.faults:
            raise InvalidObjectError(f"{name} does not match its schema: {preview.faults[0]}")
        return Acted([f"{name} stored at revision {await change.store_it()}"])

    async def _plan(self, request: Request) -> Plan:
        name, planner = request.controller, self._planners.get(request.controller)
        try:
            if planner is not None:
                return await planner(request.keys)
            return await (await self._fleet.daemons()).plan_keys(name, request.keys)
        except OldDaemonError as error:
            raise OldDaemonError(
                f"{error}; natsctl console -c M:C plans with the code of the class M:C"
            ) from error

    async def _collect(self, request: Request) -> Acted:
        """Delete the chosen orphans, if each still has the revision that the user saw."""
        name = request.controller
        wanted = {(choice.kind, choice.key, choice.revision) for choice in request.objects}
        if not wanted or request.count != len(wanted):
            raise UsageError(f"{len(wanted)} objects are chosen, and {request.count} was typed")
        daemons = await self._fleet.daemons()
        plan = await daemons.plan(name)
        orphans = tuple(one for one in plan.orphans if (one.kind, one.key, one.revision) in wanted)
        if len(orphans) != len(wanted):
            changed = len(wanted) - len(orphans)
            raise ConflictError(
                f"nothing is deleted: {changed} of the chosen objects changed since they were shown"
            )
        removed = await daemons.apply(replace(plan, orphans=orphans))
        count = len(removed.orphans)
        message = f"{count} {'object' if count == 1 else 'objects'} of {name} deleted"
        return Acted(
            [message], notes=[f"{one.orphan.name} kept: {one.reason}" for one in removed.kept]
        )

    async def _record(self, request: Request) -> Acted:
        name = request.controller
        daemons = await self._fleet.daemons()
        answers = await daemons.record(name, request.keys, stop=False)
        keys = sorted({key for answer in answers for key in answer.keys})[:KEYS_MAX]
        return Acted([f"{name} records every sync of {', '.join(keys)}"])


def _question(parameters: Mapping[str, str]) -> Question:
    given = {name: text for name, text in parameters.items() if text}
    try:
        return msgspec.convert(given, Question, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"the query is not valid: {error}") from error


def _check(name: str, asked: Question) -> None:
    if name not in NEEDED:
        raise NotFoundError(f"the console has no answer {name}")
    for field in NEEDED[name].split():
        if not getattr(asked, field):
            raise UsageError(f"name a {field}")
    if name in {"keys", "key", "diff"} and not (asked.controller or asked.bucket):
        raise UsageError("name a controller or a bucket")
