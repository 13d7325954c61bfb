"""The rate of handled updates at the highest rate that the server accepts."""

from tests.benchmarks.support.measured_server import Sizes, filled, observing, write
from tests.benchmarks.support.results import OURS, PEER, SIDES, Row, compared


async def run(sizes: Sizes) -> list[Row]:
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    costs: dict[str, list[float]] = {side: [] for side in SIDES}
    count, version = sizes.live, 0
    async with filled(count) as server:
        for _ in range(sizes.rounds):
            for side in SIDES:
                version += 1
                async with observing(side, server, sizes, listed=count, then=count) as observer:
                    await write(server, count, version=version)
                    end = await observer.end()
                assert end is not None, f"{side} did not see {count} updates"
                rates[side].append(count / (end.seen[-1][1] - end.seen[0][1]))
                costs[side].append(end.cpu_s / count * 1e6)
    return [
        compared(
            f"live updates, {count:,} handled",
            "/s",
            rates[OURS],
            rates[PEER],
            target=">= 1.5x",
            enough=lambda ratio: ratio >= 1.5,
        ),
        compared("  processor time per update", "µs", costs[OURS], costs[PEER]),
    ]
