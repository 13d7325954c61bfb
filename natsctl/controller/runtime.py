"""Controller, what a user writes, and ControllerRuntime, which runs one.

One key's journey: the primary's informer sees a change and adds the key to the workqueue; so does
a secondary's, with the key of its owner. A worker takes the key, waits until the caches have seen
what this key's last sync wrote, calls the sync handler, removes what the key owned if it is gone,
and settles what follows.

Seed: Kumori controllerruntime v0.0.7, whose nine type parameters are lists of slots here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from inspect import isfunction
from typing import Any

from natsctl.controller.explain import explain
from natsctl.controller.garbage.collector import GarbageCollector
from natsctl.controller.garbage.evidence import MEMORY, Evidence
from natsctl.controller.slots.backends import Systems
from natsctl.controller.slots.declare import only_primary
from natsctl.controller.slots.open_slots import Opened
from natsctl.controller.slots.owners import OwnerNames
from natsctl.controller.slots.reads import Reads
from natsctl.controller.sync.enqueue import Wakes
from natsctl.controller.sync.events import Reports
from natsctl.controller.sync.gc_cycles import Sweeps, repeat_cycles
from natsctl.controller.sync.resync import keeps_up, resync
from natsctl.controller.sync.sync_run import DeletionPolicy, Visits
from natsctl.core.coordination.installation import Installation
from natsctl.core.coordination.term import led
from natsctl.core.insight import measures
from natsctl.core.insight.explain import Explanation, Status, status
from natsctl.core.insight.measures import Measures, QueueMeasures
from natsctl.core.insight.tree import Beyond, Branch, tree
from natsctl.core.objects.read_your_writes import Barrier
from natsctl.core.queue.retry import RateLimit, RetryPolicy, always_retry
from natsctl.core.queue.workqueue import Workqueue
from natsctl.core.sync.calls import blocking, call_hook, shown
from natsctl.core.sync.changes import named
from natsctl.core.sync.loop import SyncLoop
from natsctl.core.sync.operation import Operation
from natsctl.core.sync.options import CONTROLLER_METHODS, CONTROLLER_OPTIONS, check_class
from natsctl.core.sync.stopping import finish
from natsctl.core.task_group import together
from natsctl.errors import NotFoundError, StoreError, UsageError, is_delay
from natsctl.model.garbage import GarbageLimits, GarbagePlan, Removed
from natsctl.model.kinds import Kind
from natsctl.model.recorder import EventType
from natsctl.model.store import Change, ManifestStores, Stores

log = logging.getLogger(__name__)


class Controller:
    """Keeps what its primaries imply equal to what they say.

    Subclass it, declare one `primary`, any number of `secondary` and `tertiary`, and write
    `sync_handler`. Class attributes are options:

    - `name`: in logs, events and subjects; by default the class's name in lower case.
    - `workers`: how many keys are synced at once.
    - `resync_s`: every primary is visited again once per so many seconds.
    - `sync_timeout_s`: a sync that takes longer fails.
    - `retry`: what follows a failure.
    - `rate_limit`: how many syncs begin in a second, whatever their keys; None: as many as can.
    - `deletion_policy`: what becomes of what a deleted primary owned.
    - `garbage`: when orphans are collected.
    - `kinds`: what `reads` reads of a cluster, so that one is looked for, and permissions for it.
    """

    name: str = ""
    workers: int = 4
    resync_s: float = 600.0
    sync_timeout_s: float = 60.0
    retry: RetryPolicy = staticmethod(always_retry)
    rate_limit: RateLimit | None = None
    deletion_policy: DeletionPolicy = "delete"
    garbage: GarbageLimits = GarbageLimits()
    kinds: Sequence[Kind[Any]] = ()

    runtime: "ControllerRuntime"
    """Who runs this controller; there from `start` to `clean`."""

    reads: Reads
    """Reads what is declared nowhere, for the key being synced; a change of it wakes that key."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()
        if isfunction(cls.__dict__.get("retry")):
            cls.retry = staticmethod(cls.retry)  # a policy is no method

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await self.blocking(function, *args)`."""

    async def sync_handler(self, key: str) -> float | None:
        """Make the world match the primary *key*; return seconds until the next sync, or None.

        If `get` does not find the primary it is gone, and the objects that it owned are removed
        after this returns. A handler fails by raising: the key is retried with backoff.
        `RetryAfter` asks for a delay, `PermanentError` for no retry until the object changes.
        """
        raise NotImplementedError

    def handle_secondary(self, change: Change[Any]) -> Iterable[str]:
        """Return the primaries that a secondary's change concerns: by default its owners.

        The owner of the object as it is and of the object as it was; a label that moved wakes
        both.
        """
        return self.runtime.owners(change)

    async def garbage_secondaries(self) -> None:
        """Collect secondaries whose owner is gone; called at every sweep."""
        await self.runtime.sweep()

    async def start(self) -> None:
        """Prepare, after every cache is complete and before the first sync."""

    async def clean(self) -> None:
        """Let go of everything, after the last sync."""


def check_controller(controller: Controller) -> None:
    """Raise `UsageError` if the controller cannot run as it is written.

    That is so without exactly one primary, with an option of a wrong type or out of range, with
    one that looks misspelt, and with a method that is not `async def` or takes other arguments.
    """
    only_primary(type(controller))
    check_class(controller, Controller, CONTROLLER_OPTIONS, CONTROLLER_METHODS)


class ControllerRuntime:
    """Runs one controller until it is stopped.

    Args:
        controller: what to run; its `runtime` is set to this.
        nats: where kinds declared with `kv` are kept, as `natsctl.connect` gives it.
        kube: where kinds declared with `kube` are kept, as `natsctl.connect_kube` gives it.
        owner_names: the labels that link secondaries to primaries.
        barrier_timeout_s: how long a key waits for the caches to show its own last writes.
        stop_timeout_s: how long syncs under way may go on after `stop`.

    Raises `UsageError` as `check_controller` does, and if the controller has kinds of a cluster
    while no cluster is given.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        nats: Stores,
        kube: ManifestStores | None = None,
        owner_names: OwnerNames | None = None,
        barrier_timeout_s: float = 10.0,
        stop_timeout_s: float = 30.0,
    ) -> None:
        check_controller(controller)
        self.controller = controller
        self.name = controller.name
        self.kind = only_primary(type(controller)).kind.name  # as owner labels say it
        self.synced = asyncio.Event()  # every cache is complete, and syncing has begun
        self.prepared = False  # the slots are open, so there is something to explain
        self.stopping = False  # it was told to stop
        self.installation: Installation | None = None  # known once the slots are open
        self.nats = nats  # for who needs more of it than slots
        controller.runtime = self
        self._systems = Systems(type(controller), nats, kube)
        self._names = OwnerNames() if owner_names is None else owner_names
        self._barrier = Barrier(barrier_timeout_s)
        queue = Workqueue[str](pace=controller.rate_limit)
        self._loop = SyncLoop(
            self._sync, queue=queue, retry=controller.retry, workers=controller.workers
        )
        self._reports = Reports(self.name, lambda key: self._opened.references(key))  # noqa: PLW0108 - made below
        self._wakes = Wakes(controller, self._loop, reports=self._reports)
        self._sweeps = Sweeps(
            self._reports,
            policy=controller.deletion_policy,
            holds=self.holds,
            enqueue=self.enqueue_key,
        )
        self._opened = Opened(
            self._systems,
            self._barrier,
            self._wakes.listeners,
            names=self._names,
            owner=self.kind,
            manager=f"natsctl/{self.name}",
        )
        self._stop_timeout_s = stop_timeout_s
        self._stopping = asyncio.Event()
        self._visits: Visits

    async def run(self) -> None:
        """Sync until `stop`; returns when what was under way is finished and cleaned up.

        Raises what could not be had at the start, and what ends the controller for good.
        """
        async with self._systems.recorders(self.name) as self._reports.recorders, self.opened():
            try:
                async with together() as group:
                    work = group.create_task(
                        self._loop.run(self._begin, self._wakes), name="sync loop"
                    )
                    upkeep = (
                        group.create_task(self._resync(), name="resync"),
                        group.create_task(self._collect(), name="garbage collection"),
                        group.create_task(self._stopping.wait(), name="stop"),
                    )
                    await asyncio.wait((work, upkeep[-1]), return_when=asyncio.FIRST_COMPLETED)
                    await self._finish(work)
                    await self._sweeps.save()
                    for task in upkeep:
                        task.cancel()
            finally:
                await call_hook(self.name, self.controller.clean)

    def stop(self) -> None:
        """Take no more keys; `run` returns when those under way are done."""
        self.stopping = True
        self._loop.queue.shut_down(drain=False)
        self._stopping.set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open every slot and keep its cache equal to its store; nothing is synced yet."""
        self.installation = await self._systems.installation()
        await self._opened.open(self.controller, self.installation)
        for informer, on_change in self._opened.subscriptions:
            self._loop.watch(informer, on_change)
        await self._prepare()
        async with self._opened.watched():
            yield

    async def complete(self) -> None:
        """Wait until every cache has seen a whole listing, and review what proves deletions."""
        await self._opened.complete()
        await self._sweeps.start()

    @property
    def failure(self) -> StoreError | None:
        """Why a cache has no watch just now, None where all have."""
        return self._opened.failure

    async def visit(self, key: str) -> float | None:
        """Sync the key now, without a running loop and whatever came of it before; failing raises.

        For whoever has `opened` the slots and waited until they are `complete`.
        """
        return await self._visits.visit(key, Operation.MANUAL)

    def enqueue_key(self, key: str, operation: Operation) -> None:
        """Sync the key as soon as the priority of *operation* allows.

        The key of another process is ignored, see `holds`. Raises `InvalidInputError` for an
        empty key.
        """
        self._wakes.wake(named(key), operation)

    def enqueue_key_after(self, key: str, operation: Operation, delay_s: float) -> None:
        """Sync the key after *delay_s* seconds, even if it is synced before; see `enqueue_key`.

        Raises `UsageError` if *delay_s* is not a number of seconds, 0 or more.
        """
        if not is_delay(delay_s):
            raise UsageError(f"a delay is seconds, 0 or more, not {shown(delay_s)}")
        self._wakes.wake(named(key), operation, after=delay_s)

    def holds(self, key: str) -> bool:
        """Say whether the key is visited by this process now, and not by another."""
        return self._loop.holdings.has(key)

    def resync(self, *keys: str) -> int:
        """Visit every primary of this process again, behind what is urgent; or these, before it.

        Returns how many.
        """
        operation = Operation.MANUAL if keys else Operation.RESYNC
        wanted = list(filter(self.holds, keys or self._opened.primary.keys()))
        for key in wanted:
            self.enqueue_key(key, operation)
        return len(wanted)

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record an event about *key*, for people."""
        self._reports.event(key, type, reason, message)

    def decompose_secondary(self, obj: object) -> tuple[object, str]:
        """Return the object and the key of the primary that owns it.

        Raises `NotFoundError` if it has no owner of this controller's kind and installation.
        """
        owner = self._opened.owner_in(obj)
        if owner is not None:
            return obj, owner.key
        raise NotFoundError(f"the object has no owner of kind {self.kind}")

    def owners(self, change: Change[Any]) -> list[str]:
        """Return the primaries that own the changed object, as it is and as it was."""
        return self._wakes.owners(change)

    async def garbage_plan(
        self, *, at_once: bool = False, orphans_max: int | None = None
    ) -> GarbagePlan:
        """Return every orphan with the reason, and why none would be removed, if so.

        *at_once* leaves the grace period out, for a person who has looked; more than
        *orphans_max* are only counted.
        """
        return await self._sweeps.plan(at_once=at_once, orphans_max=orphans_max)

    async def garbage_apply(self, plan: GarbagePlan) -> Removed:
        """Remove what the plan names and nothing else, at a person's command.

        Each object is checked again; the result has those that were kept, with the reasons.

        Where several processes share the keys, each removes what its own keys owned.
        """
        return await self._sweeps.apply(plan)

    async def garbage_accept(self) -> GarbagePlan:
        """Trust the bucket of primaries as it is, at a person's command; return the plan then.

        Garbage collection is held if the bucket is not the one that was seen before, see
        `garbage_held`.
        """
        return await self._sweeps.accept()

    @property
    def garbage_held(self) -> str:
        """Why garbage collection is held until a person accepts it; empty if it is not."""
        return self._sweeps.held

    async def sweep(self) -> None:
        """Collect the orphans whose grace is over, each while its owner's key is held."""
        await self._sweeps.sweep()

    def explain(self, key: str) -> Explanation:
        """Return what is known of a key: its place in the queue, its last syncs, what it owns."""
        found = explain(self.name, key, self._opened, self._loop.queue, self._visits.journal)
        return found.held_back(self.garbage_held)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """Return a primary with all that was made for it, in its stores and *beyond* them."""
        return tree(key, self._opened.primary.informer, self._opened.owned(key), beyond)

    def status(self) -> Status:
        """Return how the controller is doing as a whole."""
        return status(
            self.name,
            (self._opened.primary.informer,),
            self._opened.informers,
            self._loop.queue.stats(),
            self._visits.journal,
            synced=self.synced.is_set(),
            has=self.holds,
            contested=self._opened.contests(),
            installation="" if self.installation is None else self.installation.id,
            garbage_held=self.garbage_held,
        )

    def measures(self) -> Measures:
        """Return what was measured since this was made, for metrics and health checks."""
        queue = QueueMeasures(self.name, self.controller.workers, self._loop.queue.stats())
        return Measures(
            controller=self.name,
            synced=self.synced.is_set(),
            caches=measures.cache_measures(self._opened.by_slot),
            queues=(queue,),
            syncs=self._loop.tally.read(asyncio.get_running_loop().time()),
            upkeep=measures.upkeep_measures(
                self._barrier,
                self._sweeps.last,
                undone=self._opened.undone,
                contested=len(self._opened.contests()),
            ),
        )

    async def lags(self) -> dict[str, int]:
        """Return by how many revisions each slot's cache is behind its store, where that is known.

        Asks the stores; takes a second at most.
        """
        return await measures.lags(self._opened.by_slot)

    @property
    def idle(self) -> bool:
        """True if syncing has begun and the queue is settled, see `Workqueue.settled`."""
        return self.synced.is_set() and self._loop.queue.settled and not self._opened.telling

    # ---- start and end

    async def _prepare(self) -> None:
        memory, primary = await self._systems.open(MEMORY), self._opened.primary.informer
        evidence = Evidence(primary, memory, self.name)
        self._visits = Visits(
            self._opened.reads.tracked(self.controller.sync_handler),
            self._opened.primary,
            self._opened.secondaries,
            self._barrier,
            self._reports,
            evidence=evidence,
            policy=self.controller.deletion_policy,
            timeout_s=self.controller.sync_timeout_s,
        )
        collector = GarbageCollector(
            primary, self._opened.secondaries, evidence, self.controller.garbage
        )
        self._sweeps.begin(collector, self._visits)
        self._wakes.begin(self._opened, self._visits)
        self.prepared = True

    async def _begin(self) -> None:
        if self.synced.is_set():
            return
        await self._sweeps.start()
        await call_hook(self.name, self.controller.start)
        self.synced.set()
        log.info("%s: %d primaries listed, syncing", self.name, len(self._opened.primary.keys()))

    async def _finish(self, work: "asyncio.Task[None]") -> None:
        """Let syncs under way end, for a while."""
        self.stop()
        limit_s = self._stop_timeout_s if self.synced.is_set() else 0.0
        await finish(self.name, (work,), within_s=limit_s)

    def _sync(self, key: str) -> Awaitable[float | None]:
        return self._visits.visit(key, self._wakes.reasons.take(key))

    async def _resync(self) -> None:
        await self.synced.wait()
        await led()
        await keeps_up(self._loop.queue.oldest_ready, within_s=self.controller.resync_s)
        await resync(
            self._opened.primary.keys,
            lambda key: self.enqueue_key(key, Operation.RESYNC),
            interval_s=self.controller.resync_s,
        )

    async def _collect(self) -> None:
        await self.synced.wait()
        await repeat_cycles(
            self.controller.garbage_secondaries,
            controller=self.name,
            interval_s=self.controller.garbage.interval_s,
        )
