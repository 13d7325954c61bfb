"""Runs one coroutine after the other in virtual time, each from the same beginning."""

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from types import ModuleType
from typing import Any, Self, TypeVar

from natsctl.testing.reproducible import reproducible, silent
from natsctl.testing.simulation.process import current_life
from natsctl.testing.time import VirtualTimeLoop

T = TypeVar("T")

RUNS_PER_COLLECTION = 20
TIES_MAX = 1024
TIE_S = 2e-11  # between timers of the same time: all together are less than the clock's resolution


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that a set of tasks has the same order in each run."""

    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self._number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number

    def __repr__(self) -> str:  # asyncio's is slow, and each run asks for one
        return f"<task {self._number}>"


class SimulationLoop(VirtualTimeLoop):
    """An event loop for many runs, one after the other; each begins at time 0.

    Timers of the same time fire in the order in which they were set. In asyncio the order depends
    on all timers before, also on those that were cancelled. Each task belongs to the process of the
    task that creates it.
    """

    _scheduled: list[asyncio.TimerHandle]  # of asyncio's loop, as its count of cancelled ones
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._timers = self._tasks = 0

    def restart(self) -> None:
        """Set the clock to 0, and drop the timers; every task must have ended."""
        self._now = 0.0
        self._timers = self._tasks = 0
        self._scheduled.clear()  # also cancelled timers would keep the objects of their run alive
        self._timer_cancelled_count = 0

    def create_task(  # type: ignore[override]  # typeshed's generic form is for callers
        self, coro: Coroutine[Any, Any, Any], *, name: object = None, **options: Any
    ) -> "asyncio.Task[Any]":
        self._tasks += 1
        task = NumberedTask(self._tasks, coro, loop=self, name=name, **options)
        life = current_life.get()
        if life is not None:
            life.tasks.append(task)
        return task

    def call_at(  # type: ignore[override]  # typeshed's generic form is for callers
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        self._timers += 1
        tied = when + self._timers % TIES_MAX * TIE_S
        return super().call_at(tied, callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, object]) -> None:
        """Ignore errors of tasks that nobody awaits: their process has crashed."""


class Bench:
    """An event loop for many runs; use it as a context.

    Args:
        modules: the modules in which `datetime` follows the virtual time.
    """

    def __init__(self, modules: Sequence[ModuleType] = ()) -> None:
        self._modules = modules
        self._runs = 0

    def __enter__(self) -> Self:
        self._loop = loop = SimulationLoop()
        with ExitStack() as stack:
            self._runner = stack.enter_context(asyncio.Runner(loop_factory=lambda: loop))
            stack.enter_context(reproducible(self._loop, self._modules))
            stack.enter_context(silent())
            stack.enter_context(_few_collections())
            self._contexts = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._contexts.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine from virtual time 0, and return its result."""
        self._loop.restart()
        try:
            result = self._runner.run(work)
        finally:  # end the tasks that ignore their cancellation, for which the runner would wait
            for task in asyncio.all_tasks(self._loop):
                coroutine: Any = task.get_coro()
                with suppress(Exception):
                    coroutine.close()
        self._runs += 1
        if self._runs % RUNS_PER_COLLECTION == 0:
            gc.collect()
        return result


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect the warnings and errors of natsctl in this context; other handlers get none."""
    logger, lines = logging.getLogger("natsctl"), list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.WARNING)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.removeHandler(handler)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Collect the cycles of Python's objects only between runs, and only new ones.

    A program that has exempted its objects from collections keeps them exempt.
    """
    enabled, exempt = gc.isenabled(), gc.get_freeze_count() > 0
    if exempt:
        gc.collect()  # otherwise the cycles before would stay in memory
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not exempt:
            gc.unfreeze()
        if enabled:
            gc.enable()
