"""Spreads the seeds of a simulation over several processes, with the same result as one process."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor

from natsctl.testing.simulation.finding import Report
from natsctl.testing.simulation.simulate import Progress, Simulation

CHUNK = 25  # seeds that a process runs at a time

MakeSimulation = Callable[[], Simulation]
"""Makes the simulation in each process, so it can be pickled: a function of a module."""

_opened: list[Simulation] = []  # of this process


def search_in_processes(
    make: MakeSimulation, seeds: range, processes: int, progress: Progress
) -> Report:
    """Run the seeds in several processes, up to the first that violates a property.

    *progress* is called with the number of seeds that have run without a finding.
    """
    chunks = deque(seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK))
    context = multiprocessing.get_context("spawn")
    done, name = 0, ""
    running: deque[Future[Report]] = deque()
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_open, initargs=(make,)
    ) as pool:
        try:
            while chunks or running:
                while chunks and len(running) < 2 * processes:
                    running.append(pool.submit(_search, chunks.popleft()))
                report = running.popleft().result()
                name, done = report.controller, done + report.runs
                progress(done)
                if report.finding is not None:
                    return Report(
                        controller=name, runs=done, seed=seeds.start, finding=report.finding
                    )
        except KeyboardInterrupt:
            return Report(controller=name, runs=done, seed=seeds.start, interrupted=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return Report(controller=name, runs=done, seed=seeds.start)


def _open(make: MakeSimulation) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles it
    _opened.append(make().__enter__())


def _search(seeds: range) -> Report:
    return _opened[0].search(seeds)
