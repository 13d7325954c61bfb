"""The processor time per key for buckets of different sizes."""

from statistics import median

from tests.benchmarks.support.measured_server import Sizes, filled, observing
from tests.benchmarks.support.results import OURS, Row, limited

FLAT = 1.5


async def run(sizes: Sizes) -> list[Row]:
    fixed = median(await _costs(1, sizes))
    cost_per_key = {
        count: [(cost - fixed) / count * 1e6 for cost in await _costs(count, sizes)]
        for count in sizes.growth
    }
    smallest, largest = sizes.growth[0], sizes.growth[-1]
    return [
        limited(
            f"processor time per key of {count:,}",
            "µs",
            costs,
            peer=f"of {smallest:,}",
            theirs=cost_per_key[smallest],
            target=f"<= {FLAT} x that of {smallest:,}" if count == largest else "",
            enough=lambda cost: cost <= FLAT * median(cost_per_key[smallest]),
        )
        for count, costs in cost_per_key.items()
        if count != smallest
    ]


async def _costs(count: int, sizes: Sizes) -> list[float]:
    costs = []
    async with filled(count) as server:
        for _ in range(sizes.rounds):
            async with observing(OURS, server, sizes, listed=count) as observer:
                costs.append(observer.start.cpu_s)
    return costs
