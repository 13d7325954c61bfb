"""Limits how long a task may take for one piece of its work."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from natsctl.errors import SyncTimeoutError

IGNORED_S = 5.0  # work that does not end in this time after its cancellation ignores it

Task = asyncio.Task[Any]


def _report_nothing(_task: Task) -> None:
    """Report nothing."""


class TimeLimit:
    """Cancels a task in a `with limit:` block that takes longer than *limit_s* seconds.

    The block then raises `SyncTimeoutError` with *message*. This works like `asyncio.timeout`, but
    all tasks share one timer, since a timer for each task costs more than a short sync. The limit
    is the same for all tasks, so their deadlines are in the order of their starts. A task that
    something else cancelled is not cancelled again.

    *on_ignored* is called with a task that is still in its block `IGNORED_S` seconds after the
    limit cancelled it.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        message: str = "",
        on_ignored: Callable[[Task], None] = _report_nothing,
    ) -> None:
        self._limit_s = limit_s
        self._message = message or f"took longer than {limit_s:g} s"
        self._on_ignored = on_ignored
        self._deadlines: dict[Task, float] = {}  # the earliest first
        self._cut: dict[Task, float] = {}  # the deadlines of the tasks that were cancelled
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[_current_task()] = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s, self._cancel_late)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = _current_task()
        self._deadlines.pop(task, None)
        if self._cut.pop(task, None) is None:
            return
        if not task.uncancel() and isinstance(error, asyncio.CancelledError):
            raise SyncTimeoutError(self._message) from error

    def _cancel_late(self) -> None:
        """Cancel the tasks that are late, and set the timer for the next deadline."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for task, deadline in list(self._deadlines.items()):
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._cancel_late)
                return
            del self._deadlines[task]
            if not task.cancelling():
                self._cut[task] = deadline
                task.cancel()
                loop.call_later(IGNORED_S, self._check_ignored, task, deadline)

    def _check_ignored(self, task: Task, deadline: float) -> None:
        if self._cut.get(task) == deadline:
            self._on_ignored(task)


def _current_task() -> Task:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a time limit works only inside a task")
    return task
