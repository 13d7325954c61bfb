"""Divides long work into slices, between which other tasks run.

All sliced work of an event loop shares `TURN_S` seconds of each turn of the loop, in equal parts.
So a timer, a message or a request waits for about `TURN_S`, no matter how many tasks are at work.
A change waits for two turns: one until its message is read, and one until its key is synced.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from heapq import merge
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")

TURN_S = 0.004  # of the sliced work of all tasks, in one turn of the event loop
SAME_CLOCK_S = 0.01  # between two readings of the same clock
SORTED_MAX = 5_000  # items that are sorted at once, which takes a few milliseconds
ITEMS_MAX = 500  # of one slice, so that other tasks run also if no time passes


class Slices:
    """The slices of one task.

    Call `is_over` after each item of the work, and `pause` if it's true:

        slices = Slices()
        for item in items:
            handle(item)
            if slices.is_over():
                await slices.pause()

    *Guarantees.* Each slice does at least one item, and at most `ITEMS_MAX`. If the task waited for
    something else, it has begun a new slice.

    *Assumes.* One item takes far less time than a slice. Other tasks run in `pause`, so *items* is
    a copy of any collection that they change.

    Args:
        stride: the number of items after which the clock is read, for items that take little time.
    """

    __slots__ = ("_ends_at", "_left", "_number", "_stride", "_turns", "clock")

    def __init__(self, stride: int = 1) -> None:
        self._stride = stride
        self._turns = _turns()
        self.clock = self._turns.clock  # reads the time, in seconds
        self.begin()

    def is_over(self) -> bool:
        """Return whether other tasks should run before the next item."""
        self._left -= 1
        if self._left % self._stride:
            return False
        if self._number != self._turns.number:  # the task has waited
            self.begin()
            return False
        return self._left <= 0 or self.clock() >= self._ends_at

    def is_over_after(self, count: int) -> bool:
        """Return whether other tasks should run, after *count* items."""
        if self._number != self._turns.number:  # the task has waited
            self.begin()
            return False
        self._left -= count
        return self._left <= 0 or self.clock() >= self._ends_at

    async def pause(self) -> None:
        """Let other tasks run, and begin the next slice."""
        await asyncio.sleep(0)
        self.begin()

    def begin(self) -> float:
        """Begin a slice, and return the time at which it ends by `clock`.

        For a task that reads the clock itself, and takes `ITEMS_MAX` items at most.
        """
        self._number, self._left = self._turns.number, ITEMS_MAX
        self._ends_at = ends_at = self._turns.begin_slice()
        return ends_at


async def in_slices(items: Iterable[T], work: Callable[[T], object]) -> None:
    """Call *work* for each item, in slices; see `Slices`."""
    slices = Slices()
    for item in items:
        work(item)
        if slices.is_over():
            await slices.pause()


async def retain(
    keys: Iterable[T], wanted: Callable[[T], bool], drop: Callable[[T], object]
) -> None:
    """Call *drop* for each of the present *keys* that isn't *wanted*, in slices."""
    await in_slices(tuple(keys), lambda key: wanted(key) or drop(key))


async def in_order(items: Iterable[T], by: Callable[[T], Any] | None = None) -> list[T]:
    """Return the items sorted *by* their ranks, like `sorted`, in slices.

    Other tasks run during the iteration over *items*.
    """
    remaining, parts = iter(items), list[list[T]]()
    while part := list(islice(remaining, SORTED_MAX)):
        part.sort(key=by)
        parts.append(part)
        if len(part) == SORTED_MAX:
            await asyncio.sleep(0)
    if len(parts) <= 1:
        return parts[0] if parts else []
    ordered: list[T] = []
    await in_slices(merge(*parts, key=by), ordered.append)  # type: ignore[arg-type]  # None is one of the overloads
    return ordered


class _Turns:
    """The turns of an event loop, and how many slices each has."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.clock = _clock(loop)
        self.number = 0
        self._slices = 0
        self._slices_before = 0  # falls by one per turn, because a task may be idle for a turn

    def begin_slice(self) -> float:
        if not self._slices:
            self.loop.call_soon(self._next)
        self._slices += 1
        return self.clock() + TURN_S / max(self._slices, self._slices_before)

    def _next(self) -> None:
        self.number += 1
        self._slices_before = max(self._slices, self._slices_before - 1)
        self._slices = 0


def _clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the clock of the loop; `time.monotonic` if that is the same clock.

    The time of uvloop's loop has whole milliseconds, which would make short slices twice as long.
    """
    is_same = abs(loop.time() - time.monotonic()) < SAME_CLOCK_S
    return time.monotonic if is_same else loop.time


class _Thread(threading.local):
    """The turns of this thread's last event loop."""

    turns: _Turns | None = None


_thread = _Thread()


def _turns() -> _Turns:
    loop, turns = asyncio.get_running_loop(), _thread.turns
    if turns is None or turns.loop is not loop:
        turns = _thread.turns = _Turns(loop)
    return turns
