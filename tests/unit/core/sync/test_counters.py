"""Counters of syncs: results, durations and the time until a change is synced."""

from collections.abc import Iterator

import pytest

from natsctl.core.sync.counters import Counts, SyncCounters
from natsctl.core.sync.follow_up import Failed, Outcome, Synced
from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, RetryAfter


class SyncClock:
    """Runs syncs on a manual clock: each sync starts at the end of the last one."""

    def __init__(self) -> None:
        self.counters = SyncCounters[str]()
        self.now = 0.0

    def change(self, key: str) -> None:
        self.counters.changed(key, self.now)

    def sync(
        self, key: str, outcome: Outcome, took_s: float = 1.0, *, change: bool = False
    ) -> None:
        begun, changed = self.now, self.counters.begin(key)
        self.now += took_s
        if change:
            self.change(key)
        self.counters.end(key, outcome, begun=begun, now=self.now, changed=changed)

    @property
    def counts(self) -> Counts:
        return self.counters.read(self.now)

    @property
    def unanswered(self) -> tuple[int, float]:
        """The number of pending changes and the age of the oldest, in seconds."""
        return self.counts.unanswered, self.counts.oldest_s

    @property
    def waits(self) -> tuple[int, float]:
        """The number of synced changes and the sum of their delays in seconds."""
        convergence_s = self.counts.convergence_s
        return convergence_s.count, convergence_s.sum


@pytest.fixture
def clock() -> Iterator[SyncClock]:
    clock = SyncClock()
    with clock.counters.answering():
        yield clock


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Synced(), {"succeeded": 1}),
        (Synced(0.0), {"delayed": 1}),
        (Failed(RetryAfter(5)), {"delayed": 1}),
        (Failed(ValueError()), {"failed": 1}),
        (Failed(TimeoutError()), {"failed": 1, "timeouts": 1}),
        (Failed(PermanentError("no")), {"failed": 1, "final": 1}),
        (Failed(InvalidKeyError("no")), {"failed": 1, "final": 1}),
    ],
)
def test_every_sync_is_counted_by_its_result(
    clock: SyncClock, outcome: Outcome, counted: dict[str, int]
) -> None:
    clock.sync("a", outcome, took_s=2)
    names = ("succeeded", "delayed", "failed", "final", "timeouts")
    counts = {name: getattr(clock.counts, name) for name in names}
    assert counts == dict.fromkeys(names, 0) | counted
    assert (clock.counts.duration_s.count, clock.counts.duration_s.sum) == (1, 2)


def test_a_change_is_answered_by_its_first_successful_sync(clock: SyncClock) -> None:
    clock.change("a")
    clock.sync("b", Synced())
    assert clock.waits == (0, 0)
    clock.sync("a", Synced())
    assert clock.waits == (1, 2)
    clock.sync("a", Synced())
    assert clock.waits == (1, 2)


@pytest.mark.parametrize("error", [NatsctlError("no"), TimeoutError(), RetryAfter(1)])
def test_a_failed_sync_answers_no_change(clock: SyncClock, error: Exception) -> None:
    clock.change("a")
    clock.sync("a", Failed(error))
    clock.sync("a", Failed(error))
    clock.sync("a", Synced())
    assert clock.waits == (1, 3)


def test_the_delay_counts_from_the_first_of_several_changes(clock: SyncClock) -> None:
    clock.change("a")
    clock.now = 10
    clock.change("a")
    clock.sync("a", Synced())
    assert clock.waits == (1, 11)


def test_a_change_during_a_sync_is_answered_by_the_next(clock: SyncClock) -> None:
    clock.change("a")
    clock.sync("a", Synced(), took_s=5, change=True)
    assert clock.waits == (1, 5)
    clock.sync("a", Synced(), took_s=2)
    assert clock.waits == (2, 7)


def test_a_change_during_a_failed_sync_keeps_the_time_of_the_one_before(clock: SyncClock) -> None:
    clock.change("a")
    clock.sync("a", Failed(NatsctlError("no")), took_s=5, change=True)
    clock.sync("a", Synced(), took_s=2)
    assert clock.waits == (1, 7)


def test_a_change_whose_sync_failed_permanently_is_not_pending(clock: SyncClock) -> None:
    clock.change("a")
    clock.sync("a", Failed(PermanentError("never")))
    clock.now = 1000
    clock.change("a")
    clock.sync("a", Synced())
    assert clock.waits == (1, 1)


def test_pending_changes_are_counted_with_the_age_of_the_oldest(
    clock: SyncClock,
) -> None:
    assert clock.unanswered == (0, 0)
    clock.change("a")
    clock.now = 10
    clock.change("b")
    assert clock.unanswered == (2, 10)
    clock.sync("a", Failed(NatsctlError("no")))
    assert clock.unanswered == (2, 11)
    clock.sync("a", Synced())
    assert clock.unanswered == (1, 2)
    clock.sync("b", Synced())
    assert clock.unanswered == (0, 0)


def test_changes_are_not_pending_while_this_process_does_not_sync() -> None:
    clock = SyncClock()
    clock.change("a")
    assert clock.unanswered == (0, 0)
    with clock.counters.answering():
        clock.change("a")
        assert clock.unanswered == (1, 0)
    assert clock.unanswered == (0, 0)
    clock.change("b")
    with clock.counters.answering():
        clock.sync("b", Synced())
        assert clock.waits == (0, 0)


def test_the_duration_of_each_sync_is_counted(clock: SyncClock) -> None:
    for took_s in (2.0, 3.0):
        clock.sync("a", Synced(), took_s)
    duration_s = clock.counts.duration_s
    assert (duration_s.count, duration_s.sum) == (2, 5.0)
