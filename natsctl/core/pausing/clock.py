"""Reads the time of day, and follows the clock of the event loop under virtual time."""

import asyncio
import math
from datetime import UTC, datetime, timedelta

from natsctl.model.pause import Pause


class Clock:
    """The time of day, which never runs behind the clock of the event loop."""

    def __init__(self) -> None:
        self._loop_time = asyncio.get_running_loop().time
        self._begun, self._begun_at = self._loop_time(), datetime.now(UTC)

    def now(self) -> datetime:
        """Return the time."""
        elapsed = timedelta(seconds=self._loop_time() - self._begun)
        return max(datetime.now(UTC), self._begun_at + elapsed)

    def left_s(self, pause: Pause) -> float:
        """Return the seconds until the pause ends; infinity if it has no end."""
        return math.inf if pause.ends is None else (pause.ends - self.now()).total_seconds()
