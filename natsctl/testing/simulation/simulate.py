"""Simulates a controller: runs one seed after the other, and shrinks the first finding."""

import asyncio
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.synchronize import Event
from typing import Any, Self, TypeVar

import msgspec

from natsctl.errors import UsageError
from natsctl.model import documents
from natsctl.testing.simulation.bench import Bench, logged
from natsctl.testing.simulation.faults import Choices, Fault
from natsctl.testing.simulation.finding import Finding, Report, finding_of
from natsctl.testing.simulation.network import place_of
from natsctl.testing.simulation.objects import Objects, desired_objects
from natsctl.testing.simulation.process import Division
from natsctl.testing.simulation.properties import Property
from natsctl.testing.simulation.run import Check, Checks, Ran, Run, Schedule
from natsctl.testing.simulation.script import Author, Step, StepAction, StepPause, final_state
from natsctl.testing.simulation.subject import ControllerClass, Subject, subject_of

T = TypeVar("T")

REFERENCE_SEED = -1
GROUP_SHARE = 0.2  # of the runs, in which three processes divide the work, if no mode is given
REFERENCES_MAX = 256  # results of runs without faults that are kept
TRIES_MAX = 400  # runs that shrink a finding

Progress = Callable[[int], None]
"""Called with the number of finished runs."""

CHUNK = 25  # seeds that a process runs at a time


class SimulationError(AssertionError):
    """Raised by `simulate` if a controller violates a property; `finding` describes the run."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"\n{finding}")
        self.finding = finding


def simulate(
    controller: ControllerClass,
    *,
    objects: Objects,
    runs: int = 500,
    seed: int = 0,
    always: Check | None = None,
    finally_: Check | None = None,
    ignore: Sequence[str] = (),
    keep: Sequence[str] = (),
    leader_elect: bool = False,
    shard: bool = False,
    storm: bool = False,
) -> Report:
    """Run a controller through many bad days, and check what it promises on each of them.

    Args:
        controller: the class of a controller: a `Controller`, a `ManagedController`, an
            `InformerController`, or another class that `natsctl run` runs.
        objects: a YAML or JSON file, or documents as `natsctl apply` reads them. Several documents
            for one key are its versions.
        runs: the number of runs.
        seed: the seed of the first run; the following runs have the following seeds. The same seed
            gives the same run.
        always: is called with the `StoredObjects` after each write of the controller; it raises
            `AssertionError` or returns False if a property of yours is violated.
        finally_: is called like *always*, when the controller is idle at the end.
        ignore: buckets, and fields such as `services.spec.port`, that may differ between runs.
        keep: buckets, and objects such as `trail/pier`, that stay when all primaries are deleted.
        leader_elect: each run has three processes that elect a leader.
        shard: each run has three processes that share the keys. Without either, a fifth of the
            runs has three processes, in one way or the other.
        storm: longer runs with more faults, in which administrators also stop processes, break
            watches, pause the controller and objects, and delete leases or their whole bucket.

    Returns a report if every property holds. Raises `SimulationError` with the shortest schedule
    that violates a property, and `UsageError` if an object is invalid, or if an event loop runs.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError("simulate has its own event loops: call it in a plain function")
    checks = Checks(always, finally_, tuple(ignore), tuple(keep))
    mode = mode_of(leader_elect=leader_elect, shard=shard)
    with Simulation(subject_of(controller), objects, checks, mode=mode, storm=storm) as simulation:
        report = simulation.search(range(seed, seed + runs))
    if report.finding is not None:
        raise SimulationError(report.finding)
    if report.interrupted:
        raise KeyboardInterrupt  # what has not run has not passed
    return report


def mode_of(*, leader_elect: bool, shard: bool) -> Division | None:
    """Return how the processes of each run divide the work; None if the seeds decide."""
    if leader_elect and shard:
        raise UsageError("give leader_elect or shard, not both")
    return Division.ELECTED if leader_elect else Division.SHARED if shard else None


