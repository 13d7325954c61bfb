"""Run a controller in memory, in virtual time, until there is nothing left to do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from natsctl.controller.runtime import Controller, ControllerRuntime
from natsctl.testing.memory import MemoryStores

SETTLING_TURNS = 20  # of the event loop without work, before the controller counts as idle
STEP_S = 0.01


class Harness:
    """A controller under test: its stores, and the runtime that runs it."""

    def __init__(self, runtime: ControllerRuntime, stores: MemoryStores) -> None:
        self.runtime = runtime
        self.stores = stores

    async def run_until_idle(self, *, limit_s: float = 3600.0) -> None:
        """Wait until no key waits, is ready or held, and no change is on its way.

        Keys that asked to come back later count as waiting. Raises `TimeoutError` after *limit_s*
        seconds of the loop's time, virtual in tests.
        """
        quiet = 0
        async with asyncio.timeout(limit_s):
            while quiet < SETTLING_TURNS:
                await asyncio.sleep(STEP_S)
                quiet = quiet + 1 if self.runtime.idle else 0


@asynccontextmanager
async def running(
    controller: Controller, *, stores: MemoryStores | None = None
) -> AsyncIterator[Harness]:
    """Run *controller* over memory stores; leaving the context stops it.

    Example:
        async with running(Greetings()) as harness:
            await harness.runtime.controller.greetings.put("shop", Greeting(...))
            await harness.run_until_idle()
    """
    stores = MemoryStores() if stores is None else stores
    runtime = ControllerRuntime(controller, nats=stores, kube=stores.kube)
    task = asyncio.create_task(runtime.run())
    try:
        waiting = asyncio.create_task(runtime.synced.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            waiting.cancel()
            task.result()
        yield Harness(runtime, stores)
    finally:
        runtime.stop()
        await task
