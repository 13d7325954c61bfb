"""What came of syncs, in numbers that only grow."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import msgspec

from natsctl.core.sync.follow_up import Failed, Outcome, Synced
from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.histogram import Distribution, Histogram

K = TypeVar("K", bound=Hashable)

SYNC_BOUNDS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45),
    *(0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5),
    *(5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
)
"""Five milliseconds to a minute: controller-runtime's for its reconciliations."""

CONVERGENCE_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""A millisecond to an hour: what a person who waits for a change tells apart."""


class Counts(msgspec.Struct, frozen=True):
    """What was counted so far.

    Every sync `succeeded`, or is to come back when it `asked` to (which may be by raising
    `RetryAfter`), or `failed`; of these, `final` ones are not retried and `timeouts` took too long.
    `duration_s` is of every sync. `convergence_s` is from when a change of what is desired was
    seen here to the end of the first sync after it that succeeded; of several changes before that
    sync, from the first. What was desired already when the process began is not in it. Changes
    that wait for such a sync are `unanswered`, but for those of keys being synced; the first of
    them came `oldest_s` seconds ago.
    """

    unanswered: int
    oldest_s: float
    succeeded: int
    asked: int
    failed: int
    final: int
    timeouts: int
    duration_s: Distribution
    convergence_s: Distribution


class Tally(Generic[K]):
    """Counts syncs. It remembers the keys with a change that no sync has answered, no others."""

    def __init__(self) -> None:
        self._succeeded = self._asked = self._failed = self._final = self._timeouts = 0
        self._duration_s = Histogram(SYNC_BOUNDS_S)
        self._convergence_s = Histogram(CONVERGENCE_BOUNDS_S)
        self._changed: dict[K, float] = {}  # since when something else is desired
        self._answering = False

    def changed(self, key: K, at: float) -> None:
        """Note, at this loop time, that something else is desired and that a sync will follow."""
        if self._answering:
            self._changed.setdefault(key, at)

    def keep(self, wanted: Callable[[K], bool]) -> None:
        """Let others answer the changes of keys that are not *wanted* here."""
        for key in [key for key in self._changed if not wanted(key)]:
            del self._changed[key]

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Have changes answered here while the context lasts; at other times nobody is to."""
        self._answering = True
        try:
            yield
        finally:
            self._answering = False
            self._changed.clear()

    def begin(self, key: K) -> float | None:
        """Return since when the sync that begins now is due to a change, None where it is not."""
        return self._changed.pop(key, None)

    def end(
        self, key: K, outcome: Outcome, *, begun: float, now: float, changed: float | None
    ) -> None:
        """Count a sync that took from *begun* to *now*; *changed* is what `begin` returned."""
        self._duration_s.observe(now - begun)
        match outcome:
            case Synced(after):
                self._asked += after is not None
                self._succeeded += after is None
                if changed is not None:
                    self._convergence_s.observe(now - changed)
                return
            case Failed(error):
                if self._count(error) is ErrorClass.PERMANENT:
                    return  # nobody waits for an answer to what changed before
        if changed is not None and self._answering:
            self._changed[key] = changed  # it is still to be answered, whatever changed since

    def _count(self, error: Exception) -> ErrorClass:
        """Count a sync that raised, and return the class of the error."""
        found = classify(error)
        self._asked += found is ErrorClass.DELAY
        self._failed += found.failed
        self._final += found is ErrorClass.PERMANENT
        self._timeouts += isinstance(error, TimeoutError)
        return found

    def read(self, now: float) -> Counts:
        """Return what was counted until *now*; takes time in proportion to unanswered changes."""
        changed = self._changed.values()
        return Counts(
            unanswered=len(changed),
            oldest_s=max(0.0, now - min(changed, default=now)),
            succeeded=self._succeeded,
            asked=self._asked,
            failed=self._failed,
            final=self._final,
            timeouts=self._timeouts,
            duration_s=self._duration_s.read(),
            convergence_s=self._convergence_s.read(),
        )
