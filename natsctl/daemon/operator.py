"""Runs the controllers of one process."""

import asyncio
import contextvars
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots import only_primary
from natsctl.core.coordination.shares import Participation
from natsctl.core.coordination.term import TermGuard
from natsctl.core.environment import enter
from natsctl.core.hosted import Hosted
from natsctl.core.plan.stores import Planned, planned
from natsctl.core.sync import report_stuck
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import NatsctlError, UsageError
from natsctl.managed import ManagedController
from natsctl.model.kinds import Kind
from natsctl.model.store import ManifestStores, Stores
from natsctl.telemetry.logger import bind_log_context, get_logger

log = get_logger(__name__)

CONTROLLER_NAME = re.compile(r"[A-Za-z0-9_-]+")

CUT_S = 5.0  # how long a cancelled controller may take to end


class Runnable(Protocol):
    """A controller as the operator runs it, such as a `ControllerRuntime`.

    `synced` is set when the controller begins to work. `run` works until `stop`, and returns when
    all work in progress has ended; it raises the error that ends the controller.
    """

    name: str
    synced: asyncio.Event

    async def run(self) -> None: ...

    def stop(self) -> None: ...


@runtime_checkable
class Guest(Runnable, Protocol):
    """A runnable that gets its stores from the operator, such as an `InformerController`.

    `use` is called once, before `run`. natsctl connects only to the systems that `kinds` need.
    """

    @property
    def kinds(self) -> Sequence[Kind[Any]]: ...

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None: ...


RunnableByTask = dict["asyncio.Task[None]", Runnable]  # in the order of their starts