class Simulation:
    """The simulation of one subject, for many runs; use it as a context.

    *mode* and *storm* are the options of `simulate`. Raises `UsageError` for a mode in which the
    subject can't run.
    """

    def __init__(
        self,
        subject: Subject,
        objects: Objects,
        checks: Checks,
        *,
        mode: Division | None = None,
        storm: bool = False,
    ) -> None:
        if mode is not None and mode not in {Division.ALONE, *subject.modes}:
            raise UsageError(f"{subject.name} cannot run in {mode.value}")
        self.subject = subject
        self._mode, self._storm, self._checks = mode, storm, checks
        desired = desired_objects(objects, subject.kinds, primaries=len(subject.primaries))
        acts = [StepAction.STOP, StepAction.RELIST] if storm else []
        if storm and subject.modes:
            acts += [StepAction.PAUSE, StepAction.PAUSE_ALL]
        if storm and mode in subject.modes:
            acts += [StepAction.LEASE, StepAction.LEASES]
        self._author = Author(
            desired,
            primaries={kind.name for kind in subject.primaries},
            hands=bool(subject.touched),
            acts=acts,
        )
        self._references: dict[object, Ran] = {}
        self._unread = {place_of(wish.kind) for wish in desired}
        self._bench = Bench((subject.module,))
        self.check_interrupt: Callable[[], None] = lambda: None  # called before each run

    def __enter__(self) -> Self:
        self._bench.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._bench.__exit__()

    def search(self, seeds: range, progress: Progress = lambda _: None) -> Report:
        """Run the seeds in order, up to the first that violates a property."""
        report = Report(controller=self.subject.name, runs=0, seed=seeds.start)
        try:
            for count, seed in enumerate(seeds, start=1):
                finding = self.finding(seed)
                progress(count)
                report = msgspec.structs.replace(report, runs=count, finding=finding)
                if finding is not None:
                    report = msgspec.structs.replace(report, seed=seed)
                    break
        except KeyboardInterrupt:
            return msgspec.structs.replace(report, interrupted=True)
        return msgspec.structs.replace(report, unread=tuple(sorted(self._unread)))

    def finding(self, seed: int) -> Finding | None:
        """Run one seed, and return its shrunk finding, None if every property holds."""
        schedule = self.schedule(seed)
        ran = self.run(schedule)
        if ran.violation is None:
            return None
        shrunk = _Shrunk(self.run, schedule, ran, self._author.complete)
        with suppress(KeyboardInterrupt):  # the finding is then longer than necessary
            shrunk.shrink()
        violation = shrunk.ran.violation or ran.violation
        if violation.property is Property.SETTLES and violation.difference is None:
            with logged() as lines:  # it never settles for no known reason
                self._run(shrunk.schedule, None)
            if lines:
                detail = f"{violation.detail}; the last log line: {lines[-1]}"
                violation = msgspec.structs.replace(violation, detail=detail)
        return finding_of(self.subject, seed, shrunk.ran, violation)

    def schedule(self, seed: int) -> Schedule:
        choices, mode = Choices(seed), self._mode
        if mode is None:
            group = bool(self.subject.modes) and choices.share("group") < GROUP_SHARE
            mode = choices.pick("group/mode", self.subject.modes) if group else Division.ALONE
        return Schedule(seed, self._author.write(choices), mode=mode, storm=self._storm)

    def run(self, schedule: Schedule) -> Ran:
        """Run a schedule, and compare its result with that of a run without faults."""
        self.check_interrupt()
        final = [desired for _, desired in sorted(final_state(schedule.script).items())]
        state = tuple((*wish.name, documents.render(wish.document)) for wish in final)
        reference = self._references.get(state)
        if reference is None:
            if len(self._references) >= REFERENCES_MAX:
                self._references.clear()
            plain = Schedule(REFERENCE_SEED, self._author.plain(final), (), hurried=True)
            reference = self._references[state] = self._run(plain, None)
        if reference.violation is not None:
            return reference
        return self._run(schedule, reference.result)

    def _run(self, schedule: Schedule, expected: dict[str, object] | None) -> Ran:
        ran = self._bench.run(Run(self.subject, self._checks, schedule).run(expected))
        self._unread -= ran.opened
        return ran


