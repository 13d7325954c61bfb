"""Whether a key costs the same, however many there are."""

from statistics import median

from tests.benchmarks.support.measured_server import Sizes, filled, observing
from tests.benchmarks.support.results import OURS, Row, limited

FLAT = 1.5


async def run(sizes: Sizes) -> list[Row]:
    fixed = median(await _costs(1, sizes))
    each = {
        count: [(cost - fixed) / count * 1e6 for cost in await _costs(count, sizes)]
        for count in sizes.growth
    }
    least, most = sizes.growth[0], sizes.growth[-1]
    return [
        limited(
            f"processor time per key of {count:,}",
            "µs",
            costs,
            peer=f"of {least:,}",
            theirs=each[least],
            target=f"<= {FLAT} x that of {least:,}" if count == most else "",
            enough=lambda cost: cost <= FLAT * median(each[least]),
        )
        for count, costs in each.items()
        if count != least
    ]


async def _costs(count: int, sizes: Sizes) -> list[float]:
    found = []
    async with filled(count) as server:
        for _ in range(sizes.rounds):
            async with observing(OURS, server, sizes, listed=count) as observer:
                found.append(observer.start.cpu_s)
    return found
