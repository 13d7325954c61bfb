"""Wakes one waiting task, all of them, or one after the other."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class Waiters(deque[asyncio.Future[None]]):
    """Tasks that wait, the longest-waiting first.

    A woken task must check its condition itself, and wait again if the condition does not hold. No
    wake-up is lost: a task that is cancelled after it was woken wakes the next one.
    """

    async def wait(self) -> None:
        """Return when this task is woken."""
        wake_up = asyncio.get_running_loop().create_future()
        self.append(wake_up)
        try:
            await wake_up
        except asyncio.CancelledError:
            if wake_up.cancelled():
                with suppress(ValueError):
                    self.remove(wake_up)
            else:
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Wake the task that has waited longest, if there is one."""
        while self:
            wake_up = self.popleft()
            if not wake_up.done():
                wake_up.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake every waiting task."""
        while self:
            self.wake_one()


class Relay(Waiters):
    """Tasks that share work. One of them is woken at a time, as long as *work_left* returns True.

    A task that does all the work without waiting needs no other task. So the next task is woken
    only after the first one has run, if work is left then.
    """

    def __init__(self, work_left: Callable[[], object]) -> None:
        super().__init__()
        self._work_left = work_left
        self._waking = False  # whether a woken task has not run yet

    def wake(self) -> None:
        """Wake a task, and after it others if work is left."""
        if self and not self._waking:
            self._waking = True
            self.wake_one()
            asyncio.get_running_loop().call_soon(self._wake_next)  # runs after the woken task

    def _wake_next(self) -> None:
        self._waking = False
        if self._work_left():
            self.wake()
