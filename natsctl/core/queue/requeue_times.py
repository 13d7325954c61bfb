"""Holds the times at which a key is to be synced again."""

import math

import msgspec

from natsctl.core.queue.ready_queue import Priority


class Requeue(msgspec.Struct, frozen=True, gc=False):
    """A requested sync, which must not begin before the loop time `due_at`."""

    due_at: float
    priority: Priority


class Requeues(msgspec.Struct, gc=False):
    """The requested syncs of a key, at most one of each sort.

    `at_once` belongs to a held key that was added, `explicit` to a key that was added with a delay,
    `retry` to a key that failed. A sync that begins at or after the time of a request fulfils the
    request. `counted` marks a held key that became due and was counted as an add.
    """

    at_once: Requeue | None = None
    explicit: Requeue | None = None
    retry: Requeue | None = None
    counted: bool = False

    def __bool__(self) -> bool:
        """Return whether a sync is requested."""
        return bool(self.at_once or self.explicit or self.retry)

    @property
    def due_at(self) -> float:
        """The loop time of the earliest request, infinity without one."""
        return min((requeue.due_at for requeue in self._requested()), default=math.inf)

    @property
    def priority(self) -> Priority:
        """The highest requested priority."""
        return max((requeue.priority for requeue in self._requested()), default=Priority.RESYNC)

    def drained(self) -> "Requeues":
        """Return the requests that are left when only keys that are ready are synced."""
        return Requeues(at_once=self.at_once, counted=self.counted)

    def begin(self, now: float) -> None:
        """Remove the requests that a sync that begins now fulfils."""
        self.at_once = _if_later(self.at_once, now)
        self.explicit = _if_later(self.explicit, now)
        self.retry = _if_later(self.retry, now)

    def _requested(self) -> list[Requeue]:
        return [requeue for requeue in (self.at_once, self.explicit, self.retry) if requeue]


def sooner(requested: Requeue | None, new: Requeue) -> Requeue:
    """Return the earlier time with the higher priority."""
    if requested is None:
        return new
    return Requeue(min(requested.due_at, new.due_at), max(requested.priority, new.priority))


def _if_later(requeue: Requeue | None, now: float) -> Requeue | None:
    return requeue if requeue is not None and requeue.due_at > now else None
