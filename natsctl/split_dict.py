"""Keeps many keys in small dicts, because the growth of a large dict stalls the event loop.

Python grows a dict at one insertion: it moves all keys, which takes 30 ms for 700,000 keys. Two
dicts with the same keys grow at the same time. Here, each of the small dicts grows alone.
"""

from collections.abc import Callable, Iterator, KeysView, Mapping
from typing import Any, TypeVar, overload

T = TypeVar("T")
V = TypeVar("V")

WHOLE_MAX = 30_000  # keys of one dict; more keys are split
PARTS = 251  # a prime, so that the keys of a part differ in the low bits of their hashes


class SplitDict(Mapping[str, V]):
    """A dict of texts in which no operation on a key takes longer than a few milliseconds.

    Up to *whole_max* keys are in one dict, in the order of their insertion. More keys are split by
    hash over `PARTS` dicts, and stay split; their order is then that of the parts.

    *Guarantees.* Keys may be added and removed during an iteration over the keys. It yields each
    key once that is present from its start to its end.
    """

    __slots__ = ("_count", "_whole_max", "parts")

    def __init__(self, *, whole_max: int = WHOLE_MAX) -> None:
        self.parts: list[dict[str, V]] = [{}]
        """The dicts: a key is in the one whose number is the remainder of its hash. Read them, and
        replace values of present keys, where a call for each of many keys takes too long. The list
        stays the same when it's split."""
        self._count = 0  # a sum over the parts takes as long as a sync
        self._whole_max = whole_max

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for part in tuple(self.parts):
            yield from tuple(part)

    def __contains__(self, key: object) -> bool:
        parts = self.parts
        return key in parts[hash(key) % len(parts)]

    def __getitem__(self, key: str) -> V:
        parts = self.parts
        return parts[hash(key) % len(parts)][key]

    def __setitem__(self, key: str, value: V) -> None:
        parts = self.parts
        part = parts[hash(key) % len(parts)]
        if key in part:
            part[key] = value
            return
        part[key] = value
        self._count += 1
        if len(parts) == 1 and self._count > self._whole_max:
            self._split(part)

    def put_all(self, values: Mapping[str, V]) -> None:
        if len(self.parts) == 1 and self._count + len(values) <= self._whole_max:
            self.parts[0].update(values)
            self._count = len(self.parts[0])
        else:
            for key, value in values.items():
                self[key] = value

    @overload
    def get(self, key: str, /) -> V | None: ...
    @overload
    def get(self, key: str, /, default: V | T) -> V | T: ...
    def get(self, key: str, /, default: V | T | None = None) -> V | T | None:
        parts = self.parts
        return parts[hash(key) % len(parts)].get(key, default)

    def pop(self, key: str) -> V | None:
        parts = self.parts
        part = parts[hash(key) % len(parts)]
        size = len(part)
        value = part.pop(key, None)
        self._count -= size - len(part)
        return value

    def drain(self) -> Iterator[None]:
        """Remove all keys, one by one.

        Python would free a million values at once, which stalls the event loop.
        """
        for part in self.parts:
            while part:
                part.popitem()
                self._count -= 1
                yield

    @property
    def is_split(self) -> bool:
        return len(self.parts) > 1

    def part(self, number: int) -> tuple[str, ...]:
        """Return the keys whose hashes have this remainder by `PARTS`, of a split dict."""
        return tuple(self.parts[number])

    def _split(self, table: dict[str, V]) -> None:
        parts: list[dict[str, V]] = [{} for _ in range(PARTS)]
        for key, value in table.items():
            parts[hash(key) % PARTS][key] = value
        self.parts[:] = parts


class CurrentKeys(KeysView[str]):
    """The keys of some dicts, each of which another one may replace.

    *Guarantees.* An iteration yields each key once that is present all the time, in every dict that
    is current in between.
    """

    def __init__(self, *current: Callable[[], SplitDict[Any]]) -> None:
        self._current = current

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"

    def __len__(self) -> int:
        return sum(len(current()) for current in self._current)

    def __contains__(self, key: object) -> bool:
        return any(key in current() for current in self._current)

    def __iter__(self) -> Iterator[str]:
        return self.iterate()

    def iterate(self, start: float = 0.0) -> Iterator[str]:
        """Yield all keys; *start* is the share of them before the first one, 0 to 1."""
        for current in self._current:
            yield from _iterate(current, start)


def _iterate(current: Callable[[], SplitDict[Any]], start: float) -> Iterator[str]:
    keys = current()
    if not keys.is_split:
        all_keys = tuple(keys)
        first = int(start * len(all_keys))
        yield from all_keys[first:]
        yield from all_keys[:first]
        return
    first = int(start * PARTS)
    for iterated in range(PARTS):
        keys = current()
        if not keys.is_split:
            yield from [key for key in keys if (hash(key) - first) % PARTS >= iterated]
            return
        yield from keys.part((first + iterated) % PARTS)
