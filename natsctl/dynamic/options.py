"""How a dynamic watcher works."""

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec

from natsctl.core.queue.retry import ExponentialLimiter, TokenBucket
from natsctl.core.sync.options import COUNT, SECONDS, SECONDS_OR_ZERO, check_options
from natsctl.dynamic.identifier import ObjectIdentifier
from natsctl.dynamic.resources import ObjectCacheOptions

Reconcile = Callable[[ObjectIdentifier], Awaitable[float | None]]
"""Given a watcher, does what follows from a change of what it watches; see `Reconciler`."""


@runtime_checkable
class Reconciler(Protocol):
    """Is told which watcher watched something that came, changed or went."""

    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Do what follows for *watcher*; return the seconds until the next call, or None.

        It is called when an object that is watched begins to be watched, if it exists, and when
        one has come, changed or gone. Several changes may be one call. Failing is raising: it is
        called again, rate limited.
        """
        ...


_OPTIONS = {
    "workers": COUNT,
    "reconcile_timeout_s": SECONDS,
    "list_timeout_s": SECONDS,
    "stop_timeout_s": SECONDS_OR_ZERO,
}


class DynamicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a `DynamicWatcher`.

    Attributes:
        rate_limiter: how long a failing watcher waits: 5 ms doubling to 1000 s by default.
        overall_rate: limits the rate of all retries together; by default nothing does. The seed's
            is `TokenBucket(rate_per_s=10, burst=100)`.
        enable_cache: objects are kept, and can be read; without, only their metadata is watched
            where the system can do that.
        disable_initial_reconcile: an object that exists already when it begins to be watched is no
            reason to call the reconciler; for who reads it anyway.
        object_cache_options: how long conversions of kinds to resources are believed.
        workers: how many watchers are reconciled at once.
        reconcile_timeout_s: a call of the reconciler that takes longer fails.
        list_timeout_s: a watch that has not listed what there is by then cannot be had.
        stop_timeout_s: how long calls under way may go on after `stop`.
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


def reconcile_of(reconciler: Reconciler | Reconcile) -> Reconcile:
    """Return what to call."""
    return reconciler.reconcile if isinstance(reconciler, Reconciler) else reconciler
