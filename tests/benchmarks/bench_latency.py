"""The time from sending a put to the start of its handler."""

from statistics import quantiles

from tests.benchmarks.support.measured_server import Sizes, filled, observing, write
from tests.benchmarks.support.results import OURS, PEER, SIDES, Row, compared


async def run(sizes: Sizes) -> list[Row]:
    p50: dict[str, list[float]] = {side: [] for side in SIDES}
    p99: dict[str, list[float]] = {side: [] for side in SIDES}
    count, version = sizes.puts, 0
    async with filled(count) as server:
        for _ in range(sizes.rounds):
            for side in SIDES:
                version += 1
                async with observing(
                    side, server, sizes, listed=count, followed=count, version=version
                ) as observer:
                    sent = await write(server, count, version=version, rate=sizes.puts_per_s)
                    end = await observer.end()
                assert end is not None, f"{side} did not see {count} updates"
                delays = quantiles(((seen - sent[key]) * 1e6 for key, seen in end.seen), n=100)
                p50[side].append(delays[49])
                p99[side].append(delays[98])
    title = f"put to handler at {sizes.puts_per_s:,}/s"
    return [
        compared(f"{title}, {name}", "µs", delays_us[OURS], delays_us[PEER], at_most=1.0)
        for name, delays_us in (("p50", p50), ("p99", p99))
    ]
