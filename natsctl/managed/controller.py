"""Running a reconciler for every object of a kind, in NATS or in a cluster.

A `Controller` over a bucket can call a `ManagedReconciler` in its sync handler. This is for
objects of a cluster, and for who needs nothing but the reconciler.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Generic, TypeVar

from natsctl.core.cache.deletion_markers import deleted
from natsctl.core.cache.informer import Informer
from natsctl.core.insight.explain import Explanation, Status, known, status
from natsctl.core.insight.measures import Measures, QueueMeasures, cache_measures, lags
from natsctl.core.insight.tree import Beyond, Branch, tree
from natsctl.core.objects.primary import Primary
from natsctl.core.objects.read_your_writes import Barrier
from natsctl.core.queue.retry import RateLimit, RetryPolicy, always_retry
from natsctl.core.queue.workqueue import Priority, Workqueue
from natsctl.core.sync.calls import Calls, blocking, call_hook
from natsctl.core.sync.changes import named, operation_for
from natsctl.core.sync.failures import FailureLog
from natsctl.core.sync.journal import Journal
from natsctl.core.sync.loop import Has, SyncLoop
from natsctl.core.sync.operation import Operation
from natsctl.core.sync.options import COUNT, POLICY, RATE, SECONDS_OR_ZERO, TEXT, check_class
from natsctl.core.sync.reasons import Reasons
from natsctl.core.sync.stopping import finish
from natsctl.core.task_group import together
from natsctl.errors import UsageError
from natsctl.managed.reconciler import ManagedReconciler
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.recorder import EventType, Recorder
from natsctl.model.store import Change, Stores
from natsctl.telemetry.logger import log_context
from natsctl.telemetry.tracing import sync_span

log = logging.getLogger(__name__)

T = TypeVar("T")


_OPTIONS = {
    "name": TEXT,
    "workers": COUNT,
    "retry": POLICY,
    "rate_limit": RATE,
    "stop_timeout_s": SECONDS_OR_ZERO,
}

_METHODS = {
    "reconciler": "def reconciler(self, managed)",
    "start": "async def start(self)",
    "clean": "async def clean(self)",
}


class ManagedController(Generic[T]):
    """Reconciles every object of one kind.

    Subclass it, say which `kind`, and write `reconciler`. Class attributes are options:

    - `kind`: of the managed objects.
    - `name`: in logs, events and subjects; by default the class's name in lower case.
    - `workers`: how many objects are reconciled at once.
    - `retry`: what follows a failure.
    - `rate_limit`: how many reconciliations begin in a second; None: as many as can.
    - `stop_timeout_s`: how long reconciliations under way may go on after `stop`.
    """

    kind: Kind[T]
    name: str = ""
    workers: int = 4
    retry: RetryPolicy = staticmethod(always_retry)
    rate_limit: RateLimit | None = None
    stop_timeout_s: float = 30.0

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await self.blocking(function, *args)`."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()

    def __init__(self, *, nats: Stores | None = None, kube: Stores | None = None) -> None:
        check_class(self, ManagedController, _OPTIONS, _METHODS)
        self.synced = asyncio.Event()  # the cache is complete, and reconciling has begun
        self._nats, self._kube = nats, kube
        self._queue = Workqueue[str](pace=self.rate_limit)
        self._stopping = asyncio.Event()
        self._recorders: list[Recorder] = []
        self._informers: dict[str, Informer[T]] = {}  # the one, once opened
        self.prepared = False  # the store is open, so there is something to explain
        self.stopping = False  # it was told to stop
        self._reasons, self._journal, self._failures = Reasons(), Journal(), FailureLog(log)
        self._loop: SyncLoop[str] | None = None
        self._primary: Primary[T]
        self._reconciler: ManagedReconciler[T]
        self._calls: Calls

    def reconciler(self, managed: Primary[T]) -> ManagedReconciler[T]:
        """Return what reconciles these objects; `self` is a recorder for it."""
        raise NotImplementedError

    async def start(self) -> None:
        """Prepare, after the cache is complete and before anything is reconciled."""

    async def clean(self) -> None:
        """Let go of everything, after the last reconciliation."""

    def use(self, *, nats: Stores | None = None, kube: Stores | None = None) -> None:
        """Keep objects there from now on; whoever runs the controller says so before `run`."""
        self._nats = self._nats if nats is None else nats
        self._kube = self._kube if kube is None else kube

    async def run(self) -> None:
        """Reconcile until `stop`; returns when what was under way is done.

        Raises what could not be had at the start.
        """
        async with self._opened():
            try:
                async with together() as group:
                    work = group.create_task(self._work(), name="sync loop")
                    stopping = group.create_task(self._stopping.wait(), name="stop")
                    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
                    await self._finish(work)
                    stopping.cancel()
            finally:
                await call_hook(self.name, self.clean)

    def stop(self) -> None:
        """Take no more keys; `run` returns when those under way are done."""
        self.stopping = True
        self._queue.shut_down(drain=False)
        self._stopping.set()

    def enqueue_key(self, key: str) -> None:
        """Reconcile the object as soon as possible, unless the key is another process's.

        Raises `InvalidInputError` for an empty key.
        """
        self._enqueue(named(key), Operation.MANUAL, Priority.USER)

    def resync(self, *keys: str) -> int:
        """Reconcile every object of this process, behind what is urgent; or these, before it.

        Returns how many.
        """
        wanted = list(filter(self.holds, map(named, keys or self._primary.informer.cache.keys())))
        operation = Operation.MANUAL if keys else Operation.RESYNC
        for key in wanted:
            self._enqueue(key, operation, operation.priority)
        return len(wanted)

    def explain(self, key: str) -> Explanation:
        """Return what is known of an object: its place in the queue, its last reconciliations."""
        cache = self._primary.informer.cache
        return known(self.name, key, cache, self._queue, self._journal)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """Return the object with what its document tells *beyond* its store."""
        return tree(key, self._primary.informer, beyond=beyond)

    def status(self) -> Status:
        """Return how the controller is doing as a whole."""
        informers, queue = list(self._informers.values()), self._queue.stats()
        return status(
            self.name,
            informers,
            informers,
            queue,
            self._journal,
            synced=self.synced.is_set(),
            has=self.holds,
        )

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record an event about the object *key*, for people."""
        for recorder in self._recorders:
            recorder.event(key, type, reason, message, self._regarding(key))

    def holds(self, key: str) -> bool:
        """Say whether the object is reconciled by this process now, and not by another."""
        return self._loop is None or self._loop.holdings.has(key)

    @property
    def kinds(self) -> tuple[Kind[T]]:
        """What is reconciled: whoever connects sees by it which system is needed."""
        return (self.kind,)

    @property
    def held_kinds(self) -> tuple[Kind[T]]:
        """What is held by a finalizer, which takes permission to update."""
        return (self.kind,)

    def measures(self) -> Measures:
        """Return what was measured so far, for metrics and health checks."""
        now, loop = asyncio.get_running_loop().time(), self._loop
        return Measures(
            controller=self.name,
            synced=self.synced.is_set(),
            caches=cache_measures(self._informers),
            queues=(QueueMeasures(self.name, self.workers, self._queue.stats()),),
            syncs=None if loop is None else loop.tally.read(now),
        )

    async def lags(self) -> dict[str, int]:
        """Return by how many revisions the cache is behind its store, where that is known.

        Asks the store; takes a second at most.
        """
        return await lags(self._informers)

    @property
    def idle(self) -> bool:
        """Whether reconciling has begun and no key waits for its time, a worker or a result."""
        telling = self.synced.is_set() and self._primary.informer.telling
        return self.synced.is_set() and self._queue.idle and not telling

    # ---- start and end

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        kind, in_cluster = type(self).kind, isinstance(type(self).kind, KubeKind)
        stores = self._kube if in_cluster else self._nats
        if stores is None:
            where = "Kubernetes, and no cluster" if in_cluster else "NATS, and no connection"
            raise UsageError(f"{kind.name} is kept in {where} is given")
        store = await stores.open(kind)
        informer = Informer(store, kind, on_listed=self._queue.hasten_retries)
        self._informers = {"primary": informer}
        self._primary = Primary(informer, Barrier(), stores.open)
        self._reconciler = self.reconciler(self._primary)
        self.prepared = True
        async with AsyncExitStack() as stack, together() as group:
            self._recorders = [await stack.enter_async_context(stores.recorder(self.name))]
            watch = group.create_task(informer.run(), name=f"watch of {kind.name}")
            try:
                yield
            finally:
                watch.cancel()

    async def _work(self) -> None:
        retry = type(self).retry  # on an instance it would be a method
        self._calls = Calls(self.name, "reconcile")
        self._loop = loop = SyncLoop(
            self._sync, queue=self._queue, retry=retry, workers=self.workers
        )
        loop.watch(self._primary.informer, self._changed)
        await loop.run(self._begin, _Moves(self._primary, self._reasons, self._enqueue))

    async def _begin(self) -> None:
        if self.synced.is_set():
            return
        await call_hook(self.name, self.start)
        self.synced.set()
        objects = len(self._primary.informer.cache)
        log.info("%s: %d objects listed, reconciling", self.name, objects)

    async def _finish(self, work: "asyncio.Task[None]") -> None:
        """Let reconciliations under way end, for a while."""
        self.stop()
        limit_s = self.stop_timeout_s if self.synced.is_set() else 0.0
        await finish(self.name, (work,), within_s=limit_s)

    # ---- what changes, and what follows

    def _enqueue(self, key: str, operation: Operation, priority: Priority) -> None:
        if self.holds(key):
            self._reasons.add(key, operation)
            self._queue.add(key, priority=priority)

    def _changed(self, change: Change[Any]) -> None:
        """Reconcile the object unless only its status changed."""
        if not self.holds(change.key):
            return
        operation = operation_for(change, self._primary)
        if operation is not None:
            priority = Priority.RESYNC if change.initial else Priority.USER
            self._enqueue(change.key, operation, priority)

    async def _sync(self, key: str) -> float | None:
        """Reconcile the object, unless its newest state is invalid: the next valid one heals it."""
        operation, cache = self._reasons.take(key), self._primary.informer.cache
        if key in cache.invalid:
            self._primary.skipped.add(key)
            return None
        self._primary.skipped.discard(key)
        last, stored = self._primary.gone.get(key), cache.get(key)
        revision = None if stored is None else stored.revision
        with sync_span(self.name, log_context), self._journal.noting(key, operation, revision):
            try:
                after_s = await self._calls.delay(key, self._reconciler.reconcile, key)
            except Exception as error:
                self._failures.failed(key, f"{self.name}: {key}", error)
                raise
            self._failures.succeeded(key)
        if after_s is None and last is not None and self._primary.gone.get(key) is last:
            del self._primary.gone[key]
        return after_s

    def _regarding(self, key: str) -> list[Reference]:
        kind = type(self).kind
        stored = self._primary.informer.cache.get(key)
        if not isinstance(kind, KubeKind) or stored is None:
            return []
        return [kind.reference(stored.value)]


class _Moves:
    """Reconciles the objects that come; `Moves` of the loop."""

    def __init__(
        self,
        primary: Primary[Any],
        reasons: Reasons,
        enqueue: Callable[[str, Operation, Priority], None],
    ) -> None:
        self._primary = primary
        self._reasons = reasons
        self._enqueue = enqueue

    def went(self, has: Has) -> None:
        """See `Moves.went`."""
        self._primary.keep(has)
        self._reasons.keep(has)

    async def came(self, came: Has) -> None:
        """See `Moves.came`."""
        informer = self._primary.informer
        for key in filter(came, list(informer.cache.keys())):
            self._enqueue(key, Operation.RESYNC, Priority.RESYNC)
        if not isinstance(self._primary.kind, KubeKind):  # a cluster remembers no deletion
            for key in await deleted(informer.store, came):
                self._enqueue(key, Operation.RESYNC, Priority.RESYNC)
