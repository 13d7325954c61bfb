"""Workers whose handlers never wait leave time to other tasks."""

import asyncio
import time

from natsctl.testing import running
from tests.support.controllers.app_controller import Apps, app_client

KEYS = 2000
TURN_S = 0.004  # the longest work in one turn of the event loop


class Busy(Apps):
    async def sync_handler(self, key: str) -> float | None:
        self.syncs.append(key)
        return None


async def test_handlers_that_never_wait_do_not_block_the_event_loop() -> None:
    async with running(controller := Busy()) as harness:
        for number in range(KEYS):
            await app_client(harness).app(f"k{number}")
        await harness.run_until_idle()
        controller.syncs.clear()
        harness.runtime.resync()
        begun, iterations = time.thread_time(), 0  # thread time excludes other processes
        while len(controller.syncs) < KEYS:
            await asyncio.sleep(0)
            iterations += 1
        taken_s = time.thread_time() - begun
    assert iterations >= taken_s / TURN_S / 10
