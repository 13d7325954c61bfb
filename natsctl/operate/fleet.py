"""One operator's client of the daemons and buckets of a NATS system."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any

import msgspec

from natsctl.core.task_group import for_each
from natsctl.daemon.client import NO_DAEMON, Daemons
from natsctl.daemon.messages import ControllerPlan, KeyPlans, Queuing, Recorded, Verb
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import (
    NatsctlError,
    NoDaemonError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
    UsageError,
)
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.events import KvEvent, events_between
from natsctl.jetstream.options import NatsOptions
from natsctl.model.keys import matches
from natsctl.model.pause import Pause
from natsctl.model.plans import Plan
from natsctl.model.reports import MISSING, Branch, PrimarySource
from natsctl.operate import pauses
from natsctl.operate.buckets import existing_bucket
from natsctl.operate.objects import Name
from natsctl.operate.statuses import (
    ControllerStatuses,
    Description,
    absent_statuses,
    combined,
    described_by_nats,
    known_controllers,
    reports_of,
    stored_description,
)

FRESH_S = 2.0  # an older list of daemons is read again in the background
STALE_S = 10.0  # an older list of daemons is not used
ASKED_MAX = 1_000  # newly failing keys of a plan that the daemons are asked about
ASKED_AT_ONCE = 20


class Statuses(msgspec.Struct, frozen=True):
    """What is known of each controller; those that no daemon runs come first.

    `unknown` is why it isn't known whether there are controllers that no daemon runs; empty if it
    is.
    """

    controllers: list[ControllerStatuses]
    unknown: str = ""


class Acted(msgspec.Struct, frozen=True):
    """A line for each thing that an action did, the errors of the others, and what else to know."""

    done: list[str] = []
    failed: list[NatsctlError] = []
    notes: list[str] = []


class NoGarbageError(UsageError):
    """Raised if no running controller can have garbage."""


@asynccontextmanager
async def open_fleet(options: NatsOptions) -> AsyncIterator["Fleet"]:
    """Connect, and yield a client; raises as `connect` does."""
    async with connect(options) as connection:
        fleet = Fleet(connection)
        try:
            yield fleet
        finally:
            await fleet.close()


class Fleet:
    """The daemons and buckets that a user's NATS credentials reach.

    Requests to daemons raise `NoDaemonError` if none runs, and as the methods of `Daemons` do. The
    list of daemons may be `STALE_S` old. What NATS knows is answered without a daemon.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._daemons: Daemons | None = None
        self._as_of = 0.0
        self._search: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End a search for daemons that is under way."""
        if self._search is not None:
            self._search.cancel()
            await asyncio.wait((self._search,))

    # ---- daemons

    async def daemons(self) -> Daemons:
        """Return the daemons that run; raises as `Daemons.find` does."""
        age_s = asyncio.get_running_loop().time() - self._as_of
        if self._daemons is None or age_s > STALE_S:
            await asyncio.shield(self._searching())
        elif age_s > FRESH_S:
            self._searching()
        if self._daemons is None:
            raise NoDaemonError(NO_DAEMON)
        return self._daemons

    async def any_daemons(self) -> Daemons:
        """Return the daemons that run, perhaps none."""
        try:
            return await self.daemons()
        except NoDaemonError:
            return Daemons(self.connection, ())

    def _searching(self) -> "asyncio.Task[None]":
        async def find() -> None:
            try:
                self._daemons = await Daemons.find(self.connection)
            except NoDaemonError:
                self._daemons = None
            self._as_of = asyncio.get_running_loop().time()

        if self._search is None or self._search.done():
            self._search = asyncio.create_task(find(), name="daemons")
            self._search.add_done_callback(retrieved)
        return self._search

    # ---- controllers

    async def controller_with(self, name: Name, named: str | None = None) -> str:
        """Return the running controller that syncs an object: the *named* one, or the only one.

        A controller that doesn't say where its primaries are, such as one that starts, is asked for
        the key. Raises `NotFoundError` if no controller has the object, and `UsageError` if several
        do.
        """
        daemons = await self.daemons()
        asked = daemons.controllers if named is None else [daemons.controller(named)]
        sources = await daemons.sources(asked)
        matching = [one for one in asked if any(holds(source, name) for source in sources[one])]
        unknown = [one for one in asked if not sources[one]]
        if len(asked) > 1 and len(matching) != 1:
            matching = await daemons.controllers_with(name.key, matching or unknown)
        elif not matching:
            matching = unknown
        if not matching:
            known = {one: ", ".join(at.bucket or at.kind for at in sources[one]) for one in asked}
            places = ", ".join(f"{one} (of {at or 'unknown'})" for one, at in known.items())
            raise NotFoundError(f"no controller has {name}: there are {places}")
        return _only(matching, f"several controllers have {name}")

    async def _by_controller(
        self, names: Sequence[Name], named: str | None, failed: list[NatsctlError]
    ) -> dict[str, list[str]]:
        """Return the keys by controller, each once; without names none of the controller."""
        if not names:
            return {(await self.daemons()).controller(named): []}
        by_controller = defaultdict[str, dict[str, None]](dict)
        for name in names:
            try:
                chosen = await self.controller_with(name, named)
            except NotFoundError as error:
                failed.append(error)
            else:
                by_controller[chosen][name.key] = None
        return {chosen: list(keys) for chosen, keys in by_controller.items()}

    # ---- what is known

    async def statuses(self, name: str | None = None) -> Statuses:
        """Return what is known of all controllers, or of the one with this *name*.

        Raises `NoDaemonError` if there's neither a daemon nor a trace of a controller, and
        `NotFoundError` if there's no controller of this name.
        """
        daemons = await self.any_daemons()
        running, unknown = daemons.controllers, ""
        try:
            known = await known_controllers(self.connection)
        except StoreError as error:
            if not running and not isinstance(error, PermissionDeniedError):
                raise
            known, unknown = {}, str(error)
        if not running and not known:
            raise NoDaemonError(NO_DAEMON)
        if name is not None:
            names = sorted({*known, *running})
            if name not in names:
                advice = did_you_mean(name, names) or f": there are {', '.join(names)}"
                raise NotFoundError(f"no controller {name} exists{advice}")
            known = {name: known[name]} if name in known else {}
        absent = absent_statuses(known, running)
        asked = [one for one in running if name in (None, one)]
        if len(running) == 1:  # then its error is the answer
            present = [combined(one, await daemons.status(one)) for one in asked]
        else:
            present = await asyncio.gather(*(reports_of(daemons, one) for one in asked))
        return Statuses([*absent, *present], unknown)

    async def describe(self, name: Name, controller: str | None = None) -> list[Description]:
        """Return what each daemon knows about a key; without one, what NATS knows.

        An object that no controller syncs has one description, of what its bucket has. Raises
        `NotFoundError` if nothing is known about the key.
        """
        try:
            chosen = await self.controller_with(name, controller)
            daemons = await self.daemons()
            answers = await daemons.explain(chosen, name.key)
            explanations = [answer for answer in answers if answer.present or answer.past]
            if not explanations:
                raise NotFoundError(f"{chosen} has no {name}, and no sync or event of it")  # noqa: TRY301 - as if no daemon knew it
        except (NoDaemonError, NotFoundError):
            found = await self._described_by_nats(name, controller)
            if found:
                return found
            raise
        tree: Branch | None = None
        with suppress(NatsctlError):
            tree = await daemons.tree(chosen, name.key)
        shown = None if tree is None or (tree.ready == MISSING and not tree.branches) else tree
        return [Description(**msgspec.structs.asdict(one), tree=shown) for one in explanations]

    async def _described_by_nats(self, name: Name, controller: str | None) -> list[Description]:
        running = (await self.any_daemons()).controllers
        with suppress(PermissionDeniedError):
            known = await known_controllers(self.connection)
            down = {one: known[one] for one in known if one not in running}
            found = await described_by_nats(
                self.connection, down, name.key, lambda at: holds(at, name), controller
            )
            if found:
                return found
        if controller is not None:
            return []
        try:
            bucket = await existing_bucket(self.connection, name.bucket)
        except StoreMissingError:
            return []
        stored = await stored_description(self.connection, bucket.name, name.key)
        if not stored.exists and not running:
            raise NotFoundError(f"{bucket.name} has no {name.key}")
        return [stored] if stored.exists else []

    # ---- choosing keys

    async def failing(self, controller: str | None = None) -> list[Name]:
        """Return the failing keys that statuses name, of all controllers or one.

        A key that several places of a controller may have is named by each of them.
        """
        found = (await self.statuses(controller)).controllers
        names = [
            Name(place.bucket or place.kind, key)
            for report in found
            for status in report.working
            for key in status.failing
            for place in report.row.sources
            if matches(place.keys, key)
        ]
        return list(dict.fromkeys(names))

    async def events(
        self,
        *,
        name: Name | None = None,
        controller: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[KvEvent]:
        """Return the events of all keys or of one; the stream keeps them for a day.

        Raises as `events_between` does.
        """
        if name is not None and controller is None:
            with suppress(NatsctlError):  # without a daemon, of any controller with such a key
                controller = await self.controller_with(name)
        key = name.key if name else ">"
        return await events_between(self.connection, controller or "*", key, since, until)

    # ---- actions

    async def resync(self, names: Sequence[Name], controller: str | None = None) -> Acted:
        """Enqueue these keys, or all primaries of a controller, without waiting for the syncs."""
        acted = Acted()
        for chosen, keys in (await self._by_controller(names, controller, acted.failed)).items():
            answers = await (await self.daemons()).resync(chosen, keys)
            for answer in answers:
                if answer.queued or not keys:
                    count = "1 key" if answer.queued == 1 else f"{answer.queued} keys"
                    acted.done.append(f"{count} of {chosen} queued in {answer.daemon}")
            acted.failed.extend(unqueued(answers))
        return acted

    async def pause(self, names: Sequence[Name], pause: Pause) -> Acted:
        """Pause objects, by their annotation; a pause that they have is replaced."""

        async def pause_one(name: Name) -> str:
            await pauses.pause_object(self.connection, name.bucket, name.key, pause)
            return f"{name} paused{_end(pause)}"

        return await self._for_each(names, pause_one)

    async def resume(self, names: Sequence[Name], controller: str | None = None) -> Acted:
        """Resume objects, also those that were deleted while they were paused."""
        whole: dict[str, None] = {}

        async def resume_one(name: Name) -> str:
            places = {} if controller else await self._sources()
            controllers = [one for one in places if any(holds(at, name) for at in places[one])]
            ended = await pauses.resume_object(self.connection, name.bucket, name.key)
            if ended.pause is None and not ended.exists:
                raise NotFoundError(f"{name.bucket} has no {name.key}")
            for one in [controller] if controller else controllers:
                if await pauses.paused_controller(self.connection, one) is not None:
                    whole[one] = None
            if ended.pause is None:
                return f"{name} is not paused"
            return f"{name} resumed{'' if ended.exists else ', without an object'}"

        acted = await self._for_each(names, resume_one)
        notes = [f"controller {one} is paused: natsctl resume --all -c {one}" for one in whole]
        return msgspec.structs.replace(acted, notes=notes)

    async def _for_each(
        self, names: Sequence[Name], act: Callable[[Name], Awaitable[str]]
    ) -> Acted:
        acted = Acted()
        for name in names:
            try:
                try:
                    bucket = await existing_bucket(self.connection, name.bucket)
                except StoreMissingError:
                    sources = [at for places in (await self._sources()).values() for at in places]
                    if any(not at.bucket and name.within("", at.kind) for at in sources):
                        raise pauses.in_cluster(name.bucket.partition(".")[0], name.key) from None
                    raise
                acted.done.append(await act(Name(bucket.name, name.key)))
            except NatsctlError as error:
                acted.failed.append(type(error)(f"{name}: {error}"))
        return acted

    async def _sources(self) -> dict[str, list[PrimarySource]]:
        """Return where the primaries of running controllers are, none if that isn't known."""
        with suppress(NatsctlError):
            daemons = await self.daemons()
            return await daemons.sources(daemons.controllers)
        return {}

    async def pause_controller(self, controller: str | None, pause: Pause) -> Acted:
        """Pause all keys of a controller, also before a daemon runs it."""
        running = (await self.any_daemons()).controllers
        name = controller or (await self.daemons()).controller(None)
        await pauses.pause_controller(self.connection, name, pause)
        notes = [] if name in running else [f"no daemon runs {name} now"]
        return Acted([f"controller {name} paused{_end(pause)}"], notes=notes)

    async def resume_controller(self, controller: str | None) -> Acted:
        """Resume a controller that was paused as a whole."""
        name = controller or (await self.daemons()).controller(None)
        paused = await pauses.resume_controller(self.connection, name)
        return Acted([f"controller {name} {'is not paused' if paused is None else 'resumed'}"])

    # ---- plans, recordings and garbage

    async def plan(self, controller: str, names: Sequence[Name]) -> KeyPlans:
        """Return what a running controller would do for these keys, as one of its daemons plans."""
        for name in names:
            await self.controller_with(name, controller)
        daemons = await self.daemons()
        plan = await daemons.plan_keys(controller, [name.key for name in names])
        return plan.compared(await self.failing_among(plan))

    async def failing_among(self, plan: Plan) -> set[str]:
        """Return which keys that newly fail in the plan fail in a daemon, or are invalid there."""
        failing: set[str] = set()
        try:
            daemons = await self.daemons()
        except NatsctlError:  # without a daemon, its records say which keys fail
            return failing

        async def ask(key: str) -> None:
            with suppress(NatsctlError):
                for answer in await daemons.explain(plan.controller, key):
                    if answer.planned is None and (answer.invalid or answer.failures):
                        failing.add(key)

        if daemons.offers(Verb.EXPLAIN, plan.controller):
            keys = [key for key, own in plan.keys.items() if own.error and not own.failed_before]
            await for_each(list(filter(None, keys))[:ASKED_MAX], ask, workers=ASKED_AT_ONCE)
        return failing

    async def record(
        self, names: Sequence[Name], controller: str | None = None, *, stop: bool = False
    ) -> list[Recorded]:
        """Record every sync of these keys, or only failed ones again; see `Daemons.record`."""
        failed: list[NatsctlError] = []
        by_controller = await self._by_controller(names, controller, failed)
        for error in failed:
            raise error
        daemons, answers = await self.daemons(), list[Recorded]()
        for chosen, keys in by_controller.items():
            answers += await daemons.record(chosen, keys, stop=stop)
        return answers

    async def recording(
        self, name: Name, controller: str | None = None, *, masked: bool = True
    ) -> bytes:
        chosen = await self.controller_with(name, controller)
        return await (await self.daemons()).recording(chosen, name.key, masked=masked)

    async def garbage(self, controller: str | None = None) -> ControllerPlan:
        """Return the plan of garbage collection of a controller, or of the only one with garbage.

        If none has garbage, it's the plan of any. Raises `NoGarbageError` if no running controller
        makes secondaries.
        """
        daemons = await self.daemons()
        if controller is not None:
            return await daemons.plan(daemons.controller(controller))
        if not daemons.collecting:
            raise NoGarbageError("no running controller makes secondaries: there is no garbage")
        plans = await asyncio.gather(*map(daemons.plan, daemons.collecting))
        by_name = {plan.controller: plan for plan in plans}
        garbage = [plan.controller for plan in plans if plan.orphans or plan.more or plan.refused]
        names = garbage or list(by_name)[:1]
        return by_name[_only(names, "several controllers have garbage")]


