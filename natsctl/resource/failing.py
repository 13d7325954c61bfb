"""The error handlers and rate limiters of a stream."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from natsctl.core.retry import Decision, ExponentialLimiter, RetryPolicy, TokenBucket
from natsctl.resource.event import Key

ErrorAction: TypeAlias = Decision
"""`Retry`; `Drop`, which ignores the failure; or `Stop`, which ends the stream."""


class PerKey(msgspec.Struct, frozen=True):
    """An error handler that depends on the key, which is empty for a sync event.

    Example:
        PerKey(lambda key: always_retry if key.namespace == "kube-system" else give_up_after(3))
    """

    policy_of: Callable[[Key], RetryPolicy]


ErrorHandler: TypeAlias = RetryPolicy | PerKey
"""Returns the `ErrorAction` for an error and the key's number of failures in a row, from 1."""

RateLimiter: TypeAlias = ExponentialLimiter[str] | TokenBucket
"""The backoff of a failing key, or a limit on all retries of the stream."""


def policy_for(key: Key, handler: ErrorHandler) -> RetryPolicy:
    """Return the retry policy for *key*."""
    return handler.policy_of(key) if isinstance(handler, PerKey) else handler
