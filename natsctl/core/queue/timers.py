"""Calls a function for each key when its time comes."""

import asyncio
import math
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

_Timer: TypeAlias = tuple[float, int, K]  # loop time, number, key; keys are never compared

_BATCH = 1000  # calls of `ripen` before other callbacks of the loop run
_DEAD_MAX = 64  # cancelled timers that do not justify a compaction
_AHEAD_MAX_S = 86_400.0  # the longest timer of the loop, because some loops overflow


class Timers(Generic[K]):
    """At most one timer per key, all behind a single timer of the event loop.

    Calls `ripen(key)` when a key's time has come, which uvloop reports up to half a millisecond
    early. Earlier times go first, and equal times in the order in which they were set. Keys that
    are due at the same time are handled in batches, so that 100,000 of them do not block the loop.
    Setting and cancelling take O(log n) at most. Any time is allowed, infinity too.
    """

    def __init__(self, ripen: Callable[[K], None]) -> None:
        self._ripen = ripen
        self._live: dict[K, _Timer[K]] = {}
        self._heap: list[_Timer[K]] = []  # live timers, and cancelled ones that are not removed yet
        self._numbers = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = math.inf

    def __len__(self) -> int:
        """Return the number of keys that have a timer."""
        return len(self._live)

    def get(self, key: K) -> float | None:
        """Return the loop time of the key's timer, None if the key has no timer."""
        timer = self._live.get(key)
        return None if timer is None else timer[0]

    def soonest(self, count: int) -> list[tuple[K, float]]:
        """Return up to *count* keys whose times come first, each with its loop time, in order.

        Takes time in proportion to *count*: it follows the order of the heap. It returns fewer keys
        if the heap has many cancelled timers before them.
        """
        keys: list[tuple[K, float]] = []
        reached = [(self._heap[0], 0)] if self._heap else []
        for _ in range(count + _DEAD_MAX):
            if not reached or len(keys) == count:
                break
            timer, index = heappop(reached)
            if self._is_live(timer):
                keys.append((timer[2], timer[0]))
            for below in range(2 * index + 1, min(2 * index + 3, len(self._heap))):
                heappush(reached, (self._heap[below], below))
        return keys

    def set(self, key: K, when: float) -> None:
        """Set the key's timer to the loop time *when*."""
        if self.get(key) == when:
            return
        timer = self._live[key] = (when, next(self._numbers), key)
        heappush(self._heap, timer)
        self._compact()
        self._arm()

    def cancel(self, key: K) -> None:
        """Cancel the key's timer if it has one."""
        if self._live.pop(key, None) is not None:
            self._compact()

    def clear(self) -> None:
        """Cancel every timer."""
        self._live.clear()
        self._heap.clear()
        self._disarm()

    def _compact(self) -> None:
        """Rebuild the heap when most of its timers are cancelled."""
        if not self._live:
            self.clear()
        elif len(self._heap) > 2 * len(self._live) + _DEAD_MAX:
            self._heap = list(self._live.values())
            heapify(self._heap)

    def _arm(self) -> None:
        """Set the timer of the loop no later than the earliest timer."""
        when = self._heap[0][0]
        if when < self._armed_for:
            self._disarm()
            loop = asyncio.get_running_loop()
            self._armed_for = min(when, loop.time() + _AHEAD_MAX_S)
            self._handle = loop.call_at(self._armed_for, self._fire)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._armed_for = math.inf

    def _fire(self) -> None:
        now = max(asyncio.get_running_loop().time(), self._armed_for)
        self._disarm()
        try:
            for _ in range(_BATCH):
                if not self._heap or (self._heap[0][0] > now and self._is_live(self._heap[0])):
                    break
                timer = heappop(self._heap)
                if self._is_live(timer):
                    del self._live[timer[2]]
                    self._ripen(timer[2])
        finally:
            if self._heap:
                self._arm()

    def _is_live(self, timer: _Timer[K]) -> bool:
        return self._live.get(timer[2]) is timer
