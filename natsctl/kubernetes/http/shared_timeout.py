"""Limits how long many tasks wait, with one timer for all of them."""

import asyncio
from types import TracebackType
from typing import Any

Task = asyncio.Task[Any]


class SharedTimeout:
    """Raises `TimeoutError` from a `with` block that takes longer than *limit_s* seconds.

    This works like `asyncio.timeout(limit_s)`, but all tasks share one timer, since a timer for
    each request costs more than the rest of the limit. The limit is the same for all tasks, so
    their deadlines are in the order of their starts. A task is in one block at a time.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Task, tuple[float, int]] = {}  # deadline, cancellations at the start
        self._late: dict[Task, int] = {}  # cancelled tasks, with their earlier cancellations
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        task = _current_task(self._loop)
        self._waiting[task] = (self._loop.time() + self.limit_s, task.cancelling())
        if self._timer is None:
            self._timer = self._loop.call_later(self.limit_s, self._cancel_late)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task = _current_task(self._loop)
        if self._waiting.pop(task, None) is not None:
            return
        cancellations = self._late.pop(task)
        if task.uncancel() <= cancellations and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _cancel_late(self) -> None:
        """Cancel the tasks that are late, and set the timer for the next deadline."""
        self._timer = None
        now = self._loop.time()
        for task, (deadline, cancellations) in list(self._waiting.items()):
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._cancel_late)
                return
            del self._waiting[task]
            self._late[task] = cancellations
            task.cancel()


def _current_task(loop: asyncio.AbstractEventLoop) -> Task:
    task = asyncio.current_task(loop)
    if task is None:
        raise RuntimeError("a time limit works only inside a task")
    return task
