"""Lists the keys that are held or ready the longest, and those that are due next."""

import math
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter
from typing import Any

import msgspec

from natsctl.core.workqueue import Place, Priority, WorkQueue

LANE_MAX = 20
"""Keys in each lane."""

_seconds = attrgetter("s")

_LANES = {Place.CLAIMED: "held", Place.READY: "ready", Place.WAITING: "waiting"}
_REASONS = {
    Priority.USER: "change",
    Priority.SECONDARY: "secondary",
    Priority.RETRY: "retry",
    Priority.RESYNC: "resync",
}


class QueuedKey(msgspec.Struct, frozen=True):
    """A key in a work queue.

    Attributes:
        key: the key.
        s: seconds for which the key has been held or ready, or until it becomes ready.
        reason: `retry` after a failure; `delay` for a key that waits for another reason; else
            `change` of the primary or a request, `secondary` for a changed secondary, or `resync`.
    """

    key: str
    s: float
    reason: str


class Lanes(msgspec.Struct, frozen=True):
    """Up to `LANE_MAX` keys of each place in the work queues."""

    held: list[QueuedKey] = []  # the longest first
    ready: list[QueuedKey] = []  # the longest first
    waiting: list[QueuedKey] = []  # the next one first

    def limited(self, count: int) -> "Lanes":
        """Return the lanes with at most *count* keys each."""
        return Lanes(self.held[:count], self.ready[:count], self.waiting[:count])


def lanes_of(queues: Collection[WorkQueue[Any]], failing: Callable[[str], bool]) -> Lanes:
    """Return the lanes of several queues together; *failing* returns whether a key's sync failed.

    Takes time in proportion to `LANE_MAX` and the number of queues.
    """
    lanes: dict[str, list[QueuedKey]] = {"held": [], "ready": [], "waiting": []}
    for queue in queues:
        for lane, queued in _keys(queue, failing):
            lanes[lane].append(queued)
    return Lanes(
        held=sorted(lanes["held"], key=_seconds, reverse=True),
        ready=sorted(lanes["ready"], key=_seconds, reverse=True),
        waiting=sorted(lanes["waiting"], key=_seconds),
    ).limited(LANE_MAX)


def _keys(queue: WorkQueue[Any], failing: Callable[[str], bool]) -> Iterator[tuple[str, QueuedKey]]:
    now = queue.now()
    for work in queue.first(LANE_MAX):
        seconds = abs(now - work.at)
        if math.isfinite(seconds):  # a key that waits forever has no time
            name = str(work.key)
            reason = "delay" if work.place is Place.WAITING else _REASONS[work.priority]
            queued = QueuedKey(name, round(seconds, 3), "retry" if failing(name) else reason)
            yield _LANES[work.place], queued
