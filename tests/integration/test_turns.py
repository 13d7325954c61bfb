"""Workers whose handlers never wait leave time to other tasks."""

import asyncio
import time

from natsctl.core.loop import SyncLoop
from natsctl.slices import TURN_S

KEYS = 20_000


async def test_handlers_that_never_wait_do_not_block_the_event_loop() -> None:
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
        loop.queue.offer(f"k{number}")
    work = asyncio.create_task(loop.run(ready, workers=4))
    begun, iterations = time.thread_time(), 0  # thread time excludes other processes
    while not done.is_set():
        await asyncio.sleep(0)
        iterations += 1
    taken_s = time.thread_time() - begun
    loop.queue.shut_down(drain=False)
    await work
    assert iterations >= taken_s / TURN_S / 10
