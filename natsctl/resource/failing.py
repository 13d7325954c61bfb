"""What follows an event that failed."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from natsctl.core.queue.retry import Decision, ExponentialLimiter, RetryPolicy, TokenBucket
from natsctl.resource.event import Key

ErrorAction: TypeAlias = Decision
"""`Retry`; `Drop`, which ignores the failure; or `Stop`, which ends the stream."""


class PerKey(msgspec.Struct, frozen=True):
    """An error handler that depends on the key, which is empty for a sync.

    Example:
        PerKey(lambda key: always_retry if key.namespace == "kube-system" else give_up_after(3))
    """

    policy_of: Callable[[Key], RetryPolicy]


ErrorHandler: TypeAlias = RetryPolicy | PerKey
"""Given the error and the key's failures in a row, from 1, says which `ErrorAction` follows."""

RateLimiter: TypeAlias = ExponentialLimiter[str] | TokenBucket
"""Says how long a failing key waits: by its own failures, or by all retries of the stream too."""


def policy_for(key: Key, handler: ErrorHandler) -> RetryPolicy:
    """Return what decides about failures of this key."""
    return handler.policy_of(key) if isinstance(handler, PerKey) else handler
