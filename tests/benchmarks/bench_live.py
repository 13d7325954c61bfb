"""Live updates: the rate of handled updates, and the processor time of an event."""

from tests.benchmarks.support.measured_server import Sizes, filled, observing, write
from tests.benchmarks.support.results import (
    ALL_SIDES,
    BARE,
    GO_LIVE,
    JSON_PEER,
    OURS,
    PEER,
    Row,
    compared,
    limited,
    shown,
)
from tests.benchmarks.support.watch_process import End
from tests.support.servers.nats_server import NatsServer

COST_US = 11.0
BURST = 250  # paced updates that are sent together, about as many as one read of a busy socket has

Values = dict[str, list[float]]


async def run(sizes: Sizes) -> list[Row]:
    rates, flooded, paced, calls = (
        Values((side, []) for side in (*ALL_SIDES, BARE)) for _ in range(4)
    )
    count, keys = sizes.live, sizes.live_keys
    rounds, version = count // keys, 0
    async with filled(keys) as server:
        for _ in range(sizes.rounds):
            for side in (*ALL_SIDES, BARE):
                version += rounds
                end = await _end(side, server, sizes, version, rounds)
                rates[side].append(count / (end.seen[-1][1] - end.began))
                flooded[side].append(end.cpu_s / count * 1e6)
                calls[side].append(end.handled / count)
                version += 1
                end = await _end(side, server, sizes, version, 1, rate=sizes.live_per_s)
                paced[side].append(end.cpu_s / keys * 1e6)
    return [
        compared(
            f"live updates, {count:,} over {keys:,} keys handled",
            "/s",
            rates[OURS],
            rates[PEER],
            go=GO_LIVE,
            at_least=1.1,
        ),
        compared("  beside json.loads", "/s", rates[OURS], rates[JSON_PEER], peer=JSON_PEER),
        # one sync answers all events of a key that waits for a worker
        shown("  handler calls per event", "", calls[OURS], PEER, calls[PEER]),
        shown("  processor time per event", "µs", flooded[OURS], PEER, flooded[PEER]),
        limited(
            f"processor time per live event, {sizes.live_per_s:,}/s, each handled",
            "µs",
            paced[OURS],
            PEER,
            paced[PEER],
            at_most=COST_US,
        ),
        shown("  of a socket, JSON and a handler alone", "µs", paced[BARE]),
    ]


async def _end(
    side: str, server: NatsServer, sizes: Sizes, version: int, rounds: int, *, rate: int = 0
) -> End:
    """Update each key *rounds* times, the last time to *version*, and wait until it is handled."""
    keys = sizes.live_keys
    async with observing(
        side, server, sizes, listed=keys, followed=keys, version=version
    ) as observer:
        await write(server, keys, version=version, rounds=rounds, rate=rate, burst=BURST)
        end = await observer.end()
    assert end is not None, f"{side} did not handle version {version} of all keys"
    return end
