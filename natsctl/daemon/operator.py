"""Running the controllers of one process, all or none."""

import asyncio
import contextvars
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, runtime_checkable

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import only_primary
from natsctl.core.coordination.election import Election
from natsctl.core.coordination.participant import Participant
from natsctl.core.coordination.sharding import Shard
from natsctl.core.coordination.term_guard import TermGuard
from natsctl.core.sync.calls import report_stuck
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import NatsctlError, UsageError
from natsctl.managed import ManagedController
from natsctl.model.kinds import Kind
from natsctl.model.store import ManifestStores, Stores
from natsctl.telemetry.logger import bind_log_context

log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]+")

CUT_S = 5.0  # how long a controller that is cut short may take to end


class Runnable(Protocol):
    """What an operator runs; a `ControllerRuntime` is one, around a `Controller`.

    `synced` is set once it does its work, and `run` returns after `stop`, when what was under way
    is finished.
    """

    name: str
    synced: asyncio.Event

    async def run(self) -> None:
        """Do its work until `stop`; raises what ends it for good."""
        ...

    def stop(self) -> None:
        """Begin nothing more."""
        ...


@runtime_checkable
class Guest(Runnable, Protocol):
    """A runnable that is told where things are kept; an `InformerController` is one."""

    @property
    def kinds(self) -> Sequence[Kind[Any]]:
        """What it works with, so that nobody looks for a system that it does not need."""
        ...

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        """Keep kinds there; called once, before `run`."""
        ...


@runtime_checkable
class Shared(Guest, Protocol):
    """A guest whose keys several processes can share; a `ManagedController` is one."""

    def holds(self, key: str) -> bool:
        """Say whether the key is this process's own now."""
        ...


Running = dict["asyncio.Task[None]", Runnable]  # in the order of their starts


def _nothing() -> None:
    """Do nothing when the controllers are stopped."""


