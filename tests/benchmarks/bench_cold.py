"""A cold start: the rate of handled keys of an existing bucket."""

from tests.benchmarks.support.measured_server import Sizes, filled, observing
from tests.benchmarks.support.results import (
    ALL_SIDES,
    GO_COLD,
    JSON_PEER,
    OURS,
    PEER,
    Row,
    compared,
)


async def run(sizes: Sizes) -> list[Row]:
    rates: dict[str, list[float]] = {side: [] for side in ALL_SIDES}
    costs: dict[str, list[float]] = {side: [] for side in ALL_SIDES}
    async with filled(sizes.keys) as server:
        for _ in range(sizes.rounds):
            for side in ALL_SIDES:
                async with observing(side, server, sizes, listed=sizes.keys) as observer:
                    start = observer.start
                rates[side].append(sizes.keys / start.wall_s)
                costs[side].append(start.cpu_s / sizes.keys * 1e6)
    return [
        compared(
            f"cold start, {sizes.keys:,} keys handled",
            "/s",
            rates[OURS],
            rates[PEER],
            go=GO_COLD,
            at_least=1.05,
        ),
        compared("  beside json.loads", "/s", rates[OURS], rates[JSON_PEER], peer=JSON_PEER),
        compared("  processor time per key", "µs", costs[OURS], costs[PEER]),
    ]
