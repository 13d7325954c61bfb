"""Runs one schedule: the script under its faults, and then the check of each property."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from natsctl.core.hosted import Hosted
from natsctl.errors import ConflictError, NotFoundError
from natsctl.jetstream.store import LEASES
from natsctl.model import documents
from natsctl.model.bookkeeping import PAUSES, controller_record
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.objects import PAUSED
from natsctl.model.store import Store
from natsctl.testing.cluster import pruned
from natsctl.testing.memory import MemoryStore, MemoryStores
from natsctl.testing.simulation.faults import Choices, Fault, Faults
from natsctl.testing.simulation.network import OWN_BUCKETS, Network, Write, place_of
from natsctl.testing.simulation.objects import StoredObjects, put, remove, store_of
from natsctl.testing.simulation.process import Division, SimulatedGroup
from natsctl.testing.simulation.properties import (
    Property,
    Result,
    StateDifference,
    ViolatedError,
    Violation,
    check_same,
    comparable,
    resources_of,
)
from natsctl.testing.simulation.script import (
    Act,
    Put,
    Remove,
    Step,
    StepAction,
    StepPause,
    editable,
    edited_fields,
    final_state,
    replaced,
)
from natsctl.testing.simulation.subject import Subject

SETTLE_S = 7200.0  # virtual time in which a controller must become idle
PAUSE_S = 60.0  # for how long a step waits for an idle controller
CALLS_MAX = 4000  # of one run, and after them the controller counts as restless
CHECKS = 3  # in a row that must find the controller idle
POLLS_MAX = 80  # rounds of requested times that may still write
QUIET_S = 60.0  # without a write, after which requested times bring no more
POLL_S_MAX = 3600.0
MADE_MAX = 1000  # primaries that syncs made, above which they do it without end
CLEAN_S = 400.0  # more than the grace period of orphans and two GC cycles
JETSTREAM = "jetstream"  # the place of streams and consumers

Check = Callable[[StoredObjects], object]


class Checks(msgspec.Struct, frozen=True):
    """The user's own properties, and the objects that the others do not compare.

    Attributes:
        always: holds after each write.
        finally_: holds at the end.
        ignored: buckets and fields that may differ between runs.
        kept: buckets and objects that stay when all primaries are deleted.
    """

    always: Check | None = None
    finally_: Check | None = None
    ignored: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class Schedule(msgspec.Struct, frozen=True):
    """All that decides a run.

    Attributes:
        seed: decides everything else, such as how long calls take.
        script: the steps of users.
        faults: the faults; None if the seed draws them.
        hurried: whether calls take no time.
        mode: whether one process does the work, or three divide it.
        storm: whether there are many faults.
    """

    seed: int
    script: tuple[Step, ...]
    faults: tuple[Fault, ...] | None = None
    hurried: bool = False
    mode: Division = Division.ALONE
    storm: bool = False


class Ran(msgspec.Struct, frozen=True):
    """The outcome of a run.

    `failed_syncs` counts those of the last process, and `opened` has the buckets and kinds that
    the controller opened.
    """

    violation: Violation | None
    result: dict[str, object]
    faults: tuple[Fault, ...]
    steps: tuple[tuple[Step, str], ...]
    writes: tuple[Write, ...]
    mode: Division = Division.ALONE
    failed_syncs: int = 0
    opened: frozenset[str] = frozenset()

    @property
    def script(self) -> tuple[str, ...]:
        """The steps that were taken, in words."""
        return tuple(
            f"{'' if step.pause is StepPause.NONE else f'{step.pause.value}: '}{done or step}"
            for step, done in self.steps
        )


class Run:
    """One run of a subject."""

    def __init__(self, subject: Subject, checks: Checks, schedule: Schedule) -> None:
        self._subject, self._checks, self._schedule = subject, checks, schedule
        choices, group = Choices(schedule.seed), schedule.mode is not Division.ALONE
        self._faults = Faults(choices, schedule.faults, group=group, storm=schedule.storm)
        self._network = network = Network(
            choices, self._faults, hurried=schedule.hurried, calls_max=2 * CALLS_MAX
        )
        self._stores = stores = MemoryStores()
        self._objects = StoredObjects(stores)
        self._group = SimulatedGroup(
            subject.name, subject.make, network, stores, seed=schedule.seed, mode=schedule.mode
        )
        self._steps: list[tuple[Step, str]] = []  # each with its effect by hand
        self._edited: set[str] = set()  # by hand, and not written by the controller since
        self._broken: ViolatedError | None = None
        self._resuming: list[asyncio.Task[None]] = []
        network.on_overlap = lambda text: self._break(Property.EXCLUSIVE, text)
        if checks.always is not None:
            network.on_write = self._check_always

    async def run(self, expected: Result | None) -> Ran:
        """Run the schedule; compare with the *expected* result, unless it is None."""
        running = asyncio.get_running_loop().create_task(self._group.run())
        violation = None
        result: dict[str, object] = {}
        try:
            for step in self._schedule.script:
                if step.pause is StepPause.SHORT:
                    await asyncio.sleep(0.01)
                elif step.pause is StepPause.IDLE:
                    await self._wait_idle(PAUSE_S)
                self._check_broken()
                self._steps.append((step, await self._take(step)))
            await self._wait_idle(PAUSE_S)
            await asyncio.gather(*self._resuming)
            self._faults.over = True
            await self._settle()
            result = self._result()
            if expected is not None:
                check_same(result, expected)
            await self._check_quiet()
            self._check(Property.FINALLY, self._checks.finally_)
            self._check_broken()
            await self._check_clean()
        except ViolatedError as error:
            violation = error.violation
        finally:
            self._faults.over = True
            failed_syncs = sum(c.status().failures for c in self._hosted if c.host.informers)
            self._group.stop()
            for task in self._resuming:
                task.cancel()
            await running
        return Ran(
            violation,
            result,
            tuple(self._faults.happened),
            tuple(self._steps),
            tuple(self._network.writes),
            self._schedule.mode,
            failed_syncs,
            frozenset(self._network.opened),
        )

    @property
    def _hosted(self) -> list[Hosted]:
        return [life.hosted for life in self._group.working if life.hosted is not None]

    # ---- the steps of users and administrators

    async def _take(self, step: Step) -> str:
        """Take a step; return its effect by hand, empty if there is none."""
        match step:
            case Put(desired=desired):
                await put(self._stores, desired)
            case Remove(kind=kind, key=key):
                await remove(self._stores, kind, key)
            case Act(action=StepAction.REMOVE | StepAction.EDIT):
                return await self._by_hand(step.number, edit=step.action is StepAction.EDIT)
            case Act(action=StepAction.RESYNC):
                await self._wait_idle(PAUSE_S)
                self._resync()
            case Act(action=StepAction.WAIT):
                await asyncio.sleep(step.seconds)
            case _:
                return await self._administrate(step)
        return ""

    async def _administrate(self, step: Act) -> str:
        """Act as an administrator; return what was done in words, empty if there was nothing."""
        number, done = step.number, str(step)
        self._network.active_at = asyncio.get_running_loop().time()
        match step.action:
            case StepAction.STOP:
                process = self._group.processes[number % len(self._group.processes)]
                if process.life.program is not None and not process.life.crashed:
                    process.life.program.stop()  # it starts again when its syncs have ended
                done = f"stop {process.name}, which starts again"
            case StepAction.RELIST:
                done = self._break_watches(number)
            case StepAction.LEASES:
                self._stores.store(LEASES).recreate()
            case StepAction.LEASE:
                leases = self._stores.store(LEASES)
                key = _chosen(leases.keys(), number)
                done = f"delete {LEASES.bucket}/{key}" if key else ""
                if key:
                    await leases.delete(key)
            case StepAction.PAUSE_ALL:
                await self._pause_all(b"true")
                self._later(step.seconds, lambda: self._pause_all(b"false"))
            case _:
                kind = self._subject.primaries[0]
                key = "" if kind.plain else _chosen(self._keys(kind), number)
                if not key or not await self._annotate(kind, key, "true"):
                    return ""
                self._later(step.seconds, lambda: self._resume(kind, key))
                done = f"pause {place_of(kind)}/{key} for {step.seconds:g} s"
        return done

    def _break_watches(self, number: int) -> str:
        """Break the watches of a store: what they have seen may stay, or get other names."""
        kinds = (*self._subject.kinds, LEASES)
        way, which = divmod(number, len(kinds))
        store, done = store_of(self._stores, kinds[which]), ""
        if isinstance(store, MemoryStore) and way % 2:
            store.turn_back_clock()
            done = ", set its clock back"
        if isinstance(store, MemoryStore) and way % 3:
            store.rename()
            done += ", and rename its subjects"
        else:
            store.break_watches()
        return f"break the watches of {place_of(kinds[which])}{done}"

    def _later(self, seconds: float, action: Callable[[], Awaitable[object]]) -> None:
        async def act() -> None:
            await asyncio.sleep(seconds)
            await action()

        self._resuming.append(asyncio.get_running_loop().create_task(act()))

    async def _pause_all(self, paused: bytes) -> None:
        records, key = self._stores.store(PAUSES), controller_record(self._subject.name)
        try:
            await records.create(key, paused)
        except ConflictError:
            await _changed(records, key, lambda _: paused)

    async def _annotate(self, kind: Kind[Any], key: str, text: str | None) -> bool:
        """Pause an object, or resume it with None; return whether it was there."""
        annotation: Document = {"metadata": {"annotations": {PAUSED: text}}}

        def annotated(value: bytes) -> bytes:
            return documents.render(documents.merge_patch(documents.parse(value), annotation))

        return await _changed(store_of(self._stores, kind), key, annotated)

    async def _resume(self, kind: Kind[Any], key: str) -> None:
        """Resume an object; a purge resumes the cleanup of one that was deleted meanwhile."""
        if not await self._annotate(kind, key, None) and isinstance(kind, KvKind):
            await store_of(self._stores, kind).delete(key, purge=True)

    async def _by_hand(self, number: int, *, edit: bool) -> str:
        """Delete a secondary or edit one of its fields; return the action as text.

        `always` isn't checked until the controller has written an edited object.
        """
        present = [(kind, key) for kind in self._subject.touched for key in self._keys(kind)]
        if not present:
            return ""
        kind, key = present[number % len(present)]
        store, name = store_of(self._stores, kind), f"{place_of(kind)}/{key}"
        with suppress(ConflictError, NotFoundError):  # the controller was faster
            if not edit:
                await store.delete(key)
                return f"delete {name} by hand"
            before = await store.get(key)
            document = documents.parse(before.value)
            if fields := edited_fields(editable(document)):
                path, value = fields[number % len(fields)]
                edited = documents.render(replaced(document, path, value))
                if kind.valid(edited):
                    await store.update(key, edited, revision=before.revision)
                    self._edited.add(name)
                    return f"edit {'.'.join(path)} of {name} by hand"
        return ""

    def _resync(self) -> None:
        """Sync every key again; a controller that cannot do that starts again."""
        for process in () if self._subject.modes else self._group.processes:
            process.life.crash(0.0)
        for hosted in self._hosted:
            if hosted.synced.is_set() and not hosted.host.stopping:
                hosted.resync()

    # ---- the wait for an idle controller

    async def _settle(self) -> None:
        """Wait until the controller is idle, and requested times bring no more writes."""
        quiet_s = 0.0
        for _ in range(POLLS_MAX):
            if not await self._wait_idle(SETTLE_S):
                self._never_settles()
            keys = [key for kind in self._subject.primaries for key in self._keys(kind)]
            requested = [s for life in self._group.working for s in life.requested_s(keys)]
            if not requested or quiet_s > QUIET_S:
                return
            before = self._network.writes_count
            wait_s = min(max(requested), POLL_S_MAX) + 0.01
            await asyncio.sleep(wait_s)
            quiet_s = quiet_s + wait_s if self._network.writes_count == before else 0.0

    async def _wait_idle(self, limit_s: float) -> bool:
        """Wait until the controller is idle; return False if it is not within the time.

        A jump of the time does not count.
        """
        waited_s, quiet = 0.0, 0
        while quiet < CHECKS:
            self._check_broken()
            if not self._network.pending and self._group.idle and self._stores.delivered:
                quiet += 1
                await asyncio.sleep(0)
                continue
            quiet = 0
            if waited_s > limit_s or self._network.calls > CALLS_MAX:
                return False
            pause_s = 0.01 + waited_s / 2
            await asyncio.sleep(pause_s)
            waited_s += pause_s
        return True

    def _never_settles(self) -> None:
        failing = {
            key: text
            for hosted in self._hosted
            if hosted.host.informers
            for key, text in hosted.status().failing.items()
        }
        keys = {key for kind in self._subject.primaries for key in self._keys(kind)}
        made = len(keys) - len(final_state(step for step, _ in self._steps))
        detail = "keys are synced again and again"
        difference = None
        if made > MADE_MAX:
            difference = StateDifference.GROWS
            detail = f"syncs made {made:,} primaries, and make more"
        elif failing:
            key, error = next(iter(failing.items()))
            state, difference = "still fails", StateDifference.FAILS
            state = state if key in keys else "fails after its deletion"
            detail = f"{key} {state}: {error}"
        elif self._group.failure:
            difference = StateDifference.ENDED
            detail = f"the controller does not run: {self._group.failure}"
        raise ViolatedError(Property.SETTLES, detail, difference)

    # ---- the properties

    async def _check_quiet(self) -> None:
        count = await self._writes_of_resync()
        if count:
            first = " ".join(str(self._network.writes[-count:][0]).split()[2:])
            once = not await self._writes_of_resync()
            difference = StateDifference.LATE if once else None
            raise ViolatedError(Property.QUIET, f"one more resync wrote: {first}", difference)

    async def _writes_of_resync(self) -> int:
        before = self._network.writes_count
        self._resync()
        await self._settle()
        return self._network.writes_count - before

    async def _check_clean(self) -> None:
        for kind in self._subject.primaries:
            for key in self._keys(kind):
                await remove(self._stores, kind, key)
        if not self._subject.cleans:
            return
        kept = self._checks.kept
        clock = asyncio.get_running_loop().time
        deadline = clock() + CLEAN_S
        while True:
            await self._settle()
            left = [name for place, name in self._left() if not {place, name} & {*kept}]
            if not left:
                return
            if clock() > deadline:
                detail = f"left after all primaries were deleted: {', '.join(left[:3])}"
                raise ViolatedError(Property.CLEAN, detail)
            await asyncio.sleep(10)

    def _result(self) -> dict[str, object]:
        """Return what the controller made, to compare with another run."""
        result: dict[str, object] = {}
        ignored = self._checks.ignored
        for kind in self._made:
            place = place_of(kind)
            if place in ignored:
                continue
            paths = [tuple(path.split(".")[1:]) for path in ignored if path.startswith(f"{place}.")]
            for key, value in self._objects.values(kind).items():
                shown = comparable(kind, value)
                for path in paths:
                    if isinstance(shown, dict):
                        shown = pruned(shown, path)
                result[f"{place}/{key}"] = shown
        for name, state in self._network.externals.items():
            if name not in ignored:
                result |= resources_of(name, state)
        if JETSTREAM not in ignored:
            assets = self._stores.jetstream.configurations()
            result |= {f"{JETSTREAM}/{name}": config for name, config in assets.items()}
        return result

    def _left(self) -> Iterator[tuple[str, str]]:
        """Yield the places and names of all primaries, and of the objects that go with them."""
        for kind in (*self._subject.primaries, *self._made):
            for key in self._keys(kind):
                yield place_of(kind), f"{place_of(kind)}/{key}"
        for name, state in self._network.externals.items():
            for resource in state.resources:
                yield name, f"{name}/{resource}"
        for asset in self._stores.jetstream.configurations():
            yield JETSTREAM, f"{JETSTREAM}/{asset}"

    @property
    def _made(self) -> Sequence[Kind[Any]]:
        if self._subject.made is not None:
            return self._subject.made
        given = (step.desired.kind for step in self._schedule.script if isinstance(step, Put))
        places = {*map(place_of, (*self._subject.kinds, *given)), *OWN_BUCKETS}
        opened = sorted(self._network.opened.items())
        return [kind for place, kind in opened if place not in places]

    def _keys(self, kind: Kind[Any]) -> list[str]:
        return store_of(self._stores, kind).keys()

    def _check_always(self, write: Write) -> None:
        self._edited.discard(write.target)
        if self._broken is None and not self._edited:
            self._check(Property.ALWAYS, self._checks.always)

    def _check(self, property_: Property, check: Check | None) -> None:
        """Note why the user's check fails, if it does."""
        if check is None:
            return
        name = getattr(check, "__name__", "the check")
        try:
            if check(self._objects) is False:
                self._break(property_, f"{name} returned False")
        except AssertionError as error:
            self._break(property_, f"{name}: {error}" if str(error) else f"{name} failed")

    def _break(self, property_: Property, text: str) -> None:
        self._broken = self._broken or ViolatedError(property_, text)

    def _check_broken(self) -> None:
        if self._broken is not None:
            raise self._broken


async def _changed(store: Store, key: str, change: Callable[[bytes], bytes]) -> bool:
    """Change the value of an object, whoever else writes it; return whether it was there."""
    while True:
        try:
            stored = await store.get(key)
            await store.update(key, change(stored.value), revision=stored.revision)
        except ConflictError:
            continue
        except NotFoundError:
            return False
        return True


def _chosen(keys: Sequence[str], number: int) -> str:
    return keys[number % len(keys)] if keys else ""
