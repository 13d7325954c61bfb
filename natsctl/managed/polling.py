"""Decides when an external resource is observed again."""

import random
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from natsctl.errors import HandlerError, UsageError, is_delay
from natsctl.managed.objects import Managed
from natsctl.telemetry.hiding import shown

T = TypeVar("T")

PollIntervalHook: TypeAlias = Callable[[Managed[T], float], float]
"""Returns the seconds until the next reconciliation, from an object and the usual interval."""

SOON_S = 1.0
INTERVAL_MIN_S = 0.1  # between two reconciliations, with any hook or jitter


class Poll(Generic[T]):
    """Computes the seconds until the next reconciliation of an object.

    Raises `UsageError` for a hook and a jitter together.
    """

    def __init__(
        self, interval_s: float, hook: PollIntervalHook[T] | None, jitter_s: float
    ) -> None:
        if hook is not None and jitter_s:
            raise UsageError("set poll_interval_hook or poll_jitter_s, not both")
        self._interval_s = interval_s
        self._hook = hook
        self._jitter_s = jitter_s

    def after_s(self, managed: Managed[T]) -> float:
        """Return the interval for a resource that is up to date."""
        if self._hook is not None:
            return self._hook_delay(self._hook(managed, self._interval_s))
        jitter_s = random.uniform(-self._jitter_s, self._jitter_s)  # noqa: S311 - spreads load
        return max(INTERVAL_MIN_S, self._interval_s + jitter_s)

    def _hook_delay(self, after_s: float) -> float:
        if not is_delay(after_s):
            raise HandlerError(f"poll_interval_hook returned {shown(after_s)}: return seconds")
        return max(INTERVAL_MIN_S, after_s)

    def soon_s(self, age_s: float) -> float:
        """Return the interval for an operation in progress: as long as it has already taken."""
        return min(max(age_s, SOON_S), max(self._interval_s, SOON_S))
