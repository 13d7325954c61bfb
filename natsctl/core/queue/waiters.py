"""Wakes one waiting task, or all of them."""

import asyncio
from collections import deque
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
