"""Tasks that wait to be told of something: one is woken, or all."""

import asyncio
from collections import deque
from contextlib import suppress


class Waiters(deque[asyncio.Future[None]]):
    """Wakes exactly as many tasks as it is told to, those that wait longest first.

    A woken task must look for itself whether what it waits for is there, and wait again if not.
    No word is lost: a task that is cancelled after it was woken wakes the next.
    """

    async def wait(self) -> None:
        """Return when woken."""
        word = asyncio.get_running_loop().create_future()
        self.append(word)
        try:
            await word
        except asyncio.CancelledError:
            if word.cancelled():
                with suppress(ValueError):
                    self.remove(word)
            else:
                self.wake_one()
            raise

    def wake_one(self) -> None:
        """Wake the task that waits longest; without any, nothing is remembered."""
        while self:
            word = self.popleft()
            if not word.done():
                word.set_result(None)
                return

    def wake_all(self) -> None:
        """Wake every task that waits now."""
        while self:
            self.wake_one()