class Operator:
    """Starts controllers in order and stops them in reverse order.

    *Guarantees.* Each controller starts once the one before it has begun to sync. When one ends,
    or `stop` is called, or `run` is cancelled, all are stopped, the last one first, within
    `settings.stop_timeout_s`; then what is still under way is cut short.

    Args:
        controllers: what to run, in this order; more may be added before `run`.
        nats: where kinds declared with `kv` are kept; None where each knows by itself.
        kube: where kinds declared with `kube` are kept, likewise.
        settings: what a person may set.
        election: makes the election of a controller's leader, as `elections` returns it; then each
            controller works in one process at a time, and a standby keeps its caches complete.
        on_stop: called when it begins to stop the controllers.
        shard: makes this process's part in the group that shares a controller's keys, as `shards`
            returns it; then each key is worked on in one process at a time.

    Raises `UsageError` where two controllers have the same name, or one has a name that cannot be
    part of a subject, or kinds of a system that is not given, or no keys to be shared, or where
    both elections and shards are given.

    Seed: grafana-app-sdk operator v0.9.10, `Operator`.
    """

    def __init__(
        self,
        controllers: Sequence[Controller | Runnable] = (),
        *,
        nats: Stores | None = None,
        kube: ManifestStores | None = None,
        settings: ControllerSettings | None = None,
        election: Callable[[str, str], Election] | None = None,
        shard: Callable[[str, str], Shard] | None = None,
        on_stop: Callable[[], None] = _nothing,
    ) -> None:
        if election is not None and shard is not None:
            raise UsageError("either one process leads, or all share the keys: not both")
        self._settings = ControllerSettings() if settings is None else settings
        self._nats, self._kube = nats, kube
        self._election, self._shard = election, shard
        self._on_stop = on_stop
        self.elections: dict[str, Election] = {}  # of each controller by name, where there are
        self.shards: dict[str, Shard] = {}  # likewise
        self.runtimes: tuple[Runnable, ...] = ()
        self.synced = asyncio.Event()  # every controller has begun to sync, or stands by
        self._stopping = asyncio.Event()
        for controller in controllers:
            self.add_controller(controller)

    def add_controller(self, controller: Controller | Runnable) -> None:
        """Run this one too, after those before; one that is added during `run` is not run.

        Raises `UsageError` as the class says.
        """
        if not _NAME.fullmatch(controller.name):
            raise UsageError(
                f"{controller.name!r} cannot name a controller, whose name is part of subjects and "
                "keys: set a `name` of ASCII letters, digits, '-' and '_'"
            )
        if controller.name in {runtime.name for runtime in self.runtimes}:
            raise UsageError(
                f"two controllers are named {controller.name}: set another `name` on one of them"
            )
        self.runtimes = (*self.runtimes, self._runtime(controller))

    async def run(self) -> None:
        """Run until stopped; returns when every controller has ended well.

        Raises what ended a controller, `NatsctlError` where one ended without a reason, and
        `UsageError` where there is none.
        """
        if not self.runtimes:
            raise UsageError("there is no controller to run: add one")
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

    def leads(self, name: str) -> bool:
        """Say whether this process works for the controller of that name now."""
        part = self._part(name)
        return part is None or part.leadership.leads

    def _part(self, name: str) -> Participant | None:
        return self.elections.get(name) or self.shards.get(name)

    def _runtime(self, controller: Controller | Runnable) -> Runnable:
        for name in ("workers", "resync_s", "sync_timeout_s"):
            value = getattr(self._settings, name)
            if value is not None and hasattr(controller, name):
                setattr(controller, name, value)
        if self._shard is not None and not isinstance(controller, Controller | Shared):
            raise UsageError(f"{controller.name} has no keys that processes could share")
        nats, kube = self._stores(controller)
        if not isinstance(controller, Controller):
            if isinstance(controller, Guest) and (nats is not None or kube is not None):
                controller.use(nats=nats, kube=kube)
            return controller
        if nats is None:
            raise UsageError(f"{controller.name} has its primary in NATS: give nats=")
        return ControllerRuntime(
            controller,
            nats=nats,
            kube=kube,
            owner_names=self._settings.owner_names,
            stop_timeout_s=self._settings.stop_timeout_s,
        )

    def _stores(
        self, controller: Controller | Runnable
    ) -> tuple[Stores | None, ManifestStores | None]:
        """Return where its kinds are kept; only a process that works for it writes there."""
        nats, kube, name = self._nats, self._kube, controller.name
        if self._election is not None:
            self.elections[name] = self._election(name, owner_of(controller))
        if self._shard is not None:
            self.shards[name] = self._shard(name, owner_of(controller))
        part = self._part(name)
        if part is None:
            return nats, kube
        guard = TermGuard(part.leadership)
        return nats and nats.guarded(guard), kube and kube.guarded(guard)

    def _work(self, runtime: Runnable) -> tuple[Coroutine[None, None, None], asyncio.Event]:
        """Return what runs it, and what tells that the next one may start."""
        part = self._part(runtime.name)
        if part is None:
            return runtime.run(), runtime.synced
        return part.during(runtime.run(), runtime.synced), part.leadership.sought

    async def _go(self, running: Running) -> None:
        for runtime in self.runtimes:
            context = contextvars.copy_context()
            context.run(bind_log_context, controller=runtime.name)
            name = f"controller {runtime.name}"
            work, begun = self._work(runtime)
            task = asyncio.create_task(work, name=name, context=context)
            running[task] = runtime
            if not await self._came(begun, running):
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
        self._on_stop()
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
        for task in late:
            if not task.done():
                report_stuck(running[task].name)
        ended = (task for task in running if task.done() and not task.cancelled())
        errors = (task.exception() for task in ended)
        return [error for error in errors if isinstance(error, Exception)]


def owner_of(controller: Controller | Runnable) -> str:
    """Return the kind of a controller's primaries; empty if it has several, or none that is known.

    By it, processes see whether they run the same controller.
    """
    if isinstance(controller, Controller):
        return only_primary(type(controller)).kind.name
    if isinstance(controller, ControllerRuntime):
        return controller.kind
    return controller.kind.name if isinstance(controller, ManagedController) else ""


def _log(errors: Sequence[Exception]) -> None:
    for error in errors:
        log.error("a controller failed while it stopped: %s", error, exc_info=error)
