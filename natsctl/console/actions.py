"""Carries out what a user asks for on the page, and records it as events with the user's name.

An action has the permissions of the user's own NATS credentials.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from natsctl.console.answers import Answer
from natsctl.console.key import Preview, edited, restored
from natsctl.console.keys import Keys, Query
from natsctl.daemon.client import OldDaemonError
from natsctl.errors import (
    ConflictError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    UsageError,
)
from natsctl.jetstream.events import record_event
from natsctl.model.keys import check_key
from natsctl.model.plans import Plan
from natsctl.operate.fleet import Acted, Fleet, unqueued
from natsctl.operate.objects import Name
from natsctl.operate.pauses import duration_in, identity_on, in_cluster, new_pause
from natsctl.operate.statuses import problem_of


class Choice(msgspec.Struct, frozen=True):
    """An object that a user chose to delete, as the page showed it."""

    kind: str
    key: str
    revision: int


KEYS_MAX = 100  # of one action
REASON_MAX = 500  # characters of the reason for a pause
WHOLE = "natsctl.io/controller"
"""The key of events about a whole controller."""

MakePlan = Callable[[Sequence[str]], Awaitable[Plan]]
"""Plans these keys of a controller, or all if there are none."""


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


class ActionReport(Answer, frozen=True, kw_only=True):
    """What an action did, what it didn't, and whether the events name the user."""

    message: str
    warnings: list[str] = msgspec.field(default_factory=list)
    recorded: bool = False
    result: Preview | Plan | None = None


class Actions:
    """The actions of one user; *planners* plan with the user's own code, by controller."""

    def __init__(self, fleet: Fleet, keys: Keys, planners: Mapping[str, MakePlan]) -> None:
        self._fleet = fleet
        self._keys = keys
        self._planners = planners
        self._actions: dict[str, Callable[[Request], Awaitable[ActionReport]]] = {
            "resync": self._resync,
            "pause": self._pause,
            "resume": self._resume,
            "plan": self._plan,
            "garbage": self._garbage,
            "record": self._record,
            "edit": self._edit,
            "rollback": partial(self._edit, restores=True),
        }

    async def act(self, name: str, body: bytes) -> ActionReport:
        action = self._actions.get(name)
        if action is None:
            raise NotFoundError(f"the console has no action {name}")
        try:
            request = msgspec.json.decode(body, type=Request)
        except msgspec.DecodeError as error:
            raise UsageError(f"the request is not valid: {error}") from error
        if request.filter is not None:
            keys = await self._keys.selected(request.controller, request.filter, KEYS_MAX)
            request = msgspec.structs.replace(request, keys=keys, filter=None)
            if not keys:
                return ActionReport(message="no key matches any more")
        report = await action(request)
        if name == "plan" or isinstance(report.result, Preview) or not request.controller:
            return report
        return await self._recorded(name, request, report)

    async def _resync(self, request: Request) -> ActionReport:
        name = request.controller
        daemons = await self._fleet.daemons()
        answers = await daemons.resync(name, request.keys)
        count = sum(answer.queued for answer in answers)
        daemon_names = ", ".join(str(answer.daemon) for answer in answers if answer.queued)
        place = f" in {daemon_names}" if daemon_names else ""
        message = f"{count} key{'' if count == 1 else 's'} of {name} queued{place}"
        return _reported(Acted([message], list(unqueued(answers))))

    async def _pause(self, request: Request) -> ActionReport:
        duration = duration_in(request.lasts) if request.lasts else None
        pause = new_pause(reason=request.reason, duration=duration)
        if request.everything:
            return _reported(await self._fleet.pause_controller(request.controller, pause))
        return _reported(await self._fleet.pause(await self._names(request), pause))

    async def _resume(self, request: Request) -> ActionReport:
        if request.everything:
            return _reported(await self._fleet.resume_controller(request.controller))
        names = await self._names(request)
        return _reported(await self._fleet.resume(names, request.controller))

    async def _names(self, request: Request) -> list[Name]:
        if not request.keys:
            raise UsageError("name keys, or the whole controller")
        bucket = request.bucket or await self._keys.bucket_of(request.controller)
        if not bucket:
            raise in_cluster(request.controller, request.keys[0])
        return [Name(bucket, key) for key in request.keys]

    async def _edit(self, request: Request, *, restores: bool = False) -> ActionReport:
        connection = self._fleet.connection
        (name,) = await self._names(request)
        if restores:
            change = await restored(connection, name, request.revision)
        else:
            change = await edited(connection, name, request.text, request.revision)
        preview = await change.preview(connection)
        if not request.sure:
            return ActionReport(message="", result=preview)
        if preview.faults:
            raise InvalidObjectError(f"{name} does not match its schema: {preview.faults[0]}")
        return ActionReport(message=f"{name} stored at revision {await change.store_it()}")

    async def _plan(self, request: Request) -> ActionReport:
        name, planner = request.controller, self._planners.get(request.controller)
        try:
            if planner is not None:
                plan = await planner(request.keys)
            else:
                plan = await (await self._fleet.daemons()).plan_keys(name, request.keys)
        except OldDaemonError as error:
            raise OldDaemonError(
                f"{error}; natsctl console -c M:C plans with the code of the class M:C"
            ) from error
        return ActionReport(message=str(plan.summary), result=plan)

    async def _garbage(self, request: Request) -> ActionReport:
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
        removed = await daemons.apply(msgspec.structs.replace(plan, orphans=orphans))
        count = len(removed.orphans)
        return ActionReport(
            message=f"{count} {'object' if count == 1 else 'objects'} of {name} deleted",
            warnings=[f"{one.orphan.name} kept: {one.reason}" for one in removed.kept[:KEYS_MAX]],
        )

    async def _record(self, request: Request) -> ActionReport:
        name = request.controller
        daemons = await self._fleet.daemons()
        answers = await daemons.record(name, request.keys, stop=False)
        keys = sorted({key for answer in answers for key in answer.keys})[:KEYS_MAX]
        return ActionReport(message=f"{name} records every sync of {', '.join(keys)}")

    async def _recorded(self, action: str, request: Request, report: ActionReport) -> ActionReport:
        connection = self._fleet.connection
        message = f"{action} by {await identity_on(connection)} in the console: {report.message}"
        try:
            for key in request.keys or [WHOLE]:
                reason = f"Console{action.title()}"
                await record_event(connection, request.controller, key, reason, message)
        except NatsctlError as error:
            warning = f"no event names you: {problem_of(error).message}"
            return msgspec.structs.replace(report, warnings=[*report.warnings, warning])
        return msgspec.structs.replace(report, recorded=True)


def _reported(acted: Acted) -> ActionReport:
    if acted.failed and not acted.done:
        raise acted.failed[0]
    warnings = [problem_of(error).message for error in acted.failed] + acted.notes
    return ActionReport(message=", ".join(acted.done), warnings=warnings[:KEYS_MAX])
