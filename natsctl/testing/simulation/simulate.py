"""Simulates a controller: runs one seed after the other, and shrinks the first finding."""

import asyncio
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from typing import Self

import msgspec

from natsctl.errors import UsageError
from natsctl.testing.simulation.bench import Bench, logged
from natsctl.testing.simulation.finding import Finding, Report, finding_of
from natsctl.testing.simulation.objects import Objects, desired_objects
from natsctl.testing.simulation.properties import Property
from natsctl.testing.simulation.run import Check, Checks, Ran, Run, Schedule, known_state
from natsctl.testing.simulation.script import Author, StepAction, final_state
from natsctl.testing.simulation.shrinking import Shrinker
from natsctl.testing.simulation.subject import ControllerClass, Subject, subject_of
from natsctl.testing.simulation.world.faults import Choices
from natsctl.testing.simulation.world.process import Division
from natsctl.testing.simulation.world.stores import place_of

REFERENCE_SEED = -1
GROUP_SHARE = 0.2  # of the runs, in which three processes divide the work, if no mode is given
REFERENCES_MAX = 256  # results of runs without faults that are kept

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
    if _loop_runs():
        raise UsageError("simulate has its own event loops: call it in a plain function")
    checks = Checks(always, finally_, tuple(ignore), tuple(keep))
    mode = mode_of(leader_elect=leader_elect, shard=shard)
    with Simulation(subject_of(controller), objects, checks, mode=mode, storm=storm) as simulation:
        report = simulation.search(range(seed, seed + runs))
    if report.finding is not None:
        raise SimulationError(report.finding)
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
        self._mode, self._storm = mode, storm
        self._checks = checks
        desired = desired_objects(objects, subject.kinds, primaries=len(subject.primaries))
        primaries = {kind.name for kind in subject.primaries}
        self._author = Author(
            desired,
            primaries=primaries,
            hands=bool(subject.touched),
            acts=_acts(subject, mode) if storm else (),
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
        name, count = self.subject.name, 0
        try:
            for count, seed in enumerate(seeds, start=1):
                finding = self.finding(seed)
                progress(count)
                if finding is not None:
                    return self._report(name, count, seed, finding=finding)
        except KeyboardInterrupt:
            return Report(
                controller=name, runs=max(0, count - 1), seed=seeds.start, interrupted=True
            )
        return self._report(name, count, seeds.start)

    def _report(self, name: str, runs: int, seed: int, finding: Finding | None = None) -> Report:
        unread = tuple(sorted(self._unread))
        return Report(controller=name, runs=runs, seed=seed, finding=finding, unread=unread)

    def finding(self, seed: int) -> Finding | None:
        """Run one seed, and return its shrunk finding, None if every property holds."""
        schedule = self.schedule(seed)
        ran = self.run(schedule)
        if ran.violation is None:
            return None
        shrinker = Shrinker(self.run, schedule, ran, self._author.complete)
        with suppress(KeyboardInterrupt):  # the finding is then longer than necessary
            shrinker.shrink()
        return finding_of(self.subject, seed, self._explained(shrinker))

    def _explained(self, shrinker: Shrinker) -> Ran:
        """Return the run; one that never settles for no known reason gets its last log line."""
        ran = shrinker.ran
        violation = ran.violation
        if violation is None or violation.property is not Property.SETTLES or violation.difference:
            return ran
        with logged() as lines:
            self._run(shrinker.schedule, None)
        if not lines:
            return ran
        detail = f"{violation.detail}; the last log line: {lines[-1]}"
        return msgspec.structs.replace(
            ran, violation=msgspec.structs.replace(violation, detail=detail)
        )

    def schedule(self, seed: int) -> Schedule:
        """Return the schedule of a seed."""
        choices, mode = Choices(seed), self._mode
        if mode is None:
            group = bool(self.subject.modes) and choices.share("group") < GROUP_SHARE
            mode = choices.pick("group/mode", self.subject.modes) if group else Division.ALONE
        return Schedule(
            seed,
            self._author.write(choices),
            mode=mode,
            storm=self._storm,
        )

    def run(self, schedule: Schedule) -> Ran:
        """Run a schedule, and compare its result with that of a run without faults."""
        self.check_interrupt()
        reference = self._reference(schedule)
        if reference.violation is not None:
            return reference
        return self._run(schedule, reference.result)

    def _reference(self, schedule: Schedule) -> Ran:
        final = [desired for _, desired in sorted(final_state(schedule.script).items())]
        state = known_state(final)
        known = self._references.get(state)
        if known is None:
            if len(self._references) >= REFERENCES_MAX:
                self._references.clear()
            plain = Schedule(REFERENCE_SEED, self._author.plain(final), (), hurried=True)
            known = self._references[state] = self._run(plain, None)
        return known

    def _run(self, schedule: Schedule, expected: dict[str, object] | None) -> Ran:
        ran = self._bench.run(Run(self.subject, self._checks, schedule).run(expected))
        self._unread -= ran.opened
        return ran


def _acts(subject: Subject, mode: Division | None) -> list[StepAction]:
    """Return what administrators can do to this controller."""
    pauses = {StepAction.PAUSE, StepAction.PAUSE_ALL} if subject.modes else set()
    leases = {StepAction.LEASE, StepAction.LEASES} if mode in subject.modes else set()
    return [a for a in StepAction if a in {StepAction.STOP, StepAction.RELIST, *pauses, *leases}]


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
    runs, name, unread = 0, "", set[str]()
    over = context.Event()
    running: deque[Future[Report]] = deque()
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_open, initargs=(make, over)
    ) as pool:
        try:
            while chunks or running:
                with _sigint_blocked():  # the processes that this starts inherit the block
                    while chunks and len(running) < 2 * processes:
                        running.append(pool.submit(_search, chunks.popleft()))
                report = running.popleft().result()
                unread = unread & {*report.unread} if runs else {*report.unread}
                name, runs = report.controller, runs + report.runs
                progress(runs)
                if report.finding is not None:
                    return Report(
                        controller=name, runs=runs, seed=seeds.start, finding=report.finding
                    )
        except KeyboardInterrupt:
            over.set()
            reports = [future.result() for future in running if not future.cancel()]
            return _interrupted([Report(controller=name, runs=runs, seed=seeds.start), *reports])
        finally:
            over.set()  # and wait, because a process that still starts needs it
            pool.shutdown(cancel_futures=True)
    return Report(controller=name, runs=runs, seed=seeds.start, unread=tuple(sorted(unread)))


def _interrupted(reports: Sequence[Report]) -> Report:
    """Return one report of consecutive seeds, up to the first finding."""
    first, runs = reports[0], 0
    for report in reports:
        runs += report.runs
        if report.finding is not None:
            return msgspec.structs.replace(report, runs=runs, seed=first.seed)
    name = next((report.controller for report in reports if report.controller), "")
    return Report(controller=name, runs=runs, seed=first.seed, interrupted=True)


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Let SIGINT wait until the end of the context."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
