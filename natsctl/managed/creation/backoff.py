"""When to try a failed creation again: not as soon as its own record of the failure is seen."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from natsctl.core.queue.retry import ExponentialLimiter
from natsctl.errors import RetryAfter
from natsctl.managed.objects import Managed
from natsctl.managed.situation import Action

PATIENCE_S = 1.0


class Patience:
    """Makes an object wait after a failed creation, longer each time, until somebody changes it.

    Each creation writes what became of it on its object; whoever watches the object wakes its key
    for that, at once. So the wait cannot be left to the queue.
    """

    def __init__(self, *, limit_s: float) -> None:
        self._limiter = ExponentialLimiter[str](base_s=PATIENCE_S, limit_s=limit_s)
        self._until: dict[str, tuple[int, float]] = {}  # of what we wrote last, and when it is over

    @contextmanager
    def attempt(self, action: Action, managed: Managed[Any]) -> Iterator[None]:
        """Note what comes of the step inside.

        Raises `RetryAfter` where it is too soon to create, and nobody but us wrote the object
        since.
        """
        if action is Action.CREATE:
            self._check(managed)
        try:
            yield
        except Exception as error:
            if action is Action.CREATE:
                self._failed(managed, error)
            raise
        self.forget(managed.key)

    def _check(self, managed: Managed[Any]) -> None:
        revision, until = self._until.get(managed.key, (0, 0.0))
        left_s = until - asyncio.get_running_loop().time()
        if left_s > 0 and managed.stored.revision == revision:
            raise RetryAfter(left_s, f"the creation for {managed.key} failed, and waits")

    def _failed(self, managed: Managed[Any], error: Exception) -> None:
        own_s = self._limiter.fail(managed.key)
        after_s = error.delay_s if isinstance(error, RetryAfter) else own_s
        until = asyncio.get_running_loop().time() + after_s
        self._until[managed.key] = managed.stored.revision, until

    def forget(self, key: str) -> None:
        """Let the object wait for nothing."""
        self._limiter.forget(key)
        self._until.pop(key, None)
