"""The measures of a work queue."""

from collections.abc import Collection

import msgspec

from natsctl.telemetry.histogram import Distribution, Histogram


class QueueStats(msgspec.Struct, frozen=True):
    """The measures of a queue since its creation. Durations are seconds of loop time.

    They correspond to the metrics of client-go's work queue. `depth` counts the keys that are due:
    the ready ones, and the held ones that were added again. `waiting` counts the keys whose time is
    in the future, `held` those that workers have. `adds` counts how often a key that was not due
    became due, `retries` how often a key was added with a delay. `latency_s` runs from the add to
    `get`, `work_s` from `get` to `done`. `unfinished_s` is the sum of the times for which the held
    keys have been held so far, and `longest_s` the longest of them: both grow if a worker hangs.
    """

    depth: int
    waiting: int
    held: int
    adds: int
    retries: int
    latency_s: Distribution
    work_s: Distribution
    unfinished_s: float
    longest_s: float


class QueueCounters:
    """Counts what happens to the keys of a queue."""

    def __init__(self) -> None:
        self.adds = self.retries = 0
        self.latency_s, self.work_s = Histogram(), Histogram()

    def read(self, *, depth: int, waiting: int, held_s: Collection[float]) -> QueueStats:
        """Return the measures; *held_s* are the times for which keys have been held so far."""
        return QueueStats(
            depth=depth,
            waiting=waiting,
            held=len(held_s),
            adds=self.adds,
            retries=self.retries,
            latency_s=self.latency_s.read(),
            work_s=self.work_s.read(),
            unfinished_s=sum(held_s),
            longest_s=max(held_s, default=0.0),
        )
