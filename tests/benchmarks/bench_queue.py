"""The speed of the work queue: `python -m tests.benchmarks.bench_queue`.

All seconds are processor time, because other processes disturb processor time least.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from statistics import median
from time import process_time

from natsctl.core.queue.workqueue import Priority, Workqueue

CYCLES = 100_000
TIMERS = 100_000
RUNS = 5


async def cycles(queue: Workqueue[str], keys: list[str]) -> float:
    """Return add + get + forget + done per second, with all keys in the queue at once."""
    start = process_time()
    for key in keys:
        queue.add(key, priority=Priority.RESYNC)
    for _ in keys:
        key = await queue.get()
        queue.forget(key)
        queue.done(key)
    return len(keys) / (process_time() - start)


async def ping_pong(queue: Workqueue[str], keys: list[str]) -> float:
    """Return add + get + forget + done per second, with one key in the queue at a time."""
    start = process_time()
    for added in keys:
        queue.add(added)
        key = await queue.get()
        queue.forget(key)
        queue.done(key)
    return len(keys) / (process_time() - start)


async def waiting_workers(queue: Workqueue[str], keys: list[str]) -> float:
    """Return the cycles per second of four workers that wait for each key."""

    async def work() -> None:
        while True:
            key = await queue.get()
            queue.forget(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    await asyncio.sleep(0)
    start = process_time()
    for first in range(0, len(keys), 4):
        for key in keys[first : first + 4]:
            queue.add(key)
        await asyncio.sleep(0)
    await queue.join()
    taken = process_time() - start
    for worker in workers:
        worker.cancel()
    return len(keys) / taken


async def timers_set(queue: Workqueue[str], keys: list[str]) -> float:
    """Return the seconds to add all keys with delays spread over an hour."""
    delays = [number * 7919 % len(keys) * 0.036 + 1.0 for number in range(len(keys))]
    start = process_time()
    for key, after in zip(keys, delays, strict=True):
        queue.add(key, after=after)
    return process_time() - start


async def timers_due(queue: Workqueue[str], keys: list[str]) -> float:
    """Return the seconds to get all keys whose delays end at the same time."""
    for key in keys:
        queue.add(key, after=1.0)
    start = process_time()
    for _ in keys:
        queue.done(await queue.get())
    return process_time() - start


def run() -> dict[str, float]:
    """Return the median of several runs of each measurement, by its name and unit."""
    keys = [f"team-{number % 97}.shop-{number}" for number in range(max(CYCLES, TIMERS))]

    def measured(
        work: Callable[[Workqueue[str], list[str]], Coroutine[None, None, float]],
        count: int,
        share_of: Callable[[str], Hashable] | None = None,
    ) -> float:
        async def once() -> float:
            return await work(Workqueue(share_of=share_of), keys[:count])

        return median(asyncio.run(once()) for _ in range(RUNS))

    return {
        "queue, all at once, cycles/s": measured(cycles, CYCLES),
        "queue, one at a time, cycles/s": measured(ping_pong, CYCLES),
        "queue, 97 shares, cycles/s": measured(cycles, CYCLES, lambda key: key.split(".", 1)[0]),
        "queue, 4 waiting workers, cycles/s": measured(waiting_workers, CYCLES),
        "queue, 1,000 keys, cycles/s": measured(cycles, 1000),
        "100,000 timers set, s": measured(timers_set, TIMERS),
        "100,000 timers due, s": measured(timers_due, TIMERS),
    }


if __name__ == "__main__":
    for name, value in run().items():
        print(f"{name:40}{value:>14,.3f}")
