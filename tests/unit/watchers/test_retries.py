"""Retry policies and dequeue policies of watchers."""

import pytest

from natsctl import Drop, Retry, RetryPolicy
from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
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


def dequeues(
    action: ResourceAction, value: bytes, retried_action: ResourceAction, retried_value: bytes
) -> bool:
    error = ValueError("reason")
    return opinionated_retry_dequeue_policy(
        action, snapshot(value), retried_action, snapshot(retried_value), error
    )


def delays(policy: RetryPolicy) -> list[float | None]:
    """Return the delays of all retries until the policy drops."""
    delays_s: list[float | None] = []
    while isinstance(decision := policy(ValueError("reason"), len(delays_s) + 1), Retry):
        delays_s.append(decision.after)
    assert decision == Drop()
    return delays_s


def test_the_default_policy_retries_six_times() -> None:
    assert delays(DEFAULT_RETRY_POLICY) == [5, 10, 20, 40, 80, 160]


def test_the_first_delay_and_the_last_attempt_are_options() -> None:
    assert delays(exponential_backoff_retry_policy(0.5, 2)) == [0.5, 1, 2]
    assert delays(exponential_backoff_retry_policy(3, 0)) == [3]


@pytest.mark.parametrize("retry", ResourceAction)
def test_a_delete_drops_every_retry(retry: ResourceAction) -> None:
    assert dequeues(DELETE, site("a"), retry, site("a"))


@pytest.mark.parametrize("action", [CREATE, UPDATE])
def test_another_spec_drops_the_retry(action: ResourceAction) -> None:
    assert dequeues(action, site("b", generation=3), action, site("a", generation=2))


def test_actions_are_create_update_and_delete() -> None:
    assert [str(action) for action in ResourceAction] == ["CREATE", "UPDATE", "DELETE"]
