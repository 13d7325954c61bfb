"""Orders the ready keys by priority, fair share and age."""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class Priority(IntEnum):
    """The urgency of a sync; a higher one goes first."""

    RESYNC = 0
    """A resync or the initial listing: no change is known."""
    RETRY = 1
    """A retry of a key that is not held."""
    SECONDARY = 2
    """A change of one of the key's secondaries."""
    USER = 3
    """A change of the primary."""


class Ready(msgspec.Struct, frozen=True, gc=False):
    """A key that waits for a worker since a loop time."""

    since: float
    priority: Priority


class ReadyQueue(Generic[K]):
    """Ready keys in the order in which workers take them.

    The highest priority goes first. Within a priority, the shares alternate, and each share is
    first in, first out. While a key has been ready for longer than *ageing_s*, every second `pop`
    takes the oldest key. So every key is taken at last, and an urgent key waits for one other key
    at most.

    `entries` is a live view of the keys, the oldest first.

    *share_of* returns a key's share, always the same for the same key; without it all keys have one
    share. Every operation takes constant time (popping the first key of a `dict` would not).
    """

    def __init__(self, share_of: Callable[[K], Hashable] | None, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._ready: OrderedDict[K, Ready] = OrderedDict()  # the oldest first
        self.entries: Mapping[K, Ready] = self._ready
        self._aged_at = -math.inf  # no ready key has aged before then
        self._by_age = False  # whether the last `pop` took the oldest key
        self._lines: dict[Priority, _Line[K]] = {  # the most urgent first
            priority: OrderedDict() if share_of is None else _Shares(share_of)
            for priority in sorted(Priority, reverse=True)
        }

    def push(self, key: K, priority: Priority, now: float) -> bool:
        """Add *key*, and return whether it was not ready before.

        A ready key keeps its age. It keeps its place too, unless the new priority is higher.
        """
        ready = self._ready.get(key)
        if ready is None:
            self._lines[priority][key] = None
            self._ready[key] = Ready(now, priority)
            return True
        if priority > ready.priority:
            self._lines[priority][key] = None
            del self._lines[ready.priority][key]
            self._ready[key] = Ready(ready.since, priority)
        return False

    def pop(self, now: float) -> tuple[K, Ready]:
        """Remove and return the next key; raises `KeyError` if no key is ready."""
        if now > self._aged_at and not self._by_age and self._ready:
            oldest, ready = next(iter(self._ready.items()))
            self._aged_at = ready.since + self._ageing_s
            if now > self._aged_at:
                self._by_age = True
                del self._lines[ready.priority][oldest]
                return self._ready.popitem(last=False)
        self._by_age = False
        for line in self._lines.values():
            if line:
                key, _ = line.popitem(last=False)
                return key, self._ready.pop(key)
        raise KeyError("no key is ready")

    def remove(self, key: K) -> None:
        """Drop *key* if it is ready."""
        ready = self._ready.pop(key, None)
        if ready is not None:
            del self._lines[ready.priority][key]

    def clear(self) -> None:
        """Drop every key."""
        self._ready.clear()
        for line in self._lines.values():
            line.clear()


class _Line(Protocol[K]):
    """The keys of one priority in their order; an `OrderedDict` is first in, first out."""

    def __len__(self) -> int: ...
    def __setitem__(self, key: K, value: None, /) -> None: ...
    def __delitem__(self, key: K, /) -> None: ...
    def popitem(self, *, last: bool) -> tuple[K, None]: ...
    def clear(self) -> None: ...


class _Shares(Generic[K]):
    """A line whose shares alternate; each share is first in, first out."""

    def __init__(self, share_of: Callable[[K], Hashable]) -> None:
        self._share_of = share_of
        self._shares: OrderedDict[Hashable, OrderedDict[K, None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._shares)

    def __setitem__(self, key: K, value: None, /) -> None:
        share = self._share_of(key)
        keys = self._shares.get(share)
        if keys is None:
            keys = self._shares[share] = OrderedDict()
        keys[key] = value

    def __delitem__(self, key: K, /) -> None:
        share = self._share_of(key)
        keys = self._shares[share]
        del keys[key]
        if not keys:
            del self._shares[share]

    def popitem(self, *, last: bool) -> tuple[K, None]:
        share, keys = next(iter(self._shares.items()))
        item = keys.popitem(last=last)
        if keys:
            self._shares.move_to_end(share)
        else:
            del self._shares[share]
        return item

    def clear(self) -> None:
        self._shares.clear()
