"""Delays the retry of a failed creation."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from natsctl.core.retry import backoff
from natsctl.errors import RetryAfter
from natsctl.managed.objects import Managed
from natsctl.managed.situation import ReconcileAction

BACKOFF_S = 1.0
EARLY_S = 0.001  # a timer fires up to this early; a shorter wait would be repeated at once


class CreationBackoff:
    """A backoff per object after failed creations.

    The backoff ends when another writer changes the object.

    The backoff of the work queue cannot delay the retry: a failed creation stores its result on the
    object, and the watch enqueues the key for that change at once.
    """

    def __init__(self, *, limit_s: float) -> None:
        self._limit_s = limit_s
        self._failures: dict[str, int] = {}
        # by key: the revision after the failure, and the end of the wait
        self._waits: dict[str, tuple[int, float]] = {}

    @contextmanager
    def attempt(self, action: ReconcileAction, managed: Managed[Any]) -> Iterator[None]:
        """Record whether the step inside the context fails.

        Raises `RetryAfter` if the action is a creation, the wait is not over, and no other writer
        has changed the object.
        """
        if action is ReconcileAction.CREATE:
            self._check(managed)
        try:
            yield
        except Exception as error:
            if action is ReconcileAction.CREATE:
                self._failed(managed, error)
            raise
        self.forget(managed.key)

    def _check(self, managed: Managed[Any]) -> None:
        revision, until = self._waits.get(managed.key, (0, 0.0))
        left_s = until - asyncio.get_running_loop().time()
        if left_s > EARLY_S and managed.stored.revision == revision:
            raise RetryAfter(left_s, f"the creation for {managed.key} failed and is retried later")

    def _failed(self, managed: Managed[Any], error: Exception) -> None:
        failures = self._failures[managed.key] = self._failures.get(managed.key, 0) + 1
        backoff_s = backoff(failures, base_s=BACKOFF_S, limit_s=self._limit_s)
        after_s = error.delay_s if isinstance(error, RetryAfter) else backoff_s
        until = asyncio.get_running_loop().time() + after_s
        self._waits[managed.key] = managed.stored.revision, until

    def wait_of(self, key: str) -> tuple[int, float] | None:
        """Return the revision after the failure and the seconds to wait; None without a wait."""
        known = self._waits.get(key)
        if known is None:
            return None
        return known[0], max(0.0, known[1] - asyncio.get_running_loop().time())

    def wait(self, key: str, revision: int, left_s: float) -> None:
        """Wait *left_s* seconds, as `wait_of` returned them."""
        self._waits[key] = revision, asyncio.get_running_loop().time() + left_s

    def forget(self, key: str) -> None:
        """Reset the backoff of the object."""
        self._failures.pop(key, None)
        self._waits.pop(key, None)
