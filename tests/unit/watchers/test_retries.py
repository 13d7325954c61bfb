"""Retry policies say when to try again, dequeue policies what makes that pointless."""

import pytest

from natsctl import Drop, Retry
from natsctl.core.queue.retry import RetryPolicy
from natsctl.model.store import Stored
from natsctl.testing.memory import MemoryStore
from natsctl.watchers import (
    DEFAULT_RETRY_POLICY,
    ResourceAction,
    Snapshot,
    exponential_backoff_retry_policy,
    opinionated_retry_dequeue_policy,
)
from tests.support.controllers.recording_watcher import SITES, site

CREATE, UPDATE, DELETE = ResourceAction.CREATE, ResourceAction.UPDATE, ResourceAction.DELETE


def snapshot(value: bytes) -> Snapshot[object]:
    return Snapshot(SITES, Stored("berlin", 7, value), MemoryStore(SITES))  # type: ignore[arg-type]


def dequeues(new: ResourceAction, one: bytes, retry: ResourceAction, other: bytes) -> bool:
    error = ValueError("why")
    return opinionated_retry_dequeue_policy(new, snapshot(one), retry, snapshot(other), error)


def delays(policy: RetryPolicy) -> list[float | None]:
    """Return the delays of all retries until the policy drops."""
    found: list[float | None] = []
    while isinstance(decision := policy(ValueError("why"), len(found) + 1), Retry):
        found.append(decision.after)
    assert decision == Drop()
    return found


def test_the_default_retries_six_times() -> None:
    assert delays(DEFAULT_RETRY_POLICY) == [5, 10, 20, 40, 80, 160]


def test_the_first_delay_and_the_last_attempt_can_be_chosen() -> None:
    assert delays(exponential_backoff_retry_policy(0.5, 2)) == [0.5, 1, 2]
    assert delays(exponential_backoff_retry_policy(3, 0)) == [3]


def test_actions_are_the_words_of_the_field() -> None:
    assert [str(action) for action in ResourceAction] == ["CREATE", "UPDATE", "DELETE"]


@pytest.mark.parametrize("retry", ResourceAction)
def test_a_delete_makes_every_retry_pointless(retry: ResourceAction) -> None:
    assert dequeues(DELETE, site("a"), retry, site("a"))


@pytest.mark.parametrize(("new", "retry"), [(UPDATE, CREATE), (CREATE, UPDATE), (CREATE, DELETE)])
def test_another_action_leaves_the_retry(new: ResourceAction, retry: ResourceAction) -> None:
    assert not dequeues(new, site("a"), retry, site("b"))


@pytest.mark.parametrize("action", [CREATE, UPDATE])
def test_the_same_desire_leaves_the_retry(action: ResourceAction) -> None:
    status_written = site("a", status={"seen": 1}, generation=2)
    assert not dequeues(action, status_written, action, site("a", generation=2))


@pytest.mark.parametrize("action", [CREATE, UPDATE])
def test_another_desire_makes_the_retry_pointless(action: ResourceAction) -> None:
    assert dequeues(action, site("b", generation=3), action, site("a", generation=2))


def test_a_desire_may_change_without_its_generation_as_plain_writers_do_it() -> None:
    assert dequeues(UPDATE, site("b"), UPDATE, site("a"))