def _end(pause: Pause) -> str:
    return f" until {pause.until}" if pause.until else ""


def holds(source: PrimarySource, name: Name) -> bool:
    """Return whether the place may have the object."""
    return name.within(source.bucket, source.kind) and matches(source.keys, name.key)


def _only(names: Sequence[str], ambiguity: str) -> str:
    if len(names) > 1:
        raise UsageError(f"{ambiguity}: give --controller, one of {', '.join(names)}")
    return names[0]


def unqueued(answers: Sequence[Queuing]) -> Iterator[NatsctlError]:
    """Yield the error of each requested key that none of the daemons enqueued."""
    source = next((answer.source for answer in answers if answer.source), "")
    prefix = f"{source}/" if source else ""
    for key in sorted(set.intersection(*(set(answer.unknown) for answer in answers))):
        yield NotFoundError(f"{prefix}{key} does not exist")
    invalid = {key: reason for answer in answers for key, reason in answer.invalid.items()}
    for key, reason in sorted(invalid.items()):
        yield NatsctlError(f"{prefix}{key}: {reason}")
    paused = {key: pause for answer in answers for key, pause in answer.paused.items()}
    for key, pause in sorted(paused.items()):
        yield NatsctlError(f"{prefix}{key} is paused {pause}: natsctl resume {prefix}{key}")
    for key in sorted(set.intersection(*(set(answer.elsewhere) for answer in answers))):
        yield NatsctlError(f"{prefix}{key} is moving from one daemon to another: try again")


def retrieved(task: "asyncio.Task[Any]") -> None:
    """Mark the error of a task as seen, because the next reader raises it."""
    if not task.cancelled():
        task.exception()
