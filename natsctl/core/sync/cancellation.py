"""Distinguishes a cancellation by natsctl from one by the user's code, which runs in the same task.

Code of a handler may cancel the task that runs it. Libraries that are older than `asyncio.timeout`
do so for a time limit, and never call `uncancel`. Such a cancellation concerns one call only.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

Task = asyncio.Task[Any]

_supervisor: ContextVar[Task | None] = ContextVar("supervisor", default=None)
"""The task whose task group has the present worker."""


@contextmanager
def supervising() -> Iterator[None]:
    """Declare that natsctl cancels the tasks that the context creates only with this task.

    The group of these tasks cancels its own task too if one of them fails.
    """
    token = _supervisor.set(asyncio.current_task())
    try:
        yield
    finally:
        _supervisor.reset(token)


def is_ordered_to_end(task: Task) -> bool:
    """Return whether the task was cancelled, and not only by the code that it calls."""
    if not task.cancelling():
        return False
    supervisor = _supervisor.get()
    return supervisor is None or bool(supervisor.cancelling())


async def outlives(task: Task) -> bool:
    """Forget the cancellations of the present task by the code that it called.

    Returns False if the task is ordered to end.
    """
    if is_ordered_to_end(task):
        return False
    while task.uncancel():
        pass
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # raises a cancellation that no await has raised yet
    return not is_ordered_to_end(task)
