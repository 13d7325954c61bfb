"""Which keys ripen, and when."""

import asyncio
import math
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, TypeAlias, TypeVar

K = TypeVar("K", bound=Hashable)

_Timer: TypeAlias = tuple[float, int, K]  # when, number, whose; keys are never compared

_BATCH = 1000  # keys ripened before the loop gets its turn
_DEAD_MAX = 64  # cancelled timers not worth a compaction
_AHEAD_MAX_S = 86_400.0  # no loop is asked to look further ahead: some overflow


class Timers(Generic[K]):
    """At most one timer per key; however many there are, the loop sees one.

    Calls `ripen(key)` from the loop once the loop says that a key's time has come (uvloop says so
    up to half a millisecond early): earlier times first, and in the order set where times are
    equal. Ripe keys come in batches, so that a hundred thousand of them do not hold up the loop.
    Setting and cancelling cost O(log n) at most. Any time is fine, infinity too.
    """

    def __init__(self, ripen: Callable[[K], None]) -> None:
        self._ripen = ripen
        self._live: dict[K, _Timer[K]] = {}
        self._heap: list[_Timer[K]] = []  # every live timer, and dead ones until they are met
        self._numbers = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = math.inf

    def __len__(self) -> int:
        """Count the keys that wait."""
        return len(self._live)

    def get(self, key: K) -> float | None:
        """Return the loop time at which *key* ripens, None for a key that has no timer."""
        timer = self._live.get(key)
        return None if timer is None else timer[0]

    def set(self, key: K, when: float) -> None:
        """Let *key* ripen at the loop time *when*, instead of when it would have."""
        if self.get(key) == when:
            return
        timer = self._live[key] = (when, next(self._numbers), key)
        heappush(self._heap, timer)
        self._compact()
        self._arm()

    def cancel(self, key: K) -> None:
        """Let *key* not ripen; a key that has no timer is fine."""
        if self._live.pop(key, None) is not None:
            self._compact()

    def clear(self) -> None:
        """Cancel every timer."""
        self._live.clear()
        self._heap.clear()
        self._disarm()

    def _compact(self) -> None:
        """Rebuild the heap once most of it is dead, so that it stays as small as what lives."""
        if not self._live:
            self.clear()
        elif len(self._heap) > 2 * len(self._live) + _DEAD_MAX:
            self._heap = list(self._live.values())
            heapify(self._heap)

    def _arm(self) -> None:
        """Have the loop call no later than the earliest timer."""
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
