"""What came of syncs is counted: how many, how long they took, how soon changes are answered."""

from collections.abc import Iterator

import pytest

from natsctl.core.sync.counters import Counts, SyncCounters
from natsctl.core.sync.follow_up import Failed, Outcome, Synced
from natsctl.errors import InvalidKeyError, NatsctlError, PermanentError, RetryAfter


class Clock:
    """Syncs keys, each sync beginning where the last one ended."""

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
        """How many changes wait, and for how long the first of them does."""
        return self.counts.unanswered, self.counts.oldest_s

    @property
    def waits(self) -> tuple[int, float]:
        """How many changes were answered, and after how many seconds together."""
        convergence_s = self.counts.convergence_s
        return convergence_s.count, convergence_s.sum


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with clock.counters.answering():
        yield clock


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        (Synced(), {"succeeded": 1}),
        (Synced(0.0), {"asked": 1}),
        (Failed(RetryAfter(5)), {"asked": 1}),
        (Failed(ValueError()), {"failed": 1}),
        (Failed(TimeoutError()), {"failed": 1, "timeouts": 1}),
        (Failed(PermanentError("no")), {"failed": 1, "final": 1}),
        (Failed(InvalidKeyError("no")), {"failed": 1, "final": 1}),
    ],
)
def test_every_sync_is_counted_by_how_it_ended(
    clock: Clock, outcome: Outcome, counted: dict[str, int]
) -> None:
    clock.sync("a", outcome, took_s=2)
    names = ("succeeded", "asked", "failed", "final", "timeouts")
    found = {name: getattr(clock.counts, name) for name in names}
    assert found == dict.fromkeys(names, 0) | counted
    assert (clock.counts.duration_s.count, clock.counts.duration_s.sum) == (1, 2)


def test_a_change_is_answered_by_the_first_sync_after_it_that_succeeds(clock: Clock) -> None:
    clock.change("a")
    clock.sync("b", Synced())
    assert clock.waits == (0, 0)
    clock.sync("a", Synced())
    assert clock.waits == (1, 2)
    clock.sync("a", Synced())
    assert clock.waits == (1, 2)


@pytest.mark.parametrize("error", [NatsctlError("no"), TimeoutError(), RetryAfter(1)])
def test_a_sync_that_fails_answers_nothing(clock: Clock, error: Exception) -> None:
    clock.change("a")
    clock.sync("a", Failed(error))
    clock.sync("a", Failed(error))
    clock.sync("a", Synced())
    assert clock.waits == (1, 3)


def test_of_several_changes_the_first_counts(clock: Clock) -> None:
    clock.change("a")
    clock.now = 10
    clock.change("a")
    clock.sync("a", Synced())
    assert clock.waits == (1, 11)


def test_a_change_during_a_sync_is_answered_by_the_next(clock: Clock) -> None:
    clock.change("a")
    clock.sync("a", Synced(), took_s=5, change=True)
    assert clock.waits == (1, 5)
    clock.sync("a", Synced(), took_s=2)
    assert clock.waits == (2, 7)


def test_a_change_during_a_sync_that_fails_does_not_hide_the_one_before(clock: Clock) -> None:
    clock.change("a")
    clock.sync("a", Failed(NatsctlError("no")), took_s=5, change=True)
    clock.sync("a", Synced(), took_s=2)
    assert clock.waits == (1, 7)


def test_for_a_change_that_failed_for_good_nobody_waits(clock: Clock) -> None:
    clock.change("a")
    clock.sync("a", Failed(PermanentError("never")))
    clock.now = 1000
    clock.change("a")
    clock.sync("a", Synced())
    assert clock.waits == (1, 1)


def test_changes_that_wait_are_counted_and_the_first_of_them_tells_for_how_long(
    clock: Clock,
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


def test_while_nobody_here_is_to_answer_changes_are_not_waited_for() -> None:
    clock = Clock()
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
