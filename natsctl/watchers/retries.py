"""Whether a call to a watcher that failed is made again, when, and what makes that pointless."""

from collections.abc import Callable
from typing import Any, TypeAlias

from natsctl.core.queue.retry import RetryPolicy, exponential
from natsctl.watchers.watcher import ResourceAction, Snapshot

RetryDequeuePolicy: TypeAlias = Callable[
    [ResourceAction, Snapshot[Any], ResourceAction, Snapshot[Any], Exception], bool
]
"""Whether to drop a retry: from the new action and object, and the retry's, with its last error.

It is asked once for each watcher that has a retry of the object pending.
"""


def exponential_backoff_retry_policy(initial_s: float, max_attempts: int) -> RetryPolicy:
    """Retry after *initial_s* seconds, then after twice as long each time; at last give up.

    Attempts count from 0, so *max_attempts* + 1 retries are made; see `natsctl.exponential`.
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
    """Drop a retry for a delete, and for the same action on an object that desires otherwise.

    What is desired is compared itself, not the generation, which not every writer moves.
    """
    if new_action is ResourceAction.DELETE:
        return True
    if new_action is not retry_action:
        return False
    return new_object.kind.differs(retry_object.value, new_object.value)
