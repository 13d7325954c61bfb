"""Runs a reconciler for every object of a kind, in NATS or in a cluster.

A `Controller` over a bucket can call a `ManagedReconciler` in its sync handler. This is for objects
of a cluster, and for controllers that need nothing but the reconciler.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from natsctl.core.backends import Backends
from natsctl.core.hosted import KeyedController
from natsctl.core.informer import Informer
from natsctl.core.loop import skips_invalid
from natsctl.core.options import (
    FLAG,
    POLICY,
    RATE,
    SECONDS_OR_ZERO,
    TEXT,
    WORKERS,
    check_class,
)
from natsctl.core.readers import Primary
from natsctl.core.retry import RateLimit, RetryPolicy, always_retry
from natsctl.core.sync import Calls, blocking
from natsctl.core.workqueue import Operation
from natsctl.core.writes import Writes
from natsctl.errors import UsageError
from natsctl.managed.reconciler import ManagedReconciler
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.store import Change, ManifestStores, Stored, Stores
from natsctl.telemetry.logger import get_logger, log_context
from natsctl.telemetry.tracing import sync_span

log = get_logger(__name__)

T = TypeVar("T")


_OPTIONS = {
    "name": TEXT,
    "workers": WORKERS,
    "retry": POLICY,
    "rate_limit": RATE,
    "stop_timeout_s": SECONDS_OR_ZERO,
    "adopt": FLAG,
}

_METHODS = {
    "reconciler": "def reconciler(self, managed)",
    "start": "async def start(self)",
    "clean": "async def clean(self)",
}


class ManagedController(KeyedController, Generic[T]):
    """Reconciles every object of one kind.

    Subclass it, set `kind`, and write `reconciler`. Class attributes are options:

    - `kind`: the kind of the managed objects.
    - `name`: the name in logs, events and subjects; by default the class's name in lower case.
    - `workers`: how many objects are reconciled at once.
    - `retry`: what follows a failure.
    - `rate_limit`: how many reconciliations begin in a second; None means no limit.
    - `stop_timeout_s`: how long reconciliations may go on after `stop`.
    - `adopt`: whether resources that existed before are taken over, and deleted with their objects.
      By default only those are for which an object says so; see `ManagedReconciler`.
    """

    kind: Kind[T]
    name: str = ""
    surface = "managed"
    workers: int = 4
    retry: RetryPolicy = staticmethod(always_retry)
    rate_limit: RateLimit | None = None
    stop_timeout_s: float = 30.0
    adopt: bool = False

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await self.blocking(function, *args)`."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.name = cls.__dict__.get("name") or cls.__name__.lower()

    def __init__(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        check_class(self, ManagedController, _OPTIONS, _METHODS)
        if isinstance(self.kind, KvKind) and self.kind.statuses is not None:
            raise UsageError(f"{self.kind.name}: only a Controller's primary has a status_bucket")
        self._backends = Backends(nats=nats, kube=kube)
        self._calls = Calls(self.name, "reconcile")
        self._reconciler: ManagedReconciler[T]
        super().__init__(
            self._reconcile,
            start=self.start,
            clean=self.clean,
            stop_timeout_s=self.stop_timeout_s,
            retry=type(self).retry,  # an attribute of the instance would be a method
            rate_limit=self.rate_limit,
            failed="reconciliation failed",
            on_held_back=self._report_pause,
        )
        self.host.history.regarding, self.host.history.reported = self._references, True
        self._loop.paused.on_paused = lambda key: self._loop.enqueue(key, Operation.PUT)

    def reconciler(self, managed: Primary[T]) -> ManagedReconciler[T]:
        """Return the reconciler of these objects; `self` is a recorder for it."""
        raise NotImplementedError

    async def start(self) -> None:
        """Prepare; called after the table is synced and before the first reconciliation."""

    async def clean(self) -> None:
        """Release resources; called after the last reconciliation."""

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        """Set where objects are stored; must be called before `run`."""
        self._backends.use(nats=nats, kube=kube)

    async def run(self) -> None:
        """Reconcile until `stop`; returns when the reconciliations under way have ended.

        Raises the error that prevents the start.
        """
        async with self.opened():
            self._loop.watch(
                self._primary.informer, lambda change: self._changed((change,)), self._changed
            )
            work = self._loop.run(workers=self.workers)
            await self.host.run(work)

    def enqueue_key(self, key: str) -> None:
        """Reconcile the object soon, unless the key is another process's.

        Raises `InvalidInputError` for an empty key.
        """
        self._loop.request(key, Operation.MANUAL)

    @property
    def kinds(self) -> tuple[Kind[T]]:
        """The kinds that the controller works with; they determine which systems it needs."""
        return (self.kind,)

    @property
    def held_kinds(self) -> tuple[Kind[T]]:
        """The kinds that get a finalizer, which requires permission to update them."""
        return (self.kind,)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        kind, backends = type(self).kind, self._backends
        self._writes = writes = Writes()
        self.host.enter()
        writes.notes = self.host.environment.recordings is not None
        stores = backends.stores_of(kind)
        store = await backends.open(kind)
        informer = Informer(store, kind, on_listed=self._loop.queue.hasten_retries)
        primary = Primary(informer, writes, backends.open, self._loop.queue)
        systems = {id(system): system for system in (stores, backends.nats) if system}
        self._loop.primary, self._reconciler = primary, self.reconciler(primary)
        self._reconciler.of_controller(adopt=self.adopt)
        self._loop.paused.follow((informer,))
        slots, records = {"primary": informer}, backends.nats
        async with self.host.watching(
            slots, (informer,), records=records, systems=(*systems.values(),)
        ):
            yield

    async def sync(self, key: str, *, last: Stored | None = None) -> float | None:
        """Reconcile the object now, outside the loop; raises its failure.

        Needs a store that is `opened` and a table that is `complete`. *last* is the last state of a
        deleted object. Raises `UsageError` while the controller runs.
        """
        self._check_idle()
        if last is not None:
            self._loop.queue.note(key).last = last
        return await self._reconcile(key, Operation.MANUAL)

    def _changed(self, changes: Sequence[Change[T]]) -> None:
        self._loop.primaries_changed(changes)
        for change in changes:
            if not self.holds(change.key):
                self._reconciler.forget(change)
            elif self._reconciler.replaced(change):
                self._loop.enqueue(change.key, Operation.PUT)

    async def _report_pause(self, key: str) -> float | None:
        """Set the condition of a paused object; the reconciler calls nothing outside.

        The reconciler would reconcile an object that is not paused, but quarantined.
        """
        if key in self._loop.paused.pauses and key in self._primary.informer.table:
            await self._calls.call(key, self._reconciler.reconcile)
        return None

    async def _reconcile(self, key: str, operation: Operation | None = None) -> float | None:
        primary = self._primary
        if skips_invalid(primary, key):
            return None
        history, queue = self.host.history, self._loop.queue
        noted, stored = queue.noted(key), primary.informer.table.get(key)
        last = None if noted is None else noted.last
        run = history.begin(key, operation or queue.reason(key), stored, last=last)
        clock = asyncio.get_running_loop().time
        tape, run.tape = run.tape, None
        with sync_span(self.name, log_context), run:
            try:
                if key in self._writes.unseen:
                    await self._writes.wait(key)
                run.tape = tape
                after_s = await self._calls.delay(key, self._reconciler.reconcile)
            except BaseException as error:
                await history.recall(key, error, queue)
                history.failed(run, error, clock(), failures=queue.failures(key) + 1)
                raise
        failed = queue.failures(key) > 0
        history.succeeded(run, clock(), failed=failed, after_s=after_s)
        if after_s is None and last is not None:
            primary.forget_last(key, last)
        return after_s

    def _references(self, key: str) -> list[Reference]:
        kind, stored = self._primary.kind, self._primary.informer.table.get(key)
        if not isinstance(kind, KubeKind) or stored is None:
            return []
        return [kind.reference(stored.value)]
