"""Limits how long a task may take for one piece of its work."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from natsctl.errors import SyncTimeoutError

IGNORED_S = 5.0  # work that goes on for longer than this after its cancellation ignores it

Task = asyncio.Task[Any]


def _report_nothing(_task: Task) -> None:
    """Nobody asked."""


class TimeLimit:
    """Cancels what a task does for longer than *limit_s*: `with limit:`.

    The block then raises `SyncTimeoutError` with *message*. This works like `asyncio.timeout`, but
    one timer serves all tasks: a timer for each costs more than a short sync. The limit is the
    same for all, so the task that began first is late first. A task that somebody else cancels is
    left alone.

    *on_ignored* is called with a task that is still in its block `IGNORED_S` seconds after it was
    cancelled here.
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
        self._cut: dict[Task, float] = {}  # tasks that were cancelled, and their deadlines
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[_current_task()] = loop.time() + self._limit_s
        if self._timer is None:
            self._timer = loop.call_later(self._limit_s, self._look)

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

    def _look(self) -> None:
        """Cancel the tasks that are late, and look again when the next one may be."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for task, deadline in list(self._deadlines.items()):
            if deadline > loop.time():
                self._timer = loop.call_at(deadline, self._look)
                return
            del self._deadlines[task]
            if not task.cancelling():
                self._cut[task] = deadline
                task.cancel()
                loop.call_later(IGNORED_S, self._look_after, task, deadline)

    def _look_after(self, task: Task, deadline: float) -> None:
        if self._cut.get(task) == deadline:
            self._on_ignored(task)


def _current_task() -> Task:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("only what a task does can be limited")
    return task
