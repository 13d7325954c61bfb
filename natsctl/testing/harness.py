"""Runs a controller over memory stores, and waits until its work is done."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.testing.memory import MemoryStores

QUIET_STEPS = 20  # without work, after which the controller counts as idle
STEP_S = 0.01
PRECISION = 0.01  # of the time already waited


class Harness:
    """A running controller, its runtime and its stores."""

    def __init__(
        self, runtime: ControllerRuntime, stores: MemoryStores, run: asyncio.Task[None]
    ) -> None:
        self.runtime = runtime
        self.stores = stores
        self._run = run

    async def run_until_idle(self, *, limit_s: float = 3600.0) -> None:
        """Wait until every change is handled, and every failed key was retried successfully.

        A key that only waits for a time that your handler asked for counts as handled: it returned
        a delay, raised `RetryAfter`, or called `enqueue_key_after`. To reach that time, use
        `run_for` or `run_until`.

        Raises `TimeoutError` after *limit_s* seconds of the event loop's time, and the exception
        that ended the controller, if one did.
        """
        started = self._time()
        quiet = 0
        while quiet < QUIET_STEPS:
            if self._time() - started > limit_s:
                raise TimeoutError(f"the controller is not idle after {limit_s:g} s")
            await self._sleep(STEP_S)
            quiet = quiet + 1 if self.runtime.idle else 0

    async def run_for(self, seconds: float) -> None:
        """Run the controller for *seconds* of the event loop's time.

        Raises the exception that ended the controller, if one did.
        """
        await self._sleep(seconds)

    async def run_until(self, condition: Callable[[], object], *, limit_s: float = 3600.0) -> None:
        """Run the controller until *condition* returns a true value.

        The condition is checked after at most 1 % of the time already waited. Raises
        `TimeoutError` after *limit_s* seconds of the event loop's time, and the exception that
        ended the controller, if one did.
        """
        started = self._time()
        while not condition():
            waited = self._time() - started
            if waited >= limit_s:
                raise TimeoutError(f"still false after {limit_s:g} s: {_source(condition)}")
            await self._sleep(min(max(STEP_S, waited * PRECISION), limit_s - waited))

    async def _sleep(self, seconds: float) -> None:
        await asyncio.wait((self._run,), timeout=seconds)
        if self._run.done():
            self._run.result()
            raise RuntimeError("the controller was stopped")

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def running(
    controller: Controller, *, stores: MemoryStores | None = None
) -> AsyncIterator[Harness]:
    """Run *controller* over memory stores; leaving the context stops it.

    If the controller can't start, raises the reason.

    Example:
        async with running(Greetings()) as harness:
            await harness.runtime.controller.greetings.put("shop", Greeting(...))
            await harness.run_until_idle()
    """
    stores = MemoryStores() if stores is None else stores
    runtime = ControllerRuntime(controller, nats=stores, kube=stores.kube)
    run = asyncio.create_task(runtime.run())
    try:
        synced = asyncio.create_task(runtime.synced.wait())
        await asyncio.wait((run, synced), return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            synced.cancel()
            run.result()
        yield Harness(runtime, stores, run)
    finally:
        runtime.stop()
        await run


def _source(condition: Callable[[], object]) -> str:
    try:
        return inspect.getsource(condition).strip()
    except (OSError, TypeError):
        return repr(condition)
