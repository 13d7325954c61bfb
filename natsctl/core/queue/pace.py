"""Limits the rate at which workers take keys from a queue."""

import asyncio
from collections.abc import Awaitable, Callable

from natsctl.core.queue.retry import RateLimit


class Pace:
    """Gives each key that is taken a turn, at the rate of *limit*."""

    def __init__(self, limit: RateLimit) -> None:
        self._bucket = limit.bucket()

    def take_nowait(self) -> bool:
        """Take a turn if there is one now, and return whether there was."""
        if self._bucket.take() <= 0:
            return True
        self._bucket.give_back()
        return False

    async def take(self, closed: Callable[[], Awaitable[None]]) -> None:
        """Wait for the next turn and take it; wait no longer than *closed*.

        A cancelled call takes no turn.
        """
        wait_s = self._bucket.take()
        if wait_s <= 0:
            return
        try:
            async with asyncio.timeout(wait_s):
                await closed()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            self._bucket.give_back()
            raise

    def give_back(self) -> None:
        """Return a turn for which there was no key."""
        self._bucket.give_back()
