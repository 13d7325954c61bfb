"""Limits how long tasks may take for one piece of their work, or wait for an event."""

import asyncio
from asyncio import current_task
from collections.abc import Callable
from types import TracebackType
from typing import Any

IGNORED_S = 5.0  # work that doesn't end in this time after its cancellation ignores it

Task = asyncio.Task[Any]


async def happens(event: asyncio.Event, *, within_s: float) -> bool:
    """Wait until the event is set, for *within_s* seconds at most; return whether it's set."""
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


class TimeLimit:
    """Cancels a task in a `with limit:` block that takes longer than *limit_s* seconds.

    The block then raises *error*. This works like `asyncio.timeout(limit_s)`, but all tasks share
    one timer, since a timer for each task costs more than a short sync. The limit is the same for
    all tasks, so their deadlines are in the order of their starts. A task is in one block of a
    limit at a time, and all tasks belong to the event loop of the first block. A task that
    something else cancels in its block isn't cancelled again.

    *on_ignored* is called with a task that is still in its block `IGNORED_S` seconds after the
    limit cancelled it.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        error: Callable[[], Exception] = TimeoutError,
        on_ignored: Callable[[Task], None] | None = None,
    ) -> None:
        self.limit_s = limit_s
        self._error = error
        self._on_ignored = on_ignored
        self._deadlines: dict[Task, float] = {}  # the earliest first
        self._cut: dict[Task, float] = {}  # the deadlines of the tasks that were cancelled
        self._earlier: dict[Task, int] = {}  # cancellations of a task before its block, if any
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # kept, because asking for it's slow

    def __enter__(self) -> None:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        task = current_task(loop)
        if task is None:
            raise RuntimeError("a time limit works only inside a task")
        self._deadlines[task] = loop.time() + self.limit_s
        if cancellations := task.cancelling():
            self._earlier[task] = cancellations
        if self._timer is None:
            self._timer = loop.call_later(self.limit_s, self._cancel_late)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task: Task = current_task(self._loop)  # type: ignore[assignment]  # a task has entered
        self._deadlines.pop(task, None)
        earlier = self._earlier.pop(task, 0) if self._earlier else 0
        if not self._cut or self._cut.pop(task, None) is None:
            return
        if task.uncancel() <= earlier and isinstance(error, asyncio.CancelledError):
            raise self._error() from error

    def _cancel_late(self) -> None:
        """Cancel the tasks that are late, and set the timer for the next deadline."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for task, deadline in list(self._deadlines.items()):
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._cancel_late)
                return
            del self._deadlines[task]
            if task.cancelling() == self._earlier.get(task, 0):
                self._cut[task] = deadline
                task.cancel()
                loop.call_later(IGNORED_S, self._check_ignored, task, deadline)

    def _check_ignored(self, task: Task, deadline: float) -> None:
        if self._on_ignored is not None and self._cut.get(task) == deadline:
            self._on_ignored(task)
