"""Runs one schedule: the script under its faults, and then the check of each property."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from natsctl.errors import ConflictError, NotFoundError
from natsctl.jetstream.store import LEASES
from natsctl.model import documents
from natsctl.model.bookkeeping import PAUSES, controller_record
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.objects import PAUSED
from natsctl.model.store import Store
from natsctl.testing.memory import MemoryStore, MemoryStores
from natsctl.testing.simulation.objects import Desired, StoredObjects, put, remove, store_of
from natsctl.testing.simulation.properties import (
    Made,
    Property,
    Result,
    StateDifference,
    Violation,
    compare,
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
from natsctl.testing.simulation.subject import HostedProgram, Subject
from natsctl.testing.simulation.world.faults import Choices, Fault, Faults
from natsctl.testing.simulation.world.network import Network, Write
from natsctl.testing.simulation.world.process import Division, SimulatedGroup
from natsctl.testing.simulation.world.stores import place_of

SETTLE_S = 7200.0  # virtual time in which a controller must become idle
PAUSE_S = 60.0  # for how long a step waits for an idle controller
CALLS_MAX = 4000  # of one run, and after them the controller counts as restless
CHECKS = 3  # in a row that must find the controller idle
POLLS_MAX = 80  # rounds of requested times that may still write
QUIET_S = 60.0  # without a write, after which requested times bring no more
POLL_S_MAX = 3600.0
MADE_MAX = 1000  # primaries that syncs made, above which they do it without end
CLEAN_S = 400.0  # more than the grace period of orphans and two GC cycles

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
        return tuple(_described(step, done) for step, done in self.steps)


class ViolatedError(Exception):
    """Ends a run whose property is violated."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.detail)
        self.violation = violation


