"""How long things took, in numbers that never grow."""

from bisect import bisect_left

import msgspec

BOUNDS_S = tuple(float(f"1e{exponent}") for exponent in range(-8, 4))
"""Ten nanoseconds to a quarter of an hour, in powers of ten: client-go's for its workqueue."""


class Distribution(msgspec.Struct, frozen=True):
    """A histogram as it was when it was read.

    `counts[i]` values were at most `bounds[i]` and above the bound before it; the last count, one
    more than there are bounds, is of the values above them all. `sum` is in the unit of `bounds`.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def __add__(self, other: "Distribution") -> "Distribution":
        """Return the values of both; they have the same bounds."""
        counts = (one + more for one, more in zip(self.counts, other.counts, strict=True))
        return Distribution(self.bounds, tuple(counts), self.sum + other.sum)


class Histogram:
    """Counts values between fixed bounds, given in ascending order."""

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def read(self) -> Distribution:
        """Return what was counted so far."""
        return Distribution(self._bounds, tuple(self._counts), self._sum)
