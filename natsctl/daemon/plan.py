"""Runs a controller once without a daemon: to inspect it, to sync keys, or to plan."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial

import msgspec
from msgspec import UNSET

from natsctl.controller.controller import Controller
from natsctl.controller.owners import OwnerNames
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots import only_primary
from natsctl.core.environment import within
from natsctl.core.hosted import Hosted
from natsctl.core.plan.record import PlannedChange
from natsctl.core.plan.stores import Planned, planned
from natsctl.core.reports import invalid_of
from natsctl.core.tape import place_of
from natsctl.daemon.loader import make
from natsctl.daemon.operator import Guest
from natsctl.errors import (
    NatsctlError,
    StoreError,
    UsageError,
    WatchBrokenError,
)
from natsctl.managed import ManagedController
from natsctl.model.bookkeeping import PAUSES, failing_prefix
from natsctl.model.plans import GarbagePlan, Plan
from natsctl.model.store import ManifestStores, Stores, listed
from natsctl.telemetry.logger import bind_log_context
from natsctl.watchers import InformerController

LIST_TIMEOUT_S = 5.0  # a watch that is broken after this time is an error
STEP_S = 0.01
QUIET_STEPS = 20  # turns of the event loop without work, after which the plan is complete
RETRIES_MAX = 10  # of a failed key after writes of others
SYNCS_MAX = 100  # of one key on average, before the plan gives up
KEYS_MAX = 20  # in one request
OBJECTS_MAX = 50_000  # in the tables of the controller, which a plan fills once more
LIMIT_S = 20.0


Progress = Callable[[int, int], None]
"""Called with the number of syncs that have ended, and the number of keys."""


class MadePlan(msgspec.Struct, frozen=True):
    """A plan, the objects that it changes, and the buckets of primaries that don't exist."""

    plan: Plan
    changes: tuple[PlannedChange, ...]
    without_bucket: tuple[str, ...] = ()


