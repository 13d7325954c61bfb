"""Orders the ready keys by priority, fair share and age."""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

import msgspec

K = TypeVar("K", bound=Hashable)


SKIPPED_MAX = 10_000  # entries of a deque that are skipped, beyond the number of the others


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

    `keys` is a live view of the keys.

    *share_of* returns a key's share, always the same for the same key; without it all keys have one
    share. Every operation takes constant time. (An `OrderedDict` would take 50 ms to grow beyond
    700,000 keys, and popping the first key of a `dict` would not take constant time.)
    """

    def __init__(self, share_of: Callable[[K], Hashable] | None, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._entries: dict[K, _Entry[K]] = {}
        self.keys: Collection[K] = self._entries
        self._by_since = deque[_Entry[K]]()  # the oldest first; some are taken
        self._aged_at = -math.inf  # no ready key has aged before then
        self._by_age = False  # whether the last `pop` took the oldest key
        self._lines: dict[Priority, _Line[K]] = {  # the most urgent first
            priority: _Share(priority) if share_of is None else _Shares(priority, share_of)
            for priority in sorted(Priority, reverse=True)
        }

    def get(self, key: K) -> Ready | None:
        """Return since when the key is ready, and its priority; None if it is not ready."""
        entry = self._entries.get(key)
        return None if entry is None else Ready(entry.since, entry.priority)

    def oldest(self) -> Iterator[tuple[K, Ready]]:
        """Yield the ready keys, the oldest first, while no key is added or removed."""
        for entry in self._by_since:
            if not entry.is_taken:
                yield entry.key, Ready(entry.since, entry.priority)

    def push(self, key: K, priority: Priority, now: float) -> bool:
        """Add *key*, and return whether it was not ready before.

        A ready key keeps its age. It keeps its place too, unless the new priority is higher.
        """
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(key, now, priority)
            self._lines[priority].append(entry)  # raises if *share_of* does
            self._entries[key] = entry
            self._by_since.append(entry)
            return True
        if priority > entry.priority:
            self._lines[priority].append(entry)
            line, entry.priority = self._lines[entry.priority], priority
            line.lost(entry)
        return False

    def pop(self, now: float) -> tuple[K, Ready]:
        """Remove and return the next key; raises `KeyError` if no key is ready."""
        if now > self._aged_at and not self._by_age and self._entries:
            oldest = self._by_since[0]
            self._aged_at = oldest.since + self._ageing_s
            if now > self._aged_at:
                self._by_age = True
                self.remove(oldest.key)
                return oldest.key, Ready(oldest.since, oldest.priority)
        self._by_age = False
        for line in self._lines.values():
            if line.size:
                entry = line.pop()
                self._take(entry)
                return entry.key, Ready(entry.since, entry.priority)
        raise KeyError("no key is ready")

    def remove(self, key: K) -> None:
        """Drop *key* if it is ready."""
        entry = self._entries.get(key)
        if entry is not None:
            self._take(entry)
            self._lines[entry.priority].lost(entry)

    def clear(self) -> None:
        """Drop every key."""
        self._entries.clear()
        self._by_since.clear()
        for line in self._lines.values():
            line.clear()

    def _take(self, entry: "_Entry[K]") -> None:
        del self._entries[entry.key]
        entry.is_taken = True
        by_since = self._by_since
        while by_since and by_since[0].is_taken:
            by_since.popleft()
        if len(by_since) > 2 * len(self._entries) + SKIPPED_MAX:
            self._by_since = deque(entry for entry in by_since if not entry.is_taken)


class _Entry(msgspec.Struct, Generic[K], gc=False, eq=False):
    """A ready key. An entry that is taken, or in the line of a lower priority, is skipped there."""

    key: K
    since: float
    priority: Priority
    is_taken: bool = False


class _Line(Protocol[K]):
    """The keys of one priority in their order; `size` is their number."""

    size: int

    def append(self, entry: _Entry[K]) -> None:
        """Add a key to the end."""

    def lost(self, entry: _Entry[K]) -> None:
        """Count that a key is taken, or has another priority now."""

    def pop(self) -> _Entry[K]:
        """Remove and return the first key; the line is not empty."""
        ...

    def clear(self) -> None:
        """Remove all keys."""


class _Share(Generic[K]):
    """A line that is first in, first out."""

    def __init__(self, priority: Priority) -> None:
        self.size = 0
        self._priority = priority
        self._entries = deque[_Entry[K]]()

    def append(self, entry: _Entry[K]) -> None:
        self.size += 1
        self._entries.append(entry)

    def lost(self, entry: _Entry[K]) -> None:  # noqa: ARG002 - the protocol's signature
        self.size -= 1
        entries = self._entries
        while entries and self._is_gone(entries[0]):
            entries.popleft()
        if len(entries) > 2 * self.size + SKIPPED_MAX:
            self._entries = deque(entry for entry in entries if not self._is_gone(entry))

    def pop(self) -> _Entry[K]:
        self.size -= 1
        while self._is_gone(entry := self._entries.popleft()):
            pass
        return entry

    def clear(self) -> None:
        self.size = 0
        self._entries.clear()

    def _is_gone(self, entry: _Entry[K]) -> bool:
        return entry.is_taken or entry.priority is not self._priority


class _Shares(Generic[K]):
    """A line whose shares alternate; each share is first in, first out."""

    def __init__(self, priority: Priority, share_of: Callable[[K], Hashable]) -> None:
        self.size = 0
        self._priority = priority
        self._share_of = share_of
        self._shares: OrderedDict[Hashable, _Share[K]] = OrderedDict()

    def append(self, entry: _Entry[K]) -> None:
        name = self._share_of(entry.key)
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = _Share(self._priority)
        share.append(entry)
        self.size += 1

    def lost(self, entry: _Entry[K]) -> None:
        self.size -= 1
        name = self._share_of(entry.key)
        share = self._shares[name]
        share.lost(entry)
        if not share.size:
            del self._shares[name]

    def pop(self) -> _Entry[K]:
        self.size -= 1
        name, share = next(iter(self._shares.items()))
        entry = share.pop()
        if share.size:
            self._shares.move_to_end(name)
        else:
            del self._shares[name]
        return entry

    def clear(self) -> None:
        self.size = 0
        self._shares.clear()
