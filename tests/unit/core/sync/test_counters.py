"""Counters of syncs: results, durations and the time until a change is synced."""

import pytest

from natsctl.core.counters import SyncCounters
from natsctl.core.workqueue import Failed, Outcome, Synced
from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, RetryAfter


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
def test_every_sync_is_counted_by_its_result(outcome: Outcome, counted: dict[str, int]) -> None:
    counters = SyncCounters()
    counters.end(outcome, begun=1, now=3, changed=None)
    counts = counters.read(3, ())
    names = ("succeeded", "delayed", "failed", "final", "timeouts")
    assert {name: getattr(counts, name) for name in names} == dict.fromkeys(names, 0) | counted
    assert (counts.duration_s.count, counts.duration_s.sum) == (1, 2)


def test_a_success_counts_the_time_since_the_change_that_it_answers() -> None:
    counters = SyncCounters()
    for outcome in (Synced(), Synced(5.0), Failed(NatsctlError("no"))):
        counters.end(outcome, begun=5, now=10, changed=3)
    counters.end(Synced(), begun=5, now=10, changed=None)
    convergence_s = counters.read(10, ()).convergence_s
    assert (convergence_s.count, convergence_s.sum) == (2, 14)


def test_unanswered_changes_are_counted_with_the_age_of_the_oldest() -> None:
    counts = SyncCounters().read(10, (7, 4))
    assert (counts.unanswered, counts.oldest_s) == (2, 6)
    counts = SyncCounters().read(10, ())
    assert (counts.unanswered, counts.oldest_s) == (0, 0)


def test_the_duration_of_each_sync_is_counted() -> None:
    counters = SyncCounters()
    for took_s in (2.0, 3.0):
        counters.end(Synced(), begun=0, now=took_s, changed=None)
    duration_s = counters.read(0, ()).duration_s
    assert (duration_s.count, duration_s.sum) == (2, 5.0)
