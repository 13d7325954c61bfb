"""When to look at an external resource again."""

import random
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from natsctl.errors import UsageError
from natsctl.managed.objects import Managed

T = TypeVar("T")

PollIntervalHook: TypeAlias = Callable[[Managed[T], float], float]
"""Says in how many seconds an object is reconciled again, from it and the usual interval."""

SOON_S = 1.0


class Poll(Generic[T]):
    """Says when a resource that needs nothing now is looked at again, in seconds.

    Raises `UsageError` for a hook and a jitter together: a jitter is a hook too.
    """

    def __init__(
        self, interval_s: float, hook: PollIntervalHook[T] | None, jitter_s: float
    ) -> None:
        if hook is not None and jitter_s:
            raise UsageError("give a poll_interval_hook or a poll_jitter_s: each says the interval")
        self._interval_s = interval_s
        self._hook = hook
        self._jitter_s = jitter_s

    def after_s(self, managed: Managed[T]) -> float:
        """Return when to come back to what is up to date."""
        if self._hook is not None:
            return max(0.0, self._hook(managed, self._interval_s))
        jitter_s = random.uniform(-self._jitter_s, self._jitter_s)  # noqa: S311 - spreads load
        return max(0.0, self._interval_s + jitter_s)

    def soon_s(self, age_s: float) -> float:
        """Return when to come back to what is under way: after as long again as it has taken."""
        return min(max(age_s, SOON_S), max(self._interval_s, SOON_S))
