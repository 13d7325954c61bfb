"""A plan of 10,000 unchanged primaries, beside a start that syncs them.

All seconds are processor time, because other processes disturb processor time least.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import process_time

from controllers.greetings import Greetings
from natsctl import ControllerRuntime, plan
from natsctl.testing import MemoryStores
from tests.benchmarks.support.measured_server import Sizes
from tests.benchmarks.support.results import Row, compared

KEYS = 10_000
RATIO_MAX = 1.1  # a plan also looks for orphans, which a daemon does at its first GC cycle


async def run(sizes: Sizes) -> list[Row]:
    stores = MemoryStores()
    greetings = stores.store(Greetings.greetings.kind)
    for number in range(KEYS):
        await greetings.create(f"k{number}", b'{"spec":{"text":"hi"}}')
    await start(stores)
    starts, plans = [], []
    for _ in range(sizes.rounds):
        starts.append(await timed(lambda: start(stores)))
        plans.append(await timed(lambda: plan(Greetings(), nats=stores)))
    return [
        compared(
            f"plan of {KEYS:,} unchanged primaries",
            "s",
            plans,
            starts,
            peer="a start that syncs them",
            target=f"<= {RATIO_MAX} x the start",
            enough=lambda ratio: ratio <= RATIO_MAX,
        )
    ]


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Return the processor time of the work."""
    started = process_time()
    await work()
    return process_time() - started


async def start(stores: MemoryStores) -> None:
    """Run the controller until every primary is synced."""
    runtime = ControllerRuntime(Greetings(), nats=stores)
    task = asyncio.create_task(runtime.run())
    await runtime.synced.wait()
    while not runtime.idle:  # noqa: ASYNC110 - the benchmark polls as the plan does
        await asyncio.sleep(0.01)
    runtime.stop()
    await task