async def plan(
    controller: Controller | Guest,
    *,
    nats: Stores,
    kube: ManifestStores | None = None,
    keys: Collection[str] = (),
    owner_names: OwnerNames | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Plan:
    """Return what the controller would do now, and change nothing.

    Your real handler runs for every primary, over stores that keep its writes in memory. If a key
    fails, it's tried again after other keys have written something.

    Args:
        controller: a controller that doesn't run.
        nats: the stores of kinds that are declared with `kv`.
        kube: the stores of kinds that are declared with `kube`.
        keys: the keys to plan; by default all.
        owner_names: the labels that link secondaries to primaries.
        progress: called while the plan is made.

    Raises `UsageError` if the controller can't run or can't be planned, and the error of a store
    that can't be read.
    """
    stores = planned(nats=nats, kube=kube)
    made_plan = await make_plan(
        controller, stores=stores, keys=keys, owner_names=owner_names, progress=progress
    )
    return made_plan.plan


async def make_plan(
    controller: Controller | Guest,
    *,
    stores: Planned,
    keys: Collection[str] = (),
    owner_names: OwnerNames | None = None,
    progress: Progress = lambda _done, _total: None,
) -> MadePlan:
    """Return the plan with the objects that it changes; see `plan`."""
    nats, kube, record = stores.nats, stores.kube, stores.record
    with within(plan=record):
        runtime: Hosted
        if isinstance(controller, Controller):
            controller.garbage = msgspec.structs.replace(controller.garbage, grace_s=0.0)
            controller.rate_limit = None
            runtime = ControllerRuntime(controller, nats=nats, kube=kube, owner_names=owner_names)
            record.primaries = place_of(only_primary(type(controller)).kind)
        elif isinstance(controller, ManagedController | InformerController):
            controller.use(nats=nats, kube=kube)
            runtime = controller
        else:
            raise UsageError(
                f"{controller.name} cannot be planned: it is neither a Controller, a "
                "ManagedController nor an InformerController"
            )
        if keys:
            runtime.hold_only(keys)
        task = asyncio.create_task(runtime.run(), name=f"plan of {runtime.name}")
        try:
            return await _Run(runtime, stores, task, progress).plan(keys)
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            runtime.stop()
            await asyncio.wait((task,))


class _Run:
    def __init__(
        self, runtime: Hosted, stores: Planned, task: "asyncio.Task[None]", progress: Progress
    ) -> None:
        self._runtime, self._stores = runtime, stores
        self._task, self._progress = task, progress

    async def plan(self, keys: Collection[str]) -> MadePlan:
        """Return the plan of these keys, or of all; the task has just begun."""
        runtime, record = self._runtime, self._stores.record
        clock = asyncio.get_running_loop().time
        deadline = clock() + LIST_TIMEOUT_S
        while not runtime.synced.is_set():
            await self._step()
            if clock() >= deadline and runtime.host.failure is not None:
                raise runtime.host.failure
        garbage = GarbagePlan(())
        if isinstance(runtime, ControllerRuntime):
            for key in keys:
                runtime.resync(key)  # also a key that doesn't exist
            await self._settled()
            await runtime.controller.garbage_secondaries()
            await self._settled()
            garbage = await runtime.garbage_plan(at_once=True)
        else:
            await self._settled()
        for key, reason in invalid_of(runtime.host).items():
            if not keys or key in keys:
                record.skipped(key, reason)
        plans, existing = record.keys(), runtime.host.existing
        missing = tuple(key for key in keys if key not in plans and not existing([key]))
        plan = Plan(
            controller=runtime.name,
            summary=record.summary(plans, existing),
            keys=plans,
            garbage=garbage if garbage.orphans else UNSET,
            missing=missing or UNSET,
        )
        if plan.summary.failed:
            plan = plan.compared(await _failing(self._stores.nats, runtime.name))
        sources = {source.bucket for source in runtime.status().sources}
        without_bucket = tuple(sorted(sources & self._stores.nats.missing))
        return MadePlan(plan, tuple(record.changes()), without_bucket)

    async def _settled(self) -> None:
        for tries in range(RETRIES_MAX + 1):
            quiet = 0
            while quiet < QUIET_STEPS:
                if self._runtime.idle and self._stores.settled:
                    quiet += 1
                    await asyncio.sleep(0)
                else:
                    quiet = 0
                    await self._step()
            retries = self._stores.record.to_retry()
            if not retries or tries == RETRIES_MAX:
                break
            self._runtime.resync(*retries)
        self._show_progress()

    async def _step(self) -> None:
        await asyncio.wait((self._task,), timeout=STEP_S)
        if self._task.done():
            self._task.result()
            raise NatsctlError(f"{self._runtime.name} ended before its plan was complete")
        syncs, primaries = self._show_progress()
        keys = max(primaries, self._stores.record.keys_seen)  # also of invalid and lost primaries
        if syncs > SYNCS_MAX * (keys + SYNCS_MAX):
            raise NatsctlError(
                f"{self._runtime.name} does not settle: {syncs} syncs of {keys} keys"
            )

    def _show_progress(self) -> tuple[int, int]:
        syncs, informers = self._stores.record.syncs, self._runtime.host.primaries
        primaries = sum(len(informer.table) for informer in informers)
        self._progress(syncs, primaries)
        return syncs, primaries


async def _failing(stores: Stores, controller: str) -> set[str]:
    prefix = failing_prefix(controller)
    with suppress(StoreError, WatchBrokenError, TimeoutError):
        store = await stores.open(PAUSES.part(f"{prefix}>"))
        async with asyncio.timeout(LIST_TIMEOUT_S):
            return {key.removeprefix(prefix) for key in await listed(store.watch)}
    return set()


class Planner:
    """Plans the keys of controllers, one request at a time; see `natsctl.plan`.

    The handler of a new instance runs in this process. It has neither the leadership nor the
    recordings nor the files of the controller that runs.
    """

    def __init__(
        self,
        *,
        nats: Stores,
        kube: ManifestStores | None = None,
        owner_names: OwnerNames | None = None,
    ) -> None:
        self._plan = partial(plan, nats=nats, kube=kube, owner_names=owner_names)
        self._busy = asyncio.Lock()

    async def plan(self, runtime: Hosted, keys: Sequence[str]) -> Plan:
        """Return what the controller would do; raises `UsageError` if only a command can."""
        running = runtime.controller if isinstance(runtime, ControllerRuntime) else runtime
        path = f"{type(running).__module__}:{type(running).__qualname__}"
        command = f"run natsctl plan -c {path}, which has no limit"
        if not 1 <= len(keys) <= KEYS_MAX:
            raise UsageError(f"name 1 to {KEYS_MAX} keys: a daemon makes no larger plan; {command}")
        if not isinstance(running, Controller | Guest):
            raise UsageError(f"{runtime.name} cannot be planned: it is a {type(running).__name__}")
        try:
            controller = make(type(running), path)
        except UsageError as error:
            raise UsageError(f"{runtime.name} cannot be planned in its daemon: {error}") from error
        if controller.name != runtime.name:
            raise UsageError(
                f"{runtime.name} cannot be planned in its daemon: {path} alone makes another "
                f"controller, {controller.name}"
            )
        tables = [informer.table for informer in runtime.host.informers.values()]
        objects = sum(len(table) + len(table.invalid) for table in tables)
        if objects > OBJECTS_MAX:
            raise UsageError(
                f"{runtime.name} has {objects} objects, and a daemon plans with at most "
                f"{OBJECTS_MAX}: {command}"
            )
        if self._busy.locked():
            raise NatsctlError("the daemon is making another plan: try again")
        context = Context()  # without the context variables of this daemon
        context.run(bind_log_context, controller=controller.name, planning=True)
        async with self._busy:
            work = self._plan(controller, keys=keys)
            task = asyncio.create_task(work, name="plan", context=context)
            try:
                async with asyncio.timeout(LIMIT_S):
                    return await task
            except TimeoutError:
                raise NatsctlError(f"the plan takes longer than {LIMIT_S:g} s: {command}") from None
