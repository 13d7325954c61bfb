"""Which of the ready keys is next."""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


class Priority(IntEnum):
    """How urgent a visit is, by what asked for it; higher goes first."""

    RESYNC = 0
    """Nothing is known to have changed: a resync, the initial listing."""
    RETRY = 1
    """A failed visit, of a key that was not taken for something else."""
    SECONDARY = 2
    """Something changed that was made for the key."""
    USER = 3
    """A person or a program changed what is desired."""


class Ready(msgspec.Struct, frozen=True, gc=False):
    """Waits for a worker, `since` this loop time."""

    since: float
    priority: Priority


class ReadyQueue(Generic[K]):
    """Ready keys in the order in which they are to be taken.

    The highest priority goes first. Within a priority the shares take turns, and each share is
    first in, first out. But while any key has been ready for longer than *ageing_s*, every other
    turn goes to the oldest key: whatever arrives, every key is taken at last, and however much has
    aged, what is urgent waits for one turn only.

    `ready` shows the keys as they are now, the oldest first.

    *share_of* must always say the same of the same key; without it there is one share. All costs
    are constant, however many keys there are (an `OrderedDict` where a `dict` would be quadratic).
    """

    def __init__(self, share_of: Callable[[K], Hashable] | None, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._ready: OrderedDict[K, Ready] = OrderedDict()  # the oldest first
        self.ready: Mapping[K, Ready] = self._ready
        self._aged_at = -math.inf  # no ready key has aged before then
        self._by_age = False  # whether the last turn went to the oldest
        self._lines: dict[Priority, _Line[K]] = {  # the most urgent first
            priority: OrderedDict() if share_of is None else _Shares(share_of)
            for priority in sorted(Priority, reverse=True)
        }

    def push(self, key: K, priority: Priority, now: float) -> bool:
        """Let *key* be ready, and say whether it was not before.

        A ready key keeps its age, and its turn unless the priority is higher than what it has.
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
        """Take the next key; there must be one."""
        if now > self._aged_at and not self._by_age:
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
        """Drop *key*, if it is here."""
        ready = self._ready.pop(key, None)
        if ready is not None:
            del self._lines[ready.priority][key]

    def clear(self) -> None:
        """Drop every key."""
        self._ready.clear()
        for line in self._lines.values():
            line.clear()


class _Line(Protocol[K]):
    """Keys in the order of their turns; an `OrderedDict` is first in, first out."""

    def __len__(self) -> int: ...
    def __setitem__(self, key: K, value: None, /) -> None: ...
    def __delitem__(self, key: K, /) -> None: ...
    def popitem(self, *, last: bool) -> tuple[K, None]: ...
    def clear(self) -> None: ...


class _Shares(Generic[K]):
    """A line whose shares take turns; each is first in, first out."""

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
