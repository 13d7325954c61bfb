"""Policies that retry failed calls of watchers, and that drop such retries."""

from collections.abc import Callable
from typing import Any, TypeAlias

from natsctl.core.retry import RetryPolicy, exponential
from natsctl.watchers.watcher import ResourceAction, Snapshot

RetryDequeuePolicy: TypeAlias = Callable[
    [ResourceAction, Snapshot[Any], ResourceAction, Snapshot[Any], Exception], bool
]
"""Returns whether a new change drops a pending retry.

The arguments are the new action and object, the retry's action and object, and the retry's last
error. The policy is called once for each watcher with a pending retry of the object.
"""


def exponential_backoff_retry_policy(initial_s: float, max_attempts: int) -> RetryPolicy:
    """Retry after *initial_s* seconds, then after twice the time, and finally give up.

    Attempts count from 0, so the policy makes *max_attempts* + 1 retries. See
    `natsctl.exponential`.
    """
    return exponential(initial_s, max_attempts)


DEFAULT_RETRY_POLICY: RetryPolicy = exponential_backoff_retry_policy(5.0, 5)
"""Six retries, after 5, 10, 20, 40, 80 and 160 s."""


def opinionated_retry_dequeue_policy(
    new_action: ResourceAction,
    new_object: Snapshot[Any],
    retry_action: ResourceAction,
    retry_object: Snapshot[Any],
    _retry_error: Exception,
) -> bool:
    """Drop a retry after a delete, and after the same action with another desired state.

    The policy compares the desired states, not generations, which not every writer increments.
    """
    if new_action is ResourceAction.DELETE:
        return True
    if new_action is not retry_action:
        return False
    return new_object.kind.differs(retry_object.value, new_object.value)
