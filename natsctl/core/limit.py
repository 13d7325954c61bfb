"""How long a task may take for one piece of its work."""

import asyncio
from types import TracebackType
from typing import Any


class TimeLimit:
    """Cuts short, with `TimeoutError`, what a task does for longer than *limit_s*: `with limit:`.

    Like `asyncio.timeout`, but one timer serves all tasks: setting one for each costs more than
    a short sync. The limit is the same for all, so whoever began first is late first. A task that
    somebody else cancels is left alone.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadlines: dict[asyncio.Task[Any], float] = {}  # the earliest first
        self._cut: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._deadlines[self._task()] = self._loop.time() + self._limit_s
        if self._timer is None:
            self._timer = self._loop.call_later(self._limit_s, self._look)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = self._task()
        self._deadlines.pop(task, None)
        if task in self._cut:
            self._cut.remove(task)
            if not task.uncancel() and isinstance(error, asyncio.CancelledError):
                raise TimeoutError from error

    def _look(self) -> None:
        """Cut short what is late, and look again when the next may be."""
        self._timer = None
        for task, deadline in list(self._deadlines.items()):
            if deadline > self._loop.time():
                self._timer = self._loop.call_at(deadline, self._look)
                return
            del self._deadlines[task]
            if not task.cancelling():
                self._cut.add(task)
                task.cancel()

    def _task(self) -> asyncio.Task[Any]:
        task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("only what a task does can be limited")
        return task
