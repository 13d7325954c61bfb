"""Runs one schedule: the script under its faults, and then the check of each property."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from natsctl.errors import ConflictError, NotFoundError
from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation import properties
from natsctl.testing.simulation.made import Made
from natsctl.testing.simulation.objects import Desired, StoredObjects, put, remove, store_of
from natsctl.testing.simulation.programs import HostedProgram
from natsctl.testing.simulation.properties import Property, Result, Violation
from natsctl.testing.simulation.script import (
    EditSecondary,
    Put,
    Remove,
    RemoveSecondary,
    Resync,
    Step,
    StepPause,
    Wait,
    editable,
    edited_fields,
    final_state,
    replaced,
)
from natsctl.testing.simulation.subject import Subject
from natsctl.testing.simulation.world.choices import Choices
from natsctl.testing.simulation.world.faults import Fault, drawn_faults, given_faults
from natsctl.testing.simulation.world.group import SimulatedGroup
from natsctl.testing.simulation.world.lease import SimulatedLease
from natsctl.testing.simulation.world.network import Network, Write
from natsctl.testing.simulation.world.stores import place_of

SETTLE_S = 7200.0  # virtual time in which a controller must become idle
PAUSE_S = 60.0  # for how long a step waits for an idle controller
CALLS_MAX = 4000  # of one run, and after them the controller counts as restless
CHECKS = 3  # in a row that must find the controller idle
POLLS_MAX = 80  # rounds of requested times that may still write
QUIET_S = 60.0  # without a write, after which requested times bring no more
POLL_S_MAX = 3600.0
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
        standby: whether a second process stands by.
    """

    seed: int
    script: tuple[Step, ...]
    faults: tuple[Fault, ...] | None = None
    hurried: bool = False
    standby: bool = False


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
    standby: bool = False
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
        choices = Choices(schedule.seed)
        scheduled = schedule.faults
        if scheduled is None:
            self._faults = drawn_faults(choices, standby=schedule.standby)
        else:
            self._faults = given_faults(scheduled)
        lease = SimulatedLease() if schedule.standby else None
        self._network = Network(
            choices,
            self._faults,
            hurried=schedule.hurried,
            lease=lease,
            calls_max=2 * CALLS_MAX,
        )
        self._stores = MemoryStores()
        self._objects = StoredObjects(self._stores)
        self._group = SimulatedGroup(
            subject.name, subject.make, self._network, self._stores, seed=schedule.seed
        )
        given = {place_of(step.desired.kind) for step in schedule.script if isinstance(step, Put)}
        self._made = Made(subject, self._network, self._stores, checks.ignored, checks.kept, given)
        self._steps: list[tuple[Step, str]] = []  # each with its effect by hand
        self._edited: set[str] = set()  # by hand, and not written by the controller since
        self._broken: Violation | None = None
        self._failed_syncs = 0
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
            self._faults.over = True
            await self._settle()
            result = self._made.result()
            if expected is not None:
                _raise(properties.compare(result, expected))
            await self._check_quiet()
            self._check_finally()
            await self._check_clean()
        except ViolatedError as error:
            violation = error.violation
        finally:
            self._faults.over = True
            self._count_failures()
            self._group.stop()
            await running
        return Ran(
            violation,
            result,
            tuple(self._faults.happened),
            tuple(self._steps),
            tuple(self._network.writes),
            self._schedule.standby,
            self._failed_syncs,
            frozenset(self._network.opened),
        )

    def _count_failures(self) -> None:
        program = self._group.program
        if isinstance(program, HostedProgram):
            self._failed_syncs = program.failed_syncs

    async def _take(self, step: Step) -> None:
        done = ""
        match step:
            case Put(desired=desired):
                await put(self._stores, desired)
            case Remove(kind=kind, key=key):
                await remove(self._stores, kind, key)
            case RemoveSecondary(number=number):
                done = await self._by_hand(number, edit=False)
            case EditSecondary(number=number):
                done = await self._by_hand(number, edit=True)
            case Resync():
                await self._wait_idle(PAUSE_S)
                self._resync()
            case Wait(seconds=seconds):
                await asyncio.sleep(seconds)
        self._steps.append((step, done))

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
        program = self._group.program
        if isinstance(program, HostedProgram):
            program.resync()
        else:
            self._group.restart()

    def _requested_s(self) -> float | None:
        program = self._group.program
        if not isinstance(program, HostedProgram):
            return None
        kinds = self._subject.primaries
        return program.requested_s([key for kind in kinds for key in self._keys(kind)])

    def _keys(self, kind: Kind[Any]) -> list[str]:
        return store_of(self._stores, kind).keys()

    def _never_settles(self) -> Violation:
        program = self._group.program
        failing = program.failing if isinstance(program, HostedProgram) else {}
        keys = {key for kind in self._subject.primaries for key in self._keys(kind)}
        deleted = failing.keys() - keys
        made = len(keys) - len(final_state(step for step, _ in self._steps))
        return properties.never_settles(failing, self._group.failure, deleted=deleted, made=made)

    async def _check_quiet(self) -> None:
        count = await self._writes_of_resync()
        if count:
            writes = [_short(write) for write in self._last_writes(count)]
            once = not await self._writes_of_resync()
            raise ViolatedError(properties.not_quiet(writes, once=once))

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
                raise ViolatedError(properties.not_clean(leftovers))
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
