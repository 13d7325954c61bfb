"""Histograms with fixed bounds, which use constant memory."""

from bisect import bisect_left

import msgspec

BOUNDS_S = tuple(float(f"1e{exponent}") for exponent in range(-8, 4))
"""Powers of ten from 10 ns to 1000 s, the bounds that client-go uses for its workqueue."""


class Distribution(msgspec.Struct, frozen=True):
    """The content of a histogram at one time.

    `counts[i]` is the number of values in (`bounds[i - 1]`, `bounds[i]`]. The last count is the
    number of values above all bounds. `sum` has the unit of `bounds`.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def __add__(self, other: "Distribution") -> "Distribution":
        counts = (
            count + other_count
            for count, other_count in zip(self.counts, other.counts, strict=True)
        )
        return Distribution(self.bounds, tuple(counts), self.sum + other.sum)


class Histogram:
    """Counts values between fixed bounds, which are in ascending order.

    Values appended to `waiting` are counted by the next `read`, or by `count`: call that from time
    to time.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "waiting")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self.waiting: list[float] = []

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def count(self) -> None:
        bounds, counts = self._bounds, self._counts
        for value in self.waiting:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(self.waiting)
        self.waiting.clear()

    def read(self) -> Distribution:
        self.count()
        return Distribution(self._bounds, tuple(self._counts), self._sum)
