"""Keeps answers for a time; concurrent askers share one request."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class KeptAnswers(Generic[K, V]):
    """The answers of *ask*, each as it was asked for last. An error of *ask* is not kept."""

    def __init__(self, ask: Callable[[K], Awaitable[V]]) -> None:
        self._ask = ask
        self._answers: dict[K, tuple[V, float]] = {}
        self._locks: dict[K, asyncio.Lock] = {}

    async def get(self, key: K, ttl_s: Callable[[V], float]) -> V:
        """Return the answer; ask if there is none, or if it's older than its *ttl_s*."""
        clock = asyncio.get_running_loop().time
        seen = self._answers.get(key)
        if seen is not None and clock() - seen[1] < ttl_s(seen[0]):
            return seen[0]
        async with self._locks.setdefault(key, asyncio.Lock()):
            newest = self._answers.get(key)
            if newest is None or newest is seen:  # otherwise another caller has asked
                asked = clock()
                newest = self._answers[key] = await self._ask(key), asked
        return newest[0]

    def last(self, key: K) -> V | None:
        """Return the last answer, however old, or None."""
        return self._answers.get(key, (None, 0.0))[0]

    def forget(self, key: K) -> None:
        """Ask again at the next use."""
        self._answers.pop(key, None)
