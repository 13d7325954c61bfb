"""The rate of handled updates at the highest rate that the server accepts."""

from tests.benchmarks.support.measured_server import Sizes, filled, observing, write
from tests.benchmarks.support.results import (
    GO_LIVE,
    OURS,
    PEER,
    SIDES,
    Row,
    compared,
    limited,
    shown,
)

COST_US = 17.0


async def run(sizes: Sizes) -> list[Row]:
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    costs: dict[str, list[float]] = {side: [] for side in SIDES}
    calls: dict[str, list[float]] = {side: [] for side in SIDES}
    count, keys = sizes.live, sizes.live_keys
    rounds, version = count // keys, 0
    async with filled(keys) as server:
        for _ in range(sizes.rounds):
            for side in SIDES:
                version += rounds
                async with observing(
                    side, server, sizes, listed=keys, then=keys, version=version
                ) as observer:
                    await write(server, keys, version=version, rounds=rounds)
                    end = await observer.end()
                assert end is not None, f"{side} did not handle {count} updates"
                rates[side].append(count / (end.seen[-1][1] - end.began))
                costs[side].append(end.cpu_s / count * 1e6)
                calls[side].append(end.handled / count)
    return [
        compared(
            f"live updates, {count:,} over {keys:,} keys handled",
            "/s",
            rates[OURS],
            rates[PEER],
            go=GO_LIVE,
            target=">= 1.4x",
            enough=lambda ratio: ratio >= 1.4,
        ),
        limited(
            "processor time per live event",
            "µs",
            costs[OURS],
            peer=PEER,
            theirs=costs[PEER],
            target=f"<= {COST_US:g} µs",
            enough=lambda cost: cost <= COST_US,
        ),
        # one sync answers all events of a key that waits for a worker
        shown("  handler calls per live event", "", calls[OURS], PEER, calls[PEER]),
    ]
