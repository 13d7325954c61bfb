"""Reads the time of day, and follows the clock of the event loop under virtual time."""

import asyncio
import math
from datetime import UTC, datetime, timedelta

from natsctl.model.pause import Pause


class Clock:
    """The time of day, which never runs behind the clock of the event loop."""

    def __init__(self) -> None:
        self._first: tuple[float, datetime] | None = None  # both clocks at the first read

    def now(self) -> datetime:
        """Return the time."""
        loop_s, time = asyncio.get_running_loop().time(), datetime.now(UTC)
        first_s, first = self._first = self._first or (loop_s, time)
        return max(time, first + timedelta(seconds=loop_s - first_s))

    def left_s(self, pause: Pause) -> float:
        """Return the seconds until the pause ends; infinity if it has no end."""
        return math.inf if pause.ends is None else (pause.ends - self.now()).total_seconds()
