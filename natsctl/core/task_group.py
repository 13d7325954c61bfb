"""Tasks that live and fail together, and fail plainly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """Give a task group; when it ends, all its tasks have.

    What fails first cancels the rest. A single failure is raised as itself, several as an
    `ExceptionGroup`.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        if len(errors.exceptions) > 1:
            raise
        only = errors.exceptions[0]
        raise only from only.__cause__
