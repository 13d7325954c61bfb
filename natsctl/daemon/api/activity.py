"""Keeps how many syncs ran and failed in each interval of the last 15 minutes."""

from collections import deque
from itertools import pairwise

import msgspec

INTERVAL_S = 15.0
INTERVALS = 60


class Activity(msgspec.Struct, frozen=True):
    """The syncs and failed syncs of each interval, the oldest first.

    The last interval is not over yet. There are fewer than `INTERVALS` if the daemon started less
    than 15 minutes ago.
    """

    syncs: list[int]
    failures: list[int]
    interval_s: float = INTERVAL_S


class ActivityLog:
    """Derives the activity of a controller from the numbers of its syncs at several times.

    A sync costs nothing. If the log is not advanced for some intervals, because the event loop is
    blocked, the first of them has the syncs of all.

    Args:
        now: the loop time at which the first interval begins.
    """

    def __init__(self, now: float) -> None:
        self._end_s = now + INTERVAL_S  # of the present interval
        self._totals = deque([(0, 0)], maxlen=INTERVALS)  # at the beginning of each interval

    def advance(self, now: float, totals: tuple[int, int]) -> None:
        """End the intervals that are over; *totals* are the syncs and the failed syncs so far."""
        over = int((now - self._end_s) // INTERVAL_S) + 1
        self._totals.extend([totals] * min(over, INTERVALS))
        self._end_s += max(0, over) * INTERVAL_S

    def read(self, now: float, totals: tuple[int, int]) -> Activity:
        """Return the activity until *now*."""
        self.advance(now, totals)
        steps = list(pairwise([*self._totals, totals]))
        return Activity(
            syncs=[after[0] - before[0] for before, after in steps],
            failures=[after[1] - before[1] for before, after in steps],
        )
