"""Plans what a controller would do: runs it once over stores that keep its writes in memory."""

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

import msgspec
from msgspec import UNSET

from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import only_primary
from natsctl.controller.slots.owners import OwnerNames
from natsctl.core.failing import failing_prefix
from natsctl.core.hosted import Hosted
from natsctl.core.pauses import PAUSES
from natsctl.core.planning.planning_stores import Planned, planned
from natsctl.core.planning.record import PlannedChange, place_of
from natsctl.core.sync import current_key
from natsctl.daemon.operator import Guest
from natsctl.errors import NatsctlError, StoreError, UsageError, WatchBrokenError
from natsctl.managed import ManagedController
from natsctl.model.garbage import GarbagePlan
from natsctl.model.plans.plan import Plan
from natsctl.model.store import Applied, Deleted, Listed, ManifestStores, Stores
from natsctl.watchers import InformerController

LIST_TIMEOUT_S = 5.0  # a watch that is broken after this time is an error
STEP_S = 0.01
QUIET_STEPS = 20  # turns of the event loop without work, after which the plan is complete
RETRIES_MAX = 10  # of a failed key after writes of others
SYNCS_MAX = 100  # of one key on average, before the plan gives up

Progress = Callable[[int, int], None]
"""Called with the number of syncs that have ended, and the number of keys."""


class MadePlan(msgspec.Struct, frozen=True):
    """A plan, and the objects that it changes before and after the change.

    `without_bucket` has the buckets of primaries that do not exist.
    """

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

    The real handler runs for every primary, over stores that keep its writes in memory. A failed
    key is synced again after other keys have written something.

    Args:
        controller: a controller that does not run.
        nats: the stores of kinds that are declared with `kv`.
        kube: the stores of kinds that are declared with `kube`.
        keys: the keys to plan; by default all.
        owner_names: the labels that link secondaries to primaries.
        progress: called while the plan is made.

    Raises `UsageError` if the controller cannot run or cannot be planned, and the error of a store
    that cannot be read.
    """
    stores = planned(nats=nats, kube=kube, key_of=current_key)
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
    with stores.planning():
        runtime = _runtime(controller, stores, owner_names)
        if isinstance(controller, Controller):
            stores.record.primaries = place_of(only_primary(type(controller)).kind)
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


def _runtime(
    controller: Controller | Guest, stores: Planned, owner_names: OwnerNames | None
) -> Hosted:
    """Return what runs the controller over the stores of the plan."""
    if isinstance(controller, ManagedController | InformerController):
        controller.use(nats=stores.nats, kube=stores.kube)
        return controller
    if not isinstance(controller, Controller):
        raise UsageError(
            f"{controller.name} cannot be planned: it is neither a Controller, a ManagedController "
            "nor an InformerController"
        )
    controller.garbage = msgspec.structs.replace(controller.garbage, grace_s=0.0)
    controller.rate_limit = None
    return ControllerRuntime(
        controller, nats=stores.nats, kube=stores.kube, owner_names=owner_names
    )


async def _failing(stores: Stores, controller: str) -> set[str]:
    """Return the keys that fail by the records of the controller; none if they can't be read."""
    prefix, keys = failing_prefix(controller), set[str]()
    with suppress(StoreError, WatchBrokenError, TimeoutError):
        store = await stores.open(PAUSES.part(f"{prefix}>"))
        async with asyncio.timeout(LIST_TIMEOUT_S), store.watch() as events:
            async for event in events:
                match event:
                    case Applied(stored):
                        keys.add(stored.key.removeprefix(prefix))
                    case Deleted(key):
                        keys.discard(key.removeprefix(prefix))
                    case Listed():
                        break
                    case _:
                        pass
    return keys


class _Run:
    """A controller that runs over planning stores."""

    def __init__(
        self, runtime: Hosted, stores: Planned, task: "asyncio.Task[None]", progress: Progress
    ) -> None:
        self._runtime = runtime
        self._stores = stores
        self._task = task
        self._progress = progress

    async def plan(self, keys: Collection[str]) -> MadePlan:
        """Return the plan of these keys, or of all; the task has just begun."""
        runtime, record = self._runtime, self._stores.record
        await self._started()
        if isinstance(runtime, ControllerRuntime):
            for key in keys:
                runtime.resync(key)  # also a key that does not exist
        await self._settled()
        garbage = GarbagePlan(())
        if isinstance(runtime, ControllerRuntime):
            await runtime.controller.garbage_secondaries()
            await self._settled()
            garbage = await runtime.garbage_plan(at_once=True)
        for key, reason in runtime.invalid().items():
            if not keys or key in keys:
                record.skipped(key, reason)
        plans = record.keys()
        missing = tuple(key for key in keys if key not in plans and not runtime.existing([key]))
        plan = Plan(
            controller=runtime.name,
            summary=record.summary(plans, runtime.existing),
            keys=plans,
            garbage=garbage if garbage.orphans else UNSET,
            missing=missing or UNSET,
        )
        if plan.summary.failed:
            plan = plan.compared(await _failing(self._stores.nats, runtime.name))
        sources = {source.bucket for source in runtime.status().sources}
        without_bucket = tuple(sorted(sources & self._stores.nats.missing))
        return MadePlan(plan, tuple(record.changes()), without_bucket)

    async def _started(self) -> None:
        """Wait until the caches are synced; raises the error of a store that cannot be read."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + LIST_TIMEOUT_S
        while not self._runtime.synced.is_set():
            await self._step()
            if clock() >= deadline and self._runtime.failure is not None:
                raise self._runtime.failure

    async def _settled(self) -> None:
        """Wait until no key needs a sync, with failed keys synced again where that may help."""
        record = self._stores.record
        await self._idle()
        for _ in range(RETRIES_MAX):
            retries = record.to_retry()
            if not retries:
                break
            self._runtime.resync(*retries)
            await self._idle()
        self._show_progress()

    async def _idle(self) -> None:
        quiet = 0
        while quiet < QUIET_STEPS:
            if self._runtime.idle and self._stores.settled:
                quiet += 1
                await asyncio.sleep(0)
            else:
                quiet = 0
                await self._step()

    async def _step(self) -> None:
        """Let the controller work for a moment; raises the error that ended it."""
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
        """Report and return the numbers of syncs and of keys."""
        syncs, primaries = self._stores.record.syncs, self._runtime.primaries
        self._progress(syncs, primaries)
        return syncs, primaries
