"""When a key is to be visited again."""

import math

import msgspec

from natsctl.core.queue.ready_queue import Priority


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """A visit asked for, not to begin before the loop time `at`."""

    at: float
    priority: Priority


class Requeues(msgspec.Struct, gc=False):
    """The visits that are still owed to a key, of each sort at most one.

    `at_once` is owed to a held key that was added, `explicit` to one for which a time was asked,
    `retry` to one that failed. A visit that begins at or after the time of one answers it; one that
    begins before does not. `counted` marks a held key that became due and was counted as an add.
    """

    at_once: Requeue | None = None
    explicit: Requeue | None = None
    retry: Requeue | None = None
    counted: bool = False

    def __bool__(self) -> bool:
        """Say whether any visit is owed."""
        return bool(self.at_once or self.explicit or self.retry)

    @property
    def at(self) -> float:
        """The loop time of the earliest visit, infinity if none is owed."""
        return min((visit.at for visit in self._visits()), default=math.inf)

    @property
    def priority(self) -> Priority:
        """The highest priority that was asked for."""
        return max((visit.priority for visit in self._visits()), default=Priority.RESYNC)

    def begin(self, now: float) -> None:
        """Strike out what a visit that begins now answers."""
        self.at_once = _later(self.at_once, now)
        self.explicit = _later(self.explicit, now)
        self.retry = _later(self.retry, now)

    def _visits(self) -> list[Requeue]:
        return [visit for visit in (self.at_once, self.explicit, self.retry) if visit]


def sooner(owed: Requeue | None, asked: Requeue) -> Requeue:
    """Return the visit that serves both: the earliest time, the highest priority."""
    if owed is None:
        return asked
    return Requeue(min(owed.at, asked.at), max(owed.priority, asked.priority))


def _later(visit: Requeue | None, now: float) -> Requeue | None:
    return visit if visit is not None and visit.at > now else None
