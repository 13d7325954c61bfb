"""The speed of the work queue: `python -m tests.benchmarks.bench_queue`.

All seconds are processor time, because other processes disturb processor time least.
"""

import asyncio
from collections.abc import Callable, Coroutine
from statistics import median
from time import process_time

from natsctl.core.workqueue import Priority, WorkQueue
from tests.support.places import take

CYCLES = 100_000
TIMERS = 100_000
RUNS = 5


async def cycles(queue: WorkQueue[str], keys: list[str]) -> float:
    """Return offers, takes and settlements per second, with all keys in the queue at once."""
    start = process_time()
    for key in keys:
        queue.offer(key, priority=Priority.RESYNC)
    for _ in keys:
        key = await take(queue)
        queue.settle(key)
    return len(keys) / (process_time() - start)


async def ping_pong(queue: WorkQueue[str], keys: list[str]) -> float:
    """Return offers, takes and settlements per second, with one key in the queue at a time."""
    start = process_time()
    for added in keys:
        queue.offer(added)
        key = await take(queue)
        queue.settle(key)
    return len(keys) / (process_time() - start)


async def waiting_workers(queue: WorkQueue[str], keys: list[str]) -> float:
    """Return the cycles per second of four workers that wait for each key."""

    async def work() -> None:
        while True:
            key = await take(queue)
            queue.settle(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    await asyncio.sleep(0)
    start = process_time()
    for first in range(0, len(keys), 4):
        for key in keys[first : first + 4]:
            queue.offer(key)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert queue.idle
    taken = process_time() - start
    for worker in workers:
        worker.cancel()
    return len(keys) / taken


async def timers_set(queue: WorkQueue[str], keys: list[str]) -> float:
    """Return the seconds to add all keys with delays spread over an hour."""
    delays = [number * 7919 % len(keys) * 0.036 + 1.0 for number in range(len(keys))]
    start = process_time()
    for key, after in zip(keys, delays, strict=True):
        queue.offer(key, after=after)
    return process_time() - start


async def timers_due(queue: WorkQueue[str], keys: list[str]) -> float:
    """Return the seconds to get all keys whose delays end at the same time."""
    for key in keys:
        queue.offer(key, after=1.0)
    start = process_time()
    for _ in keys:
        queue.give_back(await take(queue))
    return process_time() - start


def run() -> dict[str, float]:
    """Return the median of several runs of each measurement, by its name and unit."""
    keys = [f"team-{number % 97}.shop-{number}" for number in range(max(CYCLES, TIMERS))]

    def measured(
        work: Callable[[WorkQueue[str], list[str]], Coroutine[None, None, float]],
        count: int,
    ) -> float:
        async def once() -> float:
            return await work(WorkQueue(), keys[:count])

        return median(asyncio.run(once()) for _ in range(RUNS))

    return {
        "queue, all at once, cycles/s": measured(cycles, CYCLES),
        "queue, one at a time, cycles/s": measured(ping_pong, CYCLES),
        "queue, 4 waiting workers, cycles/s": measured(waiting_workers, CYCLES),
        "queue, 1,000 keys, cycles/s": measured(cycles, 1000),
        "100,000 timers set, s": measured(timers_set, TIMERS),
        "100,000 timers due, s": measured(timers_due, TIMERS),
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:40}{value:>14,.3f}")
