"""Workers that never have to wait leave time to everybody else."""

import asyncio
import time

from natsctl.core.sync.loop import TURN_S, SyncLoop

KEYS = 20_000


async def test_a_handler_that_never_waits_does_not_hold_up_the_loop() -> None:
    done = asyncio.Event()
    handled = 0

    async def handler(key: str) -> None:
        nonlocal handled
        handled += 1
        if handled == KEYS:
            done.set()

    async def ready() -> None:
        """Be ready."""

    loop = SyncLoop(handler)
    for number in range(KEYS):
        loop.queue.add(f"k{number}")
    work = asyncio.create_task(loop.run(ready, workers=4))
    begun, turns = time.thread_time(), 0  # what others make of the processor counts for nothing
    while not done.is_set():
        await asyncio.sleep(0)
        turns += 1
    taken_s = time.thread_time() - begun
    loop.queue.shut_down(drain=False)
    await work
    assert turns >= taken_s / (4 * TURN_S) / 10
