"""Runs tasks that end together or share work, and raises a single failure as itself."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TypeVar

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
