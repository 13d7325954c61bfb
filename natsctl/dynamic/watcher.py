"""Calls a reconciler for watchers when the objects that they watch change."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec

from natsctl.core.dependencies import Batches, Cause, DependencyWatch, DependencyWatches
from natsctl.core.history import HandlerFailures
from natsctl.core.host import Host
from natsctl.core.loop import SyncLoop
from natsctl.core.sync import Calls, blocking
from natsctl.core.workqueue import Priority, WorkQueue
from natsctl.dynamic.cache import Objects, named, selected
from natsctl.dynamic.identifier import GroupVersionKind, ObjectIdentifier
from natsctl.dynamic.options import DynamicOptions, Reconcile, Reconciler
from natsctl.dynamic.parts import Parts, object_from, objects_from
from natsctl.dynamic.resources import Resources, ScopedGVR
from natsctl.errors import (
    CacheDisabledError,
    InvalidInputError,
    NoCacheEntryError,
    NotStartedError,
    QueryBatchInProgressError,
    UsageError,
)
from natsctl.model.discovery import Cluster
from natsctl.model.documents import Document
from natsctl.model.selectors import Selector
from natsctl.model.store import Stores
from natsctl.telemetry.logger import get_logger, log_context
from natsctl.telemetry.tracing import sync_span

log = get_logger(__name__)

_EVERYTHING = Selector()

DYNAMIC = "dynamic"


class _Running(msgspec.Struct, frozen=True):
    """The parts that exist from a start to its end."""

    host: Host
    queue: WorkQueue[ObjectIdentifier]


class DynamicWatcher:
    """Watches single objects and selections of objects, for watchers that are added and removed.

    *Guarantees.* All watchers of an object or a selection share one watch, which ends with the last
    of them. After every change of a watched object, the reconciler is called for each of its
    watchers. Several changes may lead to one call, and one worker at a time handles a watcher. A
    watch that breaks is established again, and reports the changes in between. If it can't be,
    because a permission or the kind is missing, it's taken from all its watchers, and the
    reconciler is called for each; another read of the object raises the error.

    Args:
        reconciler: a `Reconciler`, or an async function.
        nats: the stores of buckets, see `natsctl.connect`.
        kube: the cluster, see `natsctl.connect_kube`.
        options: the options.

    All methods that change or read watches raise `NotStartedError` unless `started` is set.

    Seed: stolostron kubernetes-dependency-watches v0.5.2.
    """

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await watcher.blocking(function, *args)`."""

    def __init__(
        self,
        reconciler: Reconciler | Reconcile,
        *,
        nats: Stores | None = None,
        kube: Cluster | None = None,
        options: DynamicOptions | None = None,
    ) -> None:
        self.started = asyncio.Event()
        self._options = DynamicOptions() if options is None else options
        self._reconcile: Reconcile = (
            reconciler.reconcile if isinstance(reconciler, Reconciler) else reconciler
        )
        self._resources = Resources(kube, self._options.object_cache_options)
        self._parts = Parts(
            self._resources, nats=nats, kube=kube, metadata_only=not self._options.enable_cache
        )
        self._watches = DependencyWatches[ObjectIdentifier](
            self._parts.open, self._enqueue, list_s=self._options.list_timeout_s
        )
        self._batches = Batches(self._watches)
        self._locks: WeakValueDictionary[ObjectIdentifier, asyncio.Lock] = WeakValueDictionary()
        self._running: _Running | None = None
        self._calls = Calls(
            DYNAMIC,
            "the reconciler",
            limit_s=self._options.reconcile_timeout_s,
            call_name="reconcile",
            setting="reconcile_timeout_s",
        )
        self._failures = HandlerFailures(log, logging.WARNING)

    # ---- start and end

    async def start(self) -> None:
        """Run until `stop` or a cancellation; all watches end then.

        The dynamic watcher can be started again after its end. Raises `UsageError` while it runs.
        """
        if self._running is not None:
            raise UsageError("the dynamic watcher runs already: stop it before another start")
        options = self._options
        queue = WorkQueue(limiter=options.rate_limiter, bucket=options.overall_rate)
        host = Host(
            DYNAMIC,
            lambda: {DYNAMIC: queue},
            start=self._begin,
            stop_timeout_s=options.stop_timeout_s,
        )
        self._batches = Batches(self._watches)
        self._running = _Running(host, queue)
        try:
            async with self._watches.running():
                loop = SyncLoop(self._sync, queue=queue)
                await host.run(loop.run(host.begin, workers=options.workers))
        finally:
            self.started.clear()
            self._running = None

    def stop(self) -> None:
        """Begin no more calls of the reconciler; `start` returns when running calls have ended."""
        if self._running is not None:
            self._running.host.stop()

    # ---- watchers

    async def add_watcher(self, watcher: ObjectIdentifier, watched: ObjectIdentifier) -> None:
        """Add *watched* to the objects that *watcher* watches; returns once it is listed.

        Raises `InvalidInputError`, `QueryBatchInProgressError`, `NoVersionedResourceError` if the
        kind does not exist, a `StoreError` if the object cannot be watched, and
        `WatchStoppingError` if the dynamic watcher is stopped.
        """
        self._check(watcher)
        async with self._locked(watcher):
            await self._watches.depend(watcher, await self._parts.dependency_on(watched))

    async def add_or_update_watcher(
        self, watcher: ObjectIdentifier, *watched: ObjectIdentifier
    ) -> None:
        """Replace the objects that *watcher* watches by *watched*, at least one.

        If one of them cannot be watched, nothing changes. Raises the errors of `add_watcher`.
        """
        self._check(watcher)
        if not watched:
            raise InvalidInputError("at least one watched object must be given")
        async with self._locked(watcher):
            dependencies = {await self._parts.dependency_on(identifier) for identifier in watched}
            await self._watches.depend_only(watcher, dependencies)

    async def remove_watcher(self, watcher: ObjectIdentifier) -> None:
        """End all watches of *watcher*, and cancel its retry; it need not watch anything.

        Raises `InvalidInputError` and `QueryBatchInProgressError`.
        """
        queue = self._check(watcher)
        async with self._locked(watcher):
            self._watches.keep_only(watcher, ())
            queue.forget(watcher)

    def get_watch_count(self) -> int:
        """Return the number of watches; 0 before the start and after the end."""
        return len(self._watches)

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource of a kind; `ObjectCacheOptions` sets how long it is cached.

        Raises `NoVersionedResourceError` if the kind does not exist.
        """
        self._started()
        return await self._resources.gvk_to_gvr(gvk)

    # ---- query batches

    async def start_query_batch(self, watcher: ObjectIdentifier) -> None:
        """Begin a query batch: until its end, only reads change the watches of *watcher*.

        Raises `QueryBatchInProgressError` if the watcher has a batch, and `CacheDisabledError`
        without `enable_cache`.
        """
        self._check(watcher)
        self._check_cache()
        async with self._locked(watcher):
            self._batches.start(watcher)

    async def end_query_batch(self, watcher: ObjectIdentifier) -> None:
        """End the batch: end the watches of *watcher* on all objects that the batch did not read.

        Raises `QueryBatchNotStartedError` if no batch was started, and `CacheDisabledError`
        without `enable_cache`.
        """
        self._check(watcher)
        self._check_cache()
        self._batches.end(watcher)

    @asynccontextmanager
    async def query_batch(self, watcher: ObjectIdentifier) -> AsyncIterator[None]:
        """Run the context within a query batch.

        If the context raises, it may not have done all its reads; then no watch ends.
        """
        await self.start_query_batch(watcher)
        try:
            yield
        except BaseException:
            if watcher in self._batches:
                self._batches.abandon(watcher)
            raise
        await self.end_query_batch(watcher)

    async def get(
        self, watcher: ObjectIdentifier, gvk: GroupVersionKind, namespace: str, name: str
    ) -> Document | None:
        """Watch the object for *watcher*, and return a copy of it; None if it does not exist.

        The first read of an object waits for the server; later reads return its cached state.
        Raises `QueryBatchNotStartedError` outside a query batch, `CacheDisabledError`, the errors
        of `add_watcher`, and `InvalidObjectError` if the object is not a document.
        """
        return object_from(await self._read(watcher, named(gvk, namespace, name)))

    async def list(
        self,
        watcher: ObjectIdentifier,
        gvk: GroupVersionKind,
        namespace: str,
        selector: Selector = _EVERYTHING,
    ) -> Objects:
        """Watch the selected objects for *watcher*, and return them in the order of their keys.

        An empty namespace selects all namespaces. Objects that are not documents are left out.
        Otherwise this is like `get`.
        """
        return objects_from(await self._read(watcher, selected(gvk, namespace, selector)))

    def get_from_cache(self, gvk: GroupVersionKind, namespace: str, name: str) -> Document | None:
        """Return the object from the cache of its watch; None if it does not exist.

        Raises `NoCacheEntryError` if no watcher watches this object, and `CacheDisabledError`.
        """
        return object_from(self._cached(named(gvk, namespace, name)))

    def list_from_cache(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = _EVERYTHING
    ) -> Objects:
        """Return the selected objects from the cache of their watch.

        Raises `NoCacheEntryError` if no watcher watches this selection, and `CacheDisabledError`.
        """
        return objects_from(self._cached(selected(gvk, namespace, selector)))

    def list_watched_from_cache(self, watcher: ObjectIdentifier) -> Objects:
        """Return every object that *watcher* watches, each once.

        Raises `NoCacheEntryError` if it watches nothing, and `CacheDisabledError`.
        """
        self._check(watcher)
        self._check_cache()
        dependencies = sorted(self._watches.dependencies_of(watcher), key=str)
        watches = [self._watches.find(dependency) for dependency in dependencies]
        if not watches:
            raise NoCacheEntryError(f"{watcher} watches nothing")
        return objects_from(*(watch for watch in watches if watch is not None))

    # ---- syncs

    def _enqueue(self, watcher: ObjectIdentifier, cause: Cause) -> None:
        initial = cause is Cause.FOUND
        if self._running is None or (initial and self._options.disable_initial_reconcile):
            return
        priority = Priority.RESYNC if initial else Priority.SECONDARY
        self._running.queue.offer(watcher, priority=priority)

    async def _sync(self, watcher: ObjectIdentifier) -> float | None:
        with sync_span(DYNAMIC, log_context):
            try:
                after_s = await self._call(watcher)
            except Exception as error:
                self._failures.failed(watcher, "reconciliation failed", error, watcher=str(watcher))
                raise
            self._failures.succeeded(watcher)
            return after_s

    async def _call(self, watcher: ObjectIdentifier) -> float | None:
        return await self._calls.delay(watcher, self._reconcile)

    # ---- checks

    def _started(self) -> WorkQueue[ObjectIdentifier]:
        if self._running is None or not self.started.is_set():
            raise NotStartedError("the dynamic watcher must be started to do that")
        return self._running.queue

    def _check(self, watcher: ObjectIdentifier) -> WorkQueue[ObjectIdentifier]:
        queue = self._started()
        watcher.validate()
        if not watcher.name:
            raise InvalidInputError(f"a watcher is one object and needs a name: {watcher}")
        return queue

    def _check_cache(self) -> None:
        self._started()
        if not self._options.enable_cache:
            raise CacheDisabledError("the cache is disabled: set the option enable_cache")

    @asynccontextmanager
    async def _locked(self, watcher: ObjectIdentifier) -> AsyncIterator[None]:
        """Lock the watches of *watcher*; raises `QueryBatchInProgressError` during a batch."""
        lock = self._locks.get(watcher)
        if lock is None:
            lock = self._locks[watcher] = asyncio.Lock()
        async with lock:
            if watcher in self._batches:
                raise QueryBatchInProgressError(
                    f"the query batch of {watcher} is in progress: end it first"
                )
            yield

    async def _read(
        self, watcher: ObjectIdentifier, identifier: ObjectIdentifier
    ) -> DependencyWatch[ObjectIdentifier]:
        self._check(watcher)
        self._check_cache()
        return await self._batches.read(watcher, await self._parts.dependency_on(identifier))

    def _cached(self, identifier: ObjectIdentifier) -> DependencyWatch[ObjectIdentifier]:
        self._check_cache()
        watch = self._watches.find(self._parts.cached_dependency_on(identifier))
        if watch is None:
            raise NoCacheEntryError(f"no watcher watches {identifier}")
        return watch

    async def _begin(self) -> None:
        self.started.set()
