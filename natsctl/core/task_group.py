"""Runs tasks that end together, and raises a single failure as itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


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
