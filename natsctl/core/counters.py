"""Counts the results and the durations of syncs, for metrics."""

from collections.abc import Mapping, Sequence

import msgspec

from natsctl.core.workqueue import MEASURES_MAX, Outcome, Synced
from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.histogram import Distribution, Histogram

SYNC_BOUNDS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45),
    *(0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
)
"""Five milliseconds to a minute, the buckets of controller-runtime's reconciliations."""

CONVERGENCE_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""From a millisecond to an hour, in steps that matter to a person."""

OVERDUE_S = 300.0
"""A change that has waited for a successful sync for longer is overdue."""


class Counts(msgspec.Struct, frozen=True):
    """The counts of a controller's syncs.

    Attributes:
        unanswered: changes of a desired state that wait for a successful sync, without those of
            keys that are held.
        oldest_s: seconds since the first of them.
        succeeded: syncs that returned None.
        delayed: syncs that returned a delay or raised `RetryAfter`.
        failed: syncs that failed.
        final: failed syncs that are not retried.
        timeouts: failed syncs that took too long.
        duration_s: the durations of all syncs.
        convergence_s: the times from a change of a desired state, as this process sees it, to the
            end of the first successful sync after it. Several changes before that sync count once,
            from the first one. States from before the start of the process do not count.
        late: the keys of overdue changes.
    """

    unanswered: int
    oldest_s: float
    succeeded: int
    delayed: int
    failed: int
    final: int
    timeouts: int
    duration_s: Distribution
    convergence_s: Distribution
    late: Sequence[str] = ()


class SyncCounters:
    """Counts syncs."""

    def __init__(self) -> None:
        self._succeeded = self._delayed = self._failed = self._final = self._timeouts = 0
        self._duration_s = Histogram(SYNC_BOUNDS_S)
        self._convergence_s = Histogram(CONVERGENCE_BOUNDS_S)

    def end(self, outcome: Outcome, *, begun: float, now: float, changed: float | None) -> None:
        """Count a sync from *begun* to *now*, which answers a change at the time *changed*."""
        waiting = self._duration_s.waiting
        waiting.append(now - begun)
        if len(waiting) >= MEASURES_MAX:
            self._duration_s.count()
            self._convergence_s.count()
        if isinstance(outcome, Synced):  # a `match` takes four times as long
            if outcome.after is None:
                self._succeeded += 1
            else:
                self._delayed += 1
            if changed is not None:
                self._convergence_s.waiting.append(now - changed)
        else:
            error_class = classify(outcome.error)
            self._delayed += error_class is ErrorClass.DELAY
            self._failed += error_class.failed
            self._final += error_class is ErrorClass.PERMANENT
            self._timeouts += isinstance(outcome.error, TimeoutError)

    def read(self, now: float, changed: Mapping[str, float]) -> Counts:
        """Return the counts at *now*; *changed* has the times of the unanswered changes by key."""
        oldest_s = max(0.0, now - min(changed.values(), default=now))
        late = changed.items() if oldest_s > OVERDUE_S else ()
        return Counts(
            unanswered=len(changed),
            oldest_s=oldest_s,
            late=[key for key, time in late if time < now - OVERDUE_S],
            succeeded=self._succeeded,
            delayed=self._delayed,
            failed=self._failed,
            final=self._final,
            timeouts=self._timeouts,
            duration_s=self._duration_s.read(),
            convergence_s=self._convergence_s.read(),
        )