class _Shrunk:
    """A schedule that violates a property, and the shortest that still does.

    Args:
        run: runs a schedule.
        ran: the run of the schedule.
        complete: returns whether a script has every step that a controller may rely on.
    """

    def __init__(
        self,
        run: Callable[[Schedule], Ran],
        schedule: Schedule,
        ran: Ran,
        complete: Callable[[Sequence[Step]], bool],
    ) -> None:
        self.schedule = msgspec.structs.replace(schedule, faults=ran.faults)
        self.ran = ran
        self._run, self._complete = run, complete
        self._tries = 0

    def shrink(self) -> None:
        """Replace schedule and run by the smallest ones that are found within `TRIES_MAX` runs."""
        before = None
        while before != self.schedule and self._tries < TRIES_MAX:
            before = self.schedule
            self._try(mode=Division.ALONE)
            self._try(hurried=True)
            self._remove_items("faults")
            self._remove_items("script")
            for number, step in enumerate(self.schedule.script):
                if step.pause is not StepPause.IDLE:
                    calm = msgspec.structs.replace(step, pause=StepPause.IDLE)
                    self._try(script=_replaced(self.schedule.script, number, calm))
            for number, fault in enumerate(self.schedule.faults or ()):
                for earlier in range(1, min(fault.call.number, 4)):  # of the same operation
                    call = msgspec.structs.replace(fault.call, number=earlier)
                    moved: Fault = msgspec.structs.replace(fault, call=call)
                    if self._try(faults=_replaced(self.schedule.faults or (), number, moved)):
                        break

    def _remove_items(self, field: str) -> None:
        """Remove as many items as possible, first in large parts and then one by one."""
        items: tuple[object, ...] = getattr(self.schedule, field)
        size = len(items)
        while size >= 1:
            start = 0
            while start < len(items):
                fewer = (*items[:start], *items[start + size :])
                if self._try(**{field: fewer}):
                    items = fewer
                else:
                    start += size
            size //= 2

    def _try(self, **changed: Any) -> bool:
        """Keep the schedule if it violates the same property; return whether it does."""
        schedule = msgspec.structs.replace(self.schedule, **changed)
        unchanged = schedule == self.schedule or self._tries >= TRIES_MAX
        if unchanged or not self._complete(schedule.script):
            return False
        self._tries += 1
        ran, before = self._run(schedule), self.ran.violation
        if not (ran.violation and before and ran.violation.property is before.property):
            return False
        self.schedule = msgspec.structs.replace(schedule, faults=ran.faults)
        self.ran = ran
        return True


def _replaced(items: tuple[T, ...], number: int, item: T) -> tuple[T, ...]:
    return (*items[:number], item, *items[number + 1 :])


# ---- several processes


MakeSimulation = Callable[[], Simulation]
"""Makes the simulation in each process, so it can be pickled: a function of a module."""

_workers: list[Simulation] = []  # one, in each process of a search


def search_in_processes(
    make: MakeSimulation, seeds: range, processes: int, progress: Progress
) -> Report:
    """Run the seeds in several processes, up to the first that violates a property.

    *progress* is called with the number of seeds that have run without a finding.
    """
    chunks = deque(seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK))
    context = multiprocessing.get_context("spawn")
    over, running = context.Event(), deque[Future[Report]]()
    reports: list[Report] = []
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_open, initargs=(make, over)
    ) as pool:
        try:
            while chunks or running:
                # the processes that this starts inherit the block
                before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    while chunks and len(running) < 2 * processes:
                        running.append(pool.submit(_search, chunks.popleft()))
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
                reports.append(running.popleft().result())
                progress(sum(report.runs for report in reports))
                if reports[-1].finding is not None:
                    break
        except KeyboardInterrupt:
            over.set()
            reports += [future.result() for future in running if not future.cancel()]
            return _joined(reports, seeds, interrupted=True)
        finally:
            over.set()  # and wait, because a process that still starts needs it
            pool.shutdown(cancel_futures=True)
    return _joined(reports, seeds, interrupted=False)


def _joined(reports: Sequence[Report], seeds: range, *, interrupted: bool) -> Report:
    runs, finding, unread = 0, None, [{*report.unread} for report in reports]
    for report in reports:
        runs, finding = runs + report.runs, report.finding
        if finding is not None:
            break
    return Report(
        controller=next((report.controller for report in reports), ""),
        runs=runs,
        seed=seeds.start,
        finding=finding,
        interrupted=interrupted and finding is None,
        unread=() if interrupted or finding else tuple(sorted(set.intersection(*unread))),
    )


def _open(make: MakeSimulation, over: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    simulation = make().__enter__()

    def check_interrupt() -> None:
        if over.is_set():
            raise KeyboardInterrupt

    simulation.check_interrupt = check_interrupt
    _workers.append(simulation)


def _search(seeds: range) -> Report:
    return _workers[0].search(seeds)
