"""Derives every choice of a run from its seed.

A choice depends on the seed and on the name of its place, not on the choices before it. So a choice
stays the same when shrinking removes other steps and faults.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")

BITS = 64
SCALE = 1 << 16  # of the fractions that `Drawn` yields


class Drawn:
    """A few numbers for one place, taken one after the other from 64 random bits."""

    __slots__ = ("_bits",)

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def share(self) -> float:
        """Return a number from 0 to less than 1; only the first four are independent."""
        self._bits, number = divmod(self._bits, SCALE)
        return number / SCALE


class Choices:
    """The choices of one seed, the same on every machine."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._key = seed.to_bytes(16, "little", signed=True)

    def draw(self, place: str) -> Drawn:
        """Return the numbers of a place."""
        digest = blake2b(place.encode(), digest_size=BITS // 8, key=self._key).digest()
        return Drawn(int.from_bytes(digest, "little"))

    def share(self, place: str) -> float:
        """Return a number from 0 to less than 1."""
        return self.draw(place).share()

    def below(self, place: str, count: int) -> int:
        """Return a whole number from 0 to less than *count*."""
        return int(self.share(place) * count)

    def pick(self, place: str, options: Sequence[T]) -> T:
        """Return one of the options."""
        return options[self.below(place, len(options))]

    def shuffled(self, place: str, items: Sequence[T]) -> list[T]:
        """Return the items in another order."""
        order = sorted(range(len(items)), key=lambda number: self.share(f"{place}/{number}"))
        return [items[number] for number in order]
