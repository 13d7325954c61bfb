"""Orders the ready keys by priority, fair share and age."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from enum import IntEnum
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


SKIPPED_MAX = 10_000  # entries of a line that are skipped, beyond the number of the others


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


class Entry(msgspec.Struct, Generic[K], gc=False, eq=False):
    """A key that is ready since a loop time, or was until it was taken.

    A key that was added later has a higher number. Many keys are added at the same loop time.
    """

    key: K
    since: float
    priority: Priority
    number: int
    is_taken: bool = False


class ReadyQueue(Generic[K]):
    """Ready keys in the order in which workers take them.

    The highest priority goes first. Within a priority, the shares alternate, and each share is
    first in, first out. While a key has been ready for longer than *ageing_s*, every second `pop`
    takes the oldest key. So every key is taken at last, and an urgent key waits for one other key
    at most.

    `keys` is a live view of the keys.

    *share_of* returns a key's share, always the same for the same key; without it all keys have one
    share. Every operation but `oldest` takes constant time. (An `OrderedDict` would take 50 ms to
    grow beyond 700,000 keys, and popping the first key of a `dict` would not take constant time.)

    A key whose priority rises is added to the line of the new priority, and stays in the old one.
    So no key of a line is older than the first one. When a line is the most urgent one that has a
    key of its priority, all keys that have left it for a more urgent line are taken.
    """

    def __init__(self, share_of: Callable[[K], Hashable] | None, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._entries: dict[K, Entry[K]] = {}  # the oldest first
        self.keys: Collection[K] = self._entries
        self._pushed = 0  # how many keys were added so far
        self._aged_at = -math.inf  # no ready key has aged before then
        self._by_age = False  # whether the last `pop` took the oldest key
        self._risen = False  # whether a key may be in several lines
        self._lines: dict[Priority, _Line[K]] = {
            priority: _Fifo(self.keys) if share_of is None else _Shares(share_of, self.keys)
            for priority in sorted(Priority, reverse=True)
        }
        self._urgent_first = tuple(self._lines.values())

    def get(self, key: K) -> Ready | None:
        """Return since when the key is ready, and its priority; None if it is not ready."""
        entry = self._entries.get(key)
        return None if entry is None else Ready(entry.since, entry.priority)

    def oldest(self) -> Iterator[tuple[K, Ready]]:
        """Yield the ready keys, the oldest first, while no key is added or removed."""
        for entry in self._entries.values():
            yield entry.key, Ready(entry.since, entry.priority)

    def push(self, key: K, priority: Priority, now: float) -> bool:
        """Add *key*, and return whether it was not ready before.

        A ready key keeps its age. It keeps its place too, unless the new priority is higher.
        """
        entry = self._entries.get(key)
        if entry is None:
            self._pushed += 1
            entry = Entry(key, now, priority, self._pushed)
            self._lines[priority].append(entry)  # raises if *share_of* does
            self._entries[key] = entry
            return True
        if priority > entry.priority:
            self._lines[priority].append(entry)
            self._lines[entry.priority].lost(entry)
            entry.priority = priority
            self._risen = True
        return False

    def pop(self, now: float) -> Entry[K]:
        """Remove and return the next key; raises `KeyError` if no key is ready."""
        if now > self._aged_at and not self._by_age and self._entries:
            firsts = filter(None, [line.first() for line in self._urgent_first])
            oldest = min(firsts, key=_number)
            self._aged_at = oldest.since + self._ageing_s
            if now > self._aged_at:
                self._by_age = True
                self.remove(oldest.key)
                return oldest
        self._by_age = False
        for line in self._urgent_first:
            if line.size:
                entry = line.pop()
                self._drop_taken(entry)
                return entry
        raise KeyError("no key is ready")

    def remove(self, key: K) -> None:
        """Drop *key* if it is ready."""
        entry = self._entries.get(key)
        if entry is not None:
            self._drop_taken(entry)
            self._lines[entry.priority].lost(entry)

    def clear(self) -> None:
        """Drop every key."""
        self._entries.clear()
        for line in self._urgent_first:
            line.clear()

    def _drop_taken(self, entry: Entry[K]) -> None:
        del self._entries[entry.key]
        entry.is_taken = True
        if self._risen:
            self._risen = bool(self._entries)
            for line in self._urgent_first:
                line.first()  # drops the keys that were taken from another line


_number = attrgetter("number")


class _Line(Protocol[K]):
    """The keys of one priority in their order; `size` is their number.

    Keys that were taken are skipped. Those that have a higher priority now are skipped by `pop`.
    """

    size: int

    def append(self, entry: Entry[K]) -> None:
        """Add a key to the end."""

    def lost(self, entry: Entry[K]) -> None:
        """Count that a key was removed, or has another priority now."""

    def first(self) -> Entry[K] | None:
        """Return the first key, None if there is none."""

    def pop(self) -> Entry[K]:
        """Remove and return the first key of this priority; there is one."""
        ...

    def clear(self) -> None:
        """Remove all keys."""


class _Fifo(Generic[K]):
    """A line that is first in, first out; *ready* are the keys of all lines."""

    def __init__(self, ready: Collection[K]) -> None:
        self.size = 0
        self._ready = ready
        self._entries = deque[Entry[K]]()

    def append(self, entry: Entry[K]) -> None:
        self.size += 1
        self._entries.append(entry)

    def lost(self, entry: Entry[K]) -> None:  # noqa: ARG002 - the protocol's signature
        self.size -= 1
        self.first()
        if len(self._entries) >= 2 * len(self._ready) + SKIPPED_MAX:
            self._entries = deque(entry for entry in self._entries if not entry.is_taken)

    def first(self) -> Entry[K] | None:
        entries = self._entries
        while entries and entries[0].is_taken:
            entries.popleft()
        return entries[0] if entries else None

    def pop(self) -> Entry[K]:
        self.size -= 1
        while (entry := self._entries.popleft()).is_taken:
            pass
        return entry

    def clear(self) -> None:
        self.size = 0
        self._entries.clear()


class _Shares(Generic[K]):
    """A line whose shares alternate; each share is first in, first out."""

    def __init__(self, share_of: Callable[[K], Hashable], ready: Collection[K]) -> None:
        self.size = 0
        self._share_of = share_of
        self._ready = ready
        self._shares: OrderedDict[Hashable, _Fifo[K]] = OrderedDict()
        self._in_order = _Fifo(ready)

    def append(self, entry: Entry[K]) -> None:
        name = self._share_of(entry.key)
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = _Fifo(self._ready)
        share.append(entry)
        self._in_order.append(entry)
        self.size += 1

    def lost(self, entry: Entry[K]) -> None:
        self.size -= 1
        self._in_order.lost(entry)
        name = self._share_of(entry.key)
        share = self._shares[name]
        share.lost(entry)
        if not share.size:
            del self._shares[name]

    def first(self) -> Entry[K] | None:
        return self._in_order.first()

    def pop(self) -> Entry[K]:
        self.size -= 1
        name, share = next(iter(self._shares.items()))
        entry = share.pop()
        if share.size:
            self._shares.move_to_end(name)
        else:
            del self._shares[name]
        self._in_order.lost(entry)
        return entry

    def clear(self) -> None:
        self.size = 0
        self._shares.clear()
        self._in_order.clear()
