"""Holds many keys that are to be added to a queue, and adds a few of them at a time."""

from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FEW = 100  # ready keys, below which more keys are added


class _Walk(Generic[K]):
    """An iteration over keys; `left` is the number of keys that are left, 0 at its end only."""

    def __init__(self, keys: Collection[K], add: Callable[[K], object]) -> None:
        self._keys = iter(keys)
        self._add = add
        self._next: K | None = next(self._keys, None)
        self.left = 0 if self._next is None else max(1, len(keys))

    def step(self) -> None:
        """Add the next key, if there is one."""
        key, self._next = self._next, next(self._keys, None)
        self.left = 0 if self._next is None else max(1, self.left - 1)
        if key is not None:
            self._add(key)


class Backlog(Generic[K]):
    """The keys that wait to be added. `size` counts them, twice if they were appended twice.

    Keys may be added to a collection and removed from it while it is here, if its iteration allows
    that. `size` is then a little off until the end of the collection.
    """

    def __init__(self) -> None:
        self.size = 0
        self._walks: deque[_Walk[K]] = deque()

    def append(self, keys: Collection[K], add: Callable[[K], object]) -> None:
        """Call *add* for each of the keys later."""
        walk = _Walk(keys, add)
        if walk.left:
            self.size += walk.left
            self._walks.append(walk)

    def refill(self, ready: int) -> None:
        """Add `FEW` keys if fewer than that are ready."""
        if ready >= FEW:
            return
        for _ in range(FEW):
            if not self._walks:
                return
            walk = self._walks[0]
            before = walk.left
            walk.step()
            self.size += walk.left - before
            if not walk.left:
                self._walks.popleft()