class Run:
    """One run of a subject."""

    def __init__(self, subject: Subject, checks: Checks, schedule: Schedule) -> None:
        self._subject = subject
        self._checks = checks
        self._schedule = schedule
        choices, group = Choices(schedule.seed), schedule.mode is not Division.ALONE
        self._faults = Faults(choices, schedule.faults, group=group, storm=schedule.storm)
        self._network = Network(
            choices, self._faults, hurried=schedule.hurried, calls_max=2 * CALLS_MAX
        )
        self._stores = MemoryStores()
        self._objects = StoredObjects(self._stores)
        self._group = SimulatedGroup(
            subject.name,
            subject.make,
            self._network,
            self._stores,
            seed=schedule.seed,
            mode=schedule.mode,
        )
        given = {place_of(step.desired.kind) for step in schedule.script if isinstance(step, Put)}
        self._made = Made(subject, self._network, self._stores, checks.ignored, checks.kept, given)
        self._steps: list[tuple[Step, str]] = []  # each with its effect by hand
        self._edited: set[str] = set()  # by hand, and not written by the controller since
        self._broken: Violation | None = None
        self._failed_syncs = 0
        self._resuming: list[asyncio.Task[None]] = []
        self._network.on_overlap = self._overlaps
        if checks.always is not None:
            self._network.on_write = self._check_always

    async def run(self, expected: Result | None) -> Ran:
        """Run the schedule; compare with the *expected* result, unless it is None."""
        running = asyncio.get_running_loop().create_task(self._group.run())
        violation = None
        result: dict[str, object] = {}
        try:
            for step in self._schedule.script:
                await self._pause(step.pause)
                await self._take(step)
            await self._wait_idle(PAUSE_S)
            await asyncio.gather(*self._resuming)
            self._faults.over = True
            await self._settle()
            result = self._made.result()
            if expected is not None:
                _raise(compare(result, expected))
            await self._check_quiet()
            self._check_finally()
            await self._check_clean()
        except ViolatedError as error:
            violation = error.violation
        finally:
            self._faults.over = True
            self._failed_syncs = sum(program.failed_syncs for program in self._hosted)
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
            self._failed_syncs,
            frozenset(self._network.opened),
        )

    @property
    def _hosted(self) -> list[HostedProgram]:
        return [p for p in self._group.programs if isinstance(p, HostedProgram)]

    def _overlaps(self, text: str) -> None:
        self._broken = self._broken or Violation(Property.EXCLUSIVE, text)

    async def _take(self, step: Step) -> None:
        done = ""
        match step:
            case Put(desired=desired):
                await put(self._stores, desired)
            case Remove(kind=kind, key=key):
                await remove(self._stores, kind, key)
            case Act(action=StepAction.REMOVE | StepAction.EDIT, number=number):
                done = await self._by_hand(number, edit=step.action is StepAction.EDIT)
            case Act(action=StepAction.RESYNC):
                await self._wait_idle(PAUSE_S)
                self._resync()
            case Act(action=StepAction.WAIT, seconds=seconds):
                await asyncio.sleep(seconds)
            case _:
                done = await self._administrate(step)
        self._steps.append((step, done))

    async def _administrate(self, step: Act) -> str:
        """Act as an administrator; return what was done in words, empty if there was nothing."""
        number, done = step.number, str(step)
        self._network.active_at = asyncio.get_running_loop().time()
        match step.action:
            case StepAction.STOP:
                process = self._group.processes[number % len(self._group.processes)]
                if process.program is not None:
                    process.program.stop()  # it starts again when its syncs have ended
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
                await self._pause_all(paused=True)
                self._later(step.seconds, lambda: self._pause_all(paused=False))
            case StepAction.PAUSE:
                kind = self._subject.primaries[0]
                key = "" if kind.plain else _chosen(self._keys(kind), number)
                if not key or not await self._annotate(kind, key, "true"):
                    return ""
                self._later(step.seconds, lambda: self._resume(kind, key))
                done = f"pause {place_of(kind)}/{key} for {step.seconds:g} s"
            case _:
                pass
        return done

    def _break_watches(self, number: int) -> str:
        """Break the watches of a store: what they have seen may stay, or get other names."""
        kinds = (*self._subject.kinds, LEASES)
        way, which = divmod(number, len(kinds))
        store, place = store_of(self._stores, kinds[which]), place_of(kinds[which])
        done = f"break the watches of {place}"
        if isinstance(store, MemoryStore) and way % 2:
            store.turn_back_clock()
            done += ", set its clock back"
        if isinstance(store, MemoryStore) and way % 3:
            store.rename()
            return f"{done}, and rename its subjects"
        store.break_watches()
        return done

    def _later(self, seconds: float, action: Callable[[], Awaitable[object]]) -> None:
        async def act() -> None:
            await asyncio.sleep(seconds)
            await action()

        self._resuming.append(asyncio.get_running_loop().create_task(act()))

    async def _pause_all(self, *, paused: bool) -> None:
        records, key = self._stores.store(PAUSES), controller_record(self._subject.name)
        text = b"true" if paused else b"false"
        with suppress(ConflictError):
            await records.create(key, text)
            return
        await _changed(records, key, lambda _: text)

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
        """Delete or edit one secondary; return the action as text, empty if there was none."""
        present = [(kind, key) for kind in self._subject.touched for key in self._keys(kind)]
        if not present:
            return ""
        kind, key = present[number % len(present)]
        try:
            if edit:
                return await self._edit_by_hand(kind, key, number)
            await store_of(self._stores, kind).delete(key)
        except (ConflictError, NotFoundError):
            return ""  # the controller was faster
        return f"delete {place_of(kind)}/{key} by hand"

    async def _edit_by_hand(self, kind: Kind[Any], key: str, number: int) -> str:
        """Edit one field; `always` is not checked until the controller has written the object."""
        store = store_of(self._stores, kind)
        before = await store.get(key)
        document = documents.parse(before.value)
        fields = edited_fields(editable(document))
        if not fields:
            return ""
        path, value = fields[number % len(fields)]
        edited = documents.render(replaced(document, path, value))
        if not kind.valid(edited):
            return ""
        await store.update(key, edited, revision=before.revision)
        name = f"{place_of(kind)}/{key}"
        self._edited.add(name)
        return f"edit {'.'.join(path)} of {name} by hand"

    async def _pause(self, pause: StepPause) -> None:
        match pause:
            case StepPause.NONE:
                pass
            case StepPause.SHORT:
                await asyncio.sleep(0.01)
            case StepPause.IDLE:
                await self._wait_idle(PAUSE_S)
        _raise(self._broken)

    async def _settle(self) -> None:
        """Wait until the controller is idle, and requested times bring no more writes."""
        quiet_s = 0.0
        for _ in range(POLLS_MAX):
            if not await self._wait_idle(SETTLE_S):
                raise ViolatedError(self._never_settles())
            requested_s = self._requested_s()
            if requested_s is None or quiet_s > QUIET_S:
                return
            before, wait_s = self._network.writes_count, min(requested_s, POLL_S_MAX) + 0.01
            await asyncio.sleep(wait_s)
            quiet_s = quiet_s + wait_s if self._network.writes_count == before else 0.0

    async def _wait_idle(self, limit_s: float) -> bool:
        """Wait until the controller is idle; return False if it is not within the time.

        A jump of the time does not count.
        """
        waited_s, quiet = 0.0, 0
        while quiet < CHECKS:
            _raise(self._broken)
            if self._idle:
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

    @property
    def _idle(self) -> bool:
        return not self._network.pending and self._group.idle and self._stores.delivered

    def _resync(self) -> None:
        """Sync every key again; a program that cannot do that starts again."""
        if not self._subject.modes:
            self._group.restart()
        for program in self._hosted:
            program.resync()

    def _requested_s(self) -> float | None:
        keys = [key for kind in self._subject.primaries for key in self._keys(kind)]
        requested = [program.requested_s(keys) for program in self._hosted]
        return max((s for s in requested if s is not None), default=None)

    def _keys(self, kind: Kind[Any]) -> list[str]:
        return store_of(self._stores, kind).keys()

    def _never_settles(self) -> Violation:
        failing = {key: text for p in self._hosted for key, text in p.failing.items()}
        keys = {key for kind in self._subject.primaries for key in self._keys(kind)}
        made = len(keys) - len(final_state(step for step, _ in self._steps))
        detail, difference = "keys are synced again and again", None
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
        return Violation(Property.SETTLES, detail, difference)

    async def _check_quiet(self) -> None:
        count = await self._writes_of_resync()
        if count:
            writes = [_short(write) for write in self._last_writes(count)]
            once = not await self._writes_of_resync()
            difference = StateDifference.LATE if once else None
            detail = f"one more resync wrote: {writes[0]}"
            raise ViolatedError(Violation(Property.QUIET, detail, difference))

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
        clock = asyncio.get_running_loop().time
        deadline = clock() + CLEAN_S
        while True:
            await self._settle()
            leftovers = self._made.left()
            if not leftovers:
                return
            if clock() > deadline:
                detail = f"left after all primaries were deleted: {', '.join(leftovers[:3])}"
                raise ViolatedError(Violation(Property.CLEAN, detail))
            await asyncio.sleep(10)

    def _last_writes(self, count: int) -> Sequence[Write]:
        return self._network.writes[-count:]

    def _check_always(self, write: Write) -> None:
        self._edited.discard(write.target)
        if self._broken is None and not self._edited:
            text = self._failed(self._checks.always)
            if text:
                self._broken = Violation(Property.ALWAYS, text)

    def _check_finally(self) -> None:
        text = self._failed(self._checks.finally_)
        if text:
            raise ViolatedError(Violation(Property.FINALLY, text))

    def _failed(self, check: Check | None) -> str:
        """Return why the user's check fails; empty if it holds."""
        if check is None:
            return ""
        name = getattr(check, "__name__", "the check")
        try:
            holds = check(self._objects)
        except AssertionError as error:
            return f"{name}: {error}" if str(error) else f"{name} failed"
        return f"{name} returned False" if holds is False else ""


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


def known_state(final: Sequence[Desired]) -> tuple[tuple[str, str, bytes], ...]:
    """Return a value that is equal for equal final states."""
    return tuple(sorted((*state.name, documents.render(state.document)) for state in final))


def _described(step: Step, done: str) -> str:
    pause = "" if step.pause is StepPause.NONE else f"{step.pause.value}: "
    return f"{pause}{done or step}"


def _short(write: Write) -> str:
    return " ".join(str(write).split()[2:])


def _raise(violation: Violation | None) -> None:
    if violation is not None:
        raise ViolatedError(violation)
