"""Holds many keys that are to be added to a queue, and adds a few of them at a time."""

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

FEW = 100  # ready keys, below which more keys are added

_Walk: TypeAlias = tuple[Iterator[tuple[K, int]], Callable[[K], object]]
"""The keys, each with the number of keys after it, and the function that adds them."""


class Backlog(Generic[K]):
    """The keys that wait to be added. `size` counts them, twice if they were appended twice."""

    def __init__(self) -> None:
        self.size = 0
        self._walks: deque[_Walk[K]] = deque()

    def append(self, keys: Collection[K], add: Callable[[K], object]) -> None:
        """Call *add* for each of the keys later; they must not change."""
        if keys:
            self.size += len(keys)
            left = range(len(keys) - 1, -1, -1)
            self._walks.append((zip(keys, left, strict=True), add))

    def refill(self, ready: int) -> None:
        """Add `FEW` keys if fewer than that are ready."""
        if ready >= FEW:
            return
        for _ in range(min(FEW, self.size)):
            keys, add = self._walks[0]
            key, left = next(keys)
            self.size -= 1
            if not left:
                self._walks.popleft()
            add(key)
