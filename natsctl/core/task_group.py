"""Runs tasks that end together or share work, and coroutines step by step."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Generator
from contextlib import asynccontextmanager
from functools import partial
from types import CoroutineType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

WORKERS_MAX = 10_000  # of a controller; each takes memory, and a place in the file of claims


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group; all its tasks have ended when the context ends.

    The first failure cancels the other tasks. A single failure is raised as itself, several
    failures as an `ExceptionGroup`.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        only = errors.exceptions[0]
        raise only from only.__cause__


async def for_each(
    items: Collection[T], work: Callable[[T], Awaitable[None]], *, workers: int
) -> None:
    """Do the *work* for each item, for as many items at once as there are *workers*.

    The first failure ends the work, and is raised as itself: what makes one request fail makes
    those beside it fail too.
    """
    remaining = iter(items)

    async def take_items() -> None:
        for item in remaining:
            await work(item)

    try:
        async with together() as group:
            for _ in range(min(workers, len(items))):
                group.create_task(take_items())
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__


async def first_of(*works: Coroutine[Any, Any, object]) -> None:
    """Wait until one of the works ends, and cancel the others; raises its error."""
    async with together() as group:
        tasks = [group.create_task(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


class Rest(Generic[T]):
    """The rest of a coroutine that waits for *future*; await it in the task of the first step.

    If `may_run` is set and returns False before a step, the step is cancelled: only the `except`
    and `finally` blocks of the coroutine run. Tasks that it has created go on.
    """

    __slots__ = ("_coroutine", "_future", "may_run")

    def __init__(self, coroutine: Coroutine[Any, Any, T], future: object) -> None:
        self._coroutine = coroutine
        self._future = future
        self.may_run: Callable[[], bool] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        future, may_run = self._future, self.may_run
        while True:
            try:
                value = yield future
            except BaseException as error:  # noqa: BLE001 - the coroutine handles it
                step = partial(self._coroutine.throw, error)
            else:
                step = partial(self._coroutine.send, value)
            if may_run is not None and not may_run():
                step = partial(self._coroutine.throw, asyncio.CancelledError())
            try:
                future = step()
            except StopIteration as end:
                result: T = end.value
                return result


def first_step(work: Awaitable[T]) -> T | Rest[T]:
    """Run the awaitable until it waits or ends; return the rest of it, or its result."""
    coroutine = work if type(work) is CoroutineType else _awaited(work)
    try:
        future = coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    return Rest(coroutine, future)


async def _awaited(work: Awaitable[T]) -> T:
    return await work
