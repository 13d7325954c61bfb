"""Running the controllers of one process, all or none."""

import asyncio
import logging
from collections.abc import Sequence

from natsctl.daemon.settings import Settings
from natsctl.errors import NatsctlError, UsageError
from natsctl.model.store import Stores
from natsctl.runtime import Controller, ControllerRuntime

log = logging.getLogger(__name__)

CUT_S = 5.0  # how long a controller that is cut short may take to end

Running = dict["asyncio.Task[None]", ControllerRuntime]  # in the order of their starts


class Operator:
    """Starts controllers in order and stops them in reverse order.

    *Guarantees.* Each controller starts once the one before it has begun to sync. When one ends,
    or `stop` is called, or `run` is cancelled, all are stopped, the last one first, within
    `settings.stop_timeout_s`; then what is still under way is cut short.

    Raises `UsageError` where two controllers have the same name, or there is none.
    """

    def __init__(
        self,
        controllers: Sequence[Controller],
        *,
        nats: Stores,
        settings: Settings | None = None,
    ) -> None:
        self._settings = Settings() if settings is None else settings
        _check(controllers)
        self.runtimes = tuple(self._runtime(controller, nats) for controller in controllers)
        self.synced = asyncio.Event()  # every controller has begun to sync
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until stopped; returns when every controller has ended well.

        Raises what ended a controller, and `NatsctlError` where one ended without a reason.
        """
        running: Running = {}
        try:
            await self._go(running)
        except asyncio.CancelledError:
            _log(await self._stop(running))
            raise
        ended = [runtime.name for task, runtime in running.items() if task.done()]
        errors = await self._stop(running)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("controllers failed", errors)
        if ended and not self._stopping.is_set():
            raise NatsctlError(f"controller {ended[0]} ended: its retry policy gave up")

    def stop(self) -> None:
        """Have `run` stop every controller and return."""
        self._stopping.set()

    def _runtime(self, controller: Controller, nats: Stores) -> ControllerRuntime:
        if self._settings.workers is not None:
            controller.workers = self._settings.workers
        if self._settings.resync_s is not None:
            controller.resync_s = self._settings.resync_s
        return ControllerRuntime(
            controller, nats=nats, stop_timeout_s=self._settings.stop_timeout_s
        )

    async def _go(self, running: Running) -> None:
        for runtime in self.runtimes:
            task = asyncio.create_task(runtime.run(), name=f"controller {runtime.name}")
            running[task] = runtime
            if not await self._came(runtime.synced, running):
                return
        self.synced.set()
        await self._came(self._stopping, running)

    async def _came(self, event: asyncio.Event, running: Running) -> bool:
        """Wait for the event; say whether it came, before a stop or the end of a controller."""
        waits = [asyncio.create_task(each.wait()) for each in (event, self._stopping)]
        try:
            await asyncio.wait((*waits, *running), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._stopping.is_set() and not any(task.done() for task in running)

    async def _stop(self, running: Running) -> list[Exception]:
        """Stop what runs, the last one first; return what they raised."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.stop_timeout_s
        for task, runtime in reversed(running.items()):
            runtime.stop()
            await asyncio.wait((task,), timeout=max(0.0, deadline - clock()))
        late = [task for task in running if not task.done()]
        for task in late:
            log.warning("%s did not stop in time and is cut short", running[task].name)
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=CUT_S)
        ended = (task for task in running if task.done() and not task.cancelled())
        errors = (task.exception() for task in ended)
        return [error for error in errors if isinstance(error, Exception)]


def _log(errors: Sequence[Exception]) -> None:
    for error in errors:
        log.error("a controller failed while it stopped: %s", error, exc_info=error)


def _check(controllers: Sequence[Controller]) -> None:
    if not controllers:
        raise UsageError("there is no controller to run: give one with --controller")
    names = [controller.name for controller in controllers]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two controllers are named {name}: set another `name` on one of them")
