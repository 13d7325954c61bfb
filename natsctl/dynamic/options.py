"""The options and the reconciler of a dynamic watcher."""

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec

from natsctl.core.options import SECONDS, SECONDS_OR_ZERO, WORKERS, check_options
from natsctl.core.retry import ExponentialLimiter, TokenBucket
from natsctl.dynamic.identifier import ObjectIdentifier
from natsctl.dynamic.resources import ObjectCacheOptions

Reconcile = Callable[[ObjectIdentifier], Awaitable[float | None]]
"""Reconciles a watcher after a change of an object that it watches; see `Reconciler`."""


@runtime_checkable
class Reconciler(Protocol):
    """Reconciles watchers whose watched objects were created, changed or deleted."""

    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Reconcile *watcher*; return the seconds until the next call, or None.

        The call follows the start of a watch of an existing object, and every creation, change and
        deletion of a watched object. One call may follow several changes. If the call raises, it is
        retried with backoff.
        """
        ...


_OPTIONS = {
    "workers": WORKERS,
    "reconcile_timeout_s": SECONDS,
    "list_timeout_s": SECONDS,
    "stop_timeout_s": SECONDS_OR_ZERO,
}


class DynamicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a `DynamicWatcher`.

    Attributes:
        rate_limiter: the backoff of a failing watcher; by default 5 ms, doubling to 1000 s.
        overall_rate: limits the rate of all retries together; by default unlimited. The seed's
            limit is `TokenBucket(rate_per_s=10, burst=100)`.
        enable_cache: keep watched objects in memory, so that they can be read. If False, only
            their metadata is watched, if the system supports that.
        disable_initial_reconcile: do not call the reconciler for objects that exist when their
            watch starts.
        object_cache_options: the time to live of conversions of kinds to resources.
        workers: the number of watchers that are reconciled concurrently.
        reconcile_timeout_s: seconds until a call of the reconciler fails.
        list_timeout_s: seconds until a watch that has not listed its objects fails.
        stop_timeout_s: seconds that running calls may take after `stop`.
    """

    rate_limiter: ExponentialLimiter[ObjectIdentifier] | None = None
    overall_rate: TokenBucket | None = None
    enable_cache: bool = False
    disable_initial_reconcile: bool = False
    object_cache_options: ObjectCacheOptions = ObjectCacheOptions()
    workers: int = 1
    reconcile_timeout_s: float = 60.0
    list_timeout_s: float = 30.0
    stop_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise `UsageError` for a number that is out of range."""
        values = {name: getattr(self, name) for name in _OPTIONS}
        check_options("DynamicOptions", _OPTIONS, values)
