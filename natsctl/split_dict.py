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

    Up to `WHOLE_MAX` keys are in one dict, in the order of their insertion. More keys are split by
    hash over `PARTS` dicts, and stay split; their order is then that of the parts.

    *Guarantees.* Keys may be added and removed during an iteration over the keys. It yields each
    key once that is present from its start to its end.
    """

    __slots__ = ("_count", "parts")

    def __init__(self) -> None:
        self.parts: list[dict[str, V]] = [{}]
        """The dicts: a key is in the one whose number is the remainder of its hash. Read them, and
        replace values of present keys, where a call for each of many keys takes too long. The list
        stays the same when it's split."""
        self._count = 0  # a sum over the parts takes as long as a sync

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
        if len(parts) == 1 and self._count > WHOLE_MAX:
            self._split()

    def put_all(self, values: Mapping[str, V]) -> None:
        parts = self.parts
        if len(parts) == 1 and self._count + len(values) > WHOLE_MAX:
            self._split()
        if len(parts) == 1:
            parts[0].update(values)
            self._count = len(parts[0])
            return
        for key, value in values.items():  # a call for each takes too long
            part = parts[hash(key) % PARTS]
            self._count += key not in part
            part[key] = value

    def _split(self) -> None:
        split: list[dict[str, V]] = [{} for _ in range(PARTS)]
        for key, value in self.parts[0].items():
            split[hash(key) % PARTS][key] = value
        self.parts[:] = split

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
            parts = current().parts
            if len(parts) == 1:
                keys = tuple(parts[0])
                first = int(start * len(keys))
                yield from keys[first:]
                yield from keys[:first]
                continue
            first = int(start * PARTS)
            for iterated in range(PARTS):
                parts = current().parts
                if len(parts) == 1:  # another dict, which isn't split
                    rest = [key for key in parts[0] if (hash(key) - first) % PARTS >= iterated]
                    yield from rest
                    break
                yield from tuple(parts[(first + iterated) % PARTS])