class Operator:
    """Starts controllers in order and stops them in reverse order.

    *Guarantees.* Each controller starts after the one before it has begun to sync. All controllers
    are stopped if one of them ends, on `stop`, and if `run` is cancelled. They have
    `settings.stop_timeout_s` to stop; then those that still run are cancelled.

    Args:
        controllers: the controllers, in this order; `add_controller` adds more before `run`.
        nats: the stores of kinds declared with `kv`; None if the controllers have their own.
        kube: the stores of kinds declared with `kube`; None if the controllers have their own.
        settings: the settings of all controllers.
        participate: returns the part of this process in a controller, see `participations`. With
            it, only one process at a time syncs a key (or, with one share, the controller).
        on_stop: called when the operator begins to stop the controllers.
        dry_run: plan continuously, and write nothing; see `PlanRecord`.

    Raises `UsageError` if two controllers have the same name, if a name can't be part of a
    subject, if a system that a kind needs isn't given, and if a controller can't be sharded.

    Seed: grafana-app-sdk operator v0.9.10, `Operator`.
    """

    def __init__(
        self,
        controllers: Sequence[Controller | Runnable] = (),
        *,
        nats: Stores | None = None,
        kube: ManifestStores | None = None,
        settings: ControllerSettings | None = None,
        participate: Callable[[str, str], Participation] | None = None,
        on_stop: Callable[[], None] = lambda: None,
        dry_run: bool = False,
    ) -> None:
        self._settings = ControllerSettings() if settings is None else settings
        self._nats, self._kube = nats, kube
        self._planned: Planned | None = None
        if dry_run and nats is not None:
            self._planned = planned(nats=nats, kube=kube, continuous=True)
        self._plans: dict[str, Planned] = {}  # by controller
        self._participate = participate
        self._on_stop = on_stop
        self.participations: dict[str, Participation] = {}  # by controller
        self.runtimes: tuple[Runnable, ...] = ()
        self.synced = asyncio.Event()  # every controller has begun to sync or is a standby
        self._stopping = asyncio.Event()
        for controller in controllers:
            self.add_controller(controller)

    def add_controller(self, controller: Controller | Runnable) -> None:
        """Add a controller behind the others; a controller that is added during `run` never runs.

        Raises `UsageError` as the constructor does.
        """
        if not CONTROLLER_NAME.fullmatch(controller.name):
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
        """Run until stopped; returns when every controller has ended without an error.

        Raises the error that ended a controller, an `ExceptionGroup` of several, `NatsctlError` if
        a controller ended although nothing stopped it, and `UsageError` if there is no controller.
        """
        if not self.runtimes:
            raise UsageError("there is no controller to run: add one")
        running: RunnableByTask = {}
        try:
            await self._start(running)
        except asyncio.CancelledError:
            for error in await self._stop_all(running):
                log.error("controller failed during the stop", error=error, exc_info=error)  # noqa: TRY400 - not the one that is handled
            raise
        ended = [runtime.name for task, runtime in running.items() if task.done()]
        errors = await self._stop_all(running)
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("controllers failed", errors)
        if ended and not self._stopping.is_set():
            raise NatsctlError(f"controller {ended[0]} ended: its retry policy gave up")

    def stop(self) -> None:
        """Stop every controller; `run` returns afterwards."""
        self._stopping.set()

    def leads(self, name: str) -> bool:
        """Return whether this process works for the controller of that name now.

        Without an election, every process does. Raises `UsageError` if no controller has the name.
        """
        if name not in {runtime.name for runtime in self.runtimes}:
            raise UsageError(f"there is no controller named {name!r}")
        participation = self.participations.get(name)
        return participation is None or participation.leadership.leads

    def _runtime(self, controller: Controller | Runnable) -> Runnable:
        for name in ("workers", "resync_s", "sync_timeout_s"):
            value = getattr(self._settings, name)
            if value is not None and hasattr(controller, name):
                setattr(controller, name, value)
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
        """Return the controller's stores, which reject its writes outside of a term."""
        nats, kube, name = self._nats, self._kube, controller.name
        if self._planned is not None:
            plan = self._plans[name] = self._planned.of_another()
            return plan.nats, plan.kube
        if self._participate is None:
            return nats, kube
        participation = self._participate(name, owner_of(controller))
        guest = isinstance(controller, Hosted) and isinstance(controller, Guest)
        if participation.leadership.shared and not (guest or isinstance(controller, Controller)):
            raise UsageError(f"{name} cannot be sharded: run it without --shard")
        self.participations[name] = participation
        guard = TermGuard(participation.leadership)
        return nats and nats.guarded(guard), kube and kube.guarded(guard)

    async def _start(self, running: RunnableByTask) -> None:
        for runtime in self.runtimes:
            context = contextvars.copy_context()
            context.run(bind_log_context, controller=runtime.name)
            plan = self._plans.get(runtime.name)
            if plan is not None:
                context.run(enter, plan=plan.record)
            participation = self.participations.get(runtime.name)
            if participation is None:
                work, started = runtime.run(), runtime.synced
            else:
                context.run(enter, leadership=participation.leadership)
                work = participation.during(runtime.run, runtime.synced)
                started = participation.leadership.sought
            name = f"controller {runtime.name}"
            task = asyncio.create_task(work, name=name, context=context)
            running[task] = runtime
            if not await self._wait(started, running):
                return
            if not isinstance(runtime, Hosted) and runtime.synced.is_set():
                log.info("program synced", controller=runtime.name)
        self.synced.set()
        await self._wait(self._stopping, running)

    async def _wait(self, event: asyncio.Event, running: RunnableByTask) -> bool:
        waits = [asyncio.create_task(awaited.wait()) for awaited in (event, self._stopping)]
        try:
            await asyncio.wait((*waits, *running), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._stopping.is_set() and not any(task.done() for task in running)

    async def _stop_all(self, running: RunnableByTask) -> list[Exception]:
        self._on_stop()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._settings.stop_timeout_s
        for task, runtime in reversed(running.items()):
            runtime.stop()
            await asyncio.wait((task,), timeout=max(0.0, deadline - clock()))
        late = [task for task in running if not task.done()]
        for task in late:
            log.warning(
                "cancelling a controller that did not stop in time",
                controller=running[task].name,
                stop_timeout_s=self._settings.stop_timeout_s,
            )
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
    """Return the kind of a controller's primaries, by which processes tell controllers apart."""
    if isinstance(controller, Controller):
        return only_primary(type(controller)).kind.name
    if isinstance(controller, ControllerRuntime):
        return controller.kind
    return controller.kind.name if isinstance(controller, ManagedController) else ""
