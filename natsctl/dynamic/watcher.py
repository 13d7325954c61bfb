"""Watchers that come and go, what each of them watches, and whom a change concerns."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import msgspec

from natsctl.core.dependencies.batches import Batches
from natsctl.core.dependencies.watches import Cause, DependencyWatch, DependencyWatches
from natsctl.core.queue.workqueue import Priority, Workqueue
from natsctl.core.sync.calls import Calls, blocking
from natsctl.core.sync.failures import FailureLog
from natsctl.core.sync.host import Host
from natsctl.core.sync.loop import SyncLoop
from natsctl.dynamic.cache import Objects, named, selected
from natsctl.dynamic.identifier import GroupVersionKind, ObjectIdentifier
from natsctl.dynamic.options import DynamicOptions, Reconcile, Reconciler, reconcile_of
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

NAME = "dynamic"  # in spans

_EVERYTHING = Selector()


class _Running(msgspec.Struct, frozen=True):
    """The parts that exist from a start to its end."""

    host: Host
    queue: Workqueue[ObjectIdentifier]


class DynamicWatcher:
    """Watches single objects and selections of them, for watchers that come and go.

    *Guarantees.* There is one watch for each distinct thing that is watched, for as long as any
    watcher watches it. Every change after a watcher began to watch is followed by a call of the
    reconciler for that watcher; changes that come faster are one call, and each watcher is with
    one worker at a time. A watch that breaks goes on by itself, and tells what changed meanwhile.
    One that cannot be had any more, because a permission or the kind is gone, is removed from all
    its watchers, and the reconciler is called for each: reading the object again shows the error.

    Args:
        reconciler: what to call: a `Reconciler`, or a plain async function.
        nats: where buckets are, as `natsctl.connect` gives it.
        kube: the cluster, as `natsctl.connect_kube` gives it.
        options: how it works.

    Whatever changes or reads what is watched raises `NotStartedError` before it is `started`, and
    after its end.

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
        self._reconcile = reconcile_of(reconciler)
        self._resources = Resources(kube, self._options.object_cache_options)
        self._parts = Parts(
            self._resources, nats=nats, kube=kube, metadata_only=not self._options.enable_cache
        )
        self._watches = DependencyWatches[ObjectIdentifier](
            self._parts.open, self._woken, list_s=self._options.list_timeout_s
        )
        self._batches = Batches(self._watches)
        self._turns: WeakValueDictionary[ObjectIdentifier, asyncio.Lock] = WeakValueDictionary()
        self._running: _Running | None = None
        self._calls = Calls(
            NAME,
            "the reconciler",
            limit_s=self._options.reconcile_timeout_s,
            what="reconcile",
            setting="reconcile_timeout_s",
        )
        self._failures = FailureLog(log, logging.WARNING)

    # ---- start and end

    async def start(self) -> None:
        """Work until `stop`, or until cancelled; nothing is watched any more afterwards.

        It can be started again then. Raises `UsageError` while it is at work.
        """
        if self._running is not None:
            raise UsageError("the dynamic watcher was started before, and has not ended")
        options = self._options
        queue = Workqueue(limiter=options.rate_limiter, bucket=options.overall_rate)
        host = Host(
            NAME, lambda: {NAME: queue}, start=self._begin, stop_timeout_s=options.stop_timeout_s
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
        """Begin no more calls of the reconciler; `start` returns when those under way are done."""
        if self._running is not None:
            self._running.host.stop()

    # ---- what is watched

    async def add_watcher(self, watcher: ObjectIdentifier, watched: ObjectIdentifier) -> None:
        """Have *watcher* watch this as well, once it is listed.

        Raises `InvalidInputError`; `QueryBatchInProgressError`; `NoVersionedResourceError` for a
        kind that does not exist; the `StoreError` that says why it cannot be watched;
        `WatchStoppingError` where the dynamic watcher stopped meanwhile.
        """
        self._check(watcher)
        async with self._turn(watcher):
            await self._watches.depend(watcher, await self._parts.of(watched))

    async def add_or_update_watcher(
        self, watcher: ObjectIdentifier, *watched: ObjectIdentifier
    ) -> None:
        """Have *watcher* watch these, at least one, and nothing else.

        All or nothing: where one of them cannot be watched, it watches what it did before. Raises
        what `add_watcher` raises.
        """
        self._check(watcher)
        if not watched:
            raise InvalidInputError("at least one watched object must be given")
        async with self._turn(watcher):
            wanted = {await self._parts.of(identifier) for identifier in watched}
            await self._watches.depend_only(watcher, wanted)

    async def remove_watcher(self, watcher: ObjectIdentifier) -> None:
        """Have *watcher* watch nothing, and be retried no more; one that watches nothing is fine.

        Raises `InvalidInputError` and `QueryBatchInProgressError`.
        """
        queue = self._check(watcher)
        async with self._turn(watcher):
            self._watches.keep_only(watcher, ())
            queue.forget(watcher)

    def get_watch_count(self) -> int:
        """Return how many watches there are; 0 before the start and after the end."""
        return len(self._watches)

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource that a kind is; see `ObjectCacheOptions` for how long it is believed.

        Raises `NoVersionedResourceError` where there is no such kind.
        """
        self._started()
        return await self._resources.gvk_to_gvr(gvk)

    # ---- query batches

    async def start_query_batch(self, watcher: ObjectIdentifier) -> None:
        """Begin to note what is read for *watcher*; until the end, only that changes its watches.

        Raises `QueryBatchInProgressError` where the last one has not ended, `CacheDisabledError`
        without `enable_cache`.
        """
        self._check(watcher)
        self._check_cache()
        async with self._turn(watcher):
            self._batches.start(watcher)

    async def end_query_batch(self, watcher: ObjectIdentifier) -> None:
        """End the batch: *watcher* stops watching everything that the batch did not read.

        Raises `QueryBatchNotStartedError` if no batch was started, and `CacheDisabledError`
        without `enable_cache`.
        """
        self._check(watcher)
        self._check_cache()
        self._batches.end(watcher)

    @asynccontextmanager
    async def query_batch(self, watcher: ObjectIdentifier) -> AsyncIterator[None]:
        """Do what is in the context within a query batch.

        Where it fails it may not have come to all its reads: then nothing is let go.
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
        """Have *watcher* watch the object, and return it; None where it does not exist.

        The first read of anybody waits for the server, later ones return what the watch has shown,
        at once. What is returned is a copy. Raises `QueryBatchNotStartedError` outside a query
        batch, `CacheDisabledError`, what `add_watcher` raises, and `InvalidObjectError` where the
        object is no document.
        """
        return object_from(await self._read(watcher, named(gvk, namespace, name)))

    async def list(
        self,
        watcher: ObjectIdentifier,
        gvk: GroupVersionKind,
        namespace: str,
        selector: Selector = _EVERYTHING,
    ) -> Objects:
        """Have *watcher* watch the objects that the selector means, and return them.

        Those of the namespace, or all where it is empty, in the order of their keys; what is no
        document is left out. Otherwise as `get`.
        """
        return objects_from(await self._read(watcher, selected(gvk, namespace, selector)))

    def get_from_cache(self, gvk: GroupVersionKind, namespace: str, name: str) -> Document | None:
        """Return the object, if anybody watches exactly it; None where it does not exist.

        Raises `NoCacheEntryError` where nobody does, and `CacheDisabledError`.
        """
        return object_from(self._cached(named(gvk, namespace, name)))

    def list_from_cache(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = _EVERYTHING
    ) -> Objects:
        """Return the objects that the selector means, if anybody watches exactly these.

        Raises `NoCacheEntryError` where nobody does, and `CacheDisabledError`.
        """
        return objects_from(self._cached(selected(gvk, namespace, selector)))

    def list_watched_from_cache(self, watcher: ObjectIdentifier) -> Objects:
        """Return every object that *watcher* watches, each once.

        Raises `NoCacheEntryError` where it watches nothing, and `CacheDisabledError`.
        """
        self._check(watcher)
        self._check_cache()
        watches = [self._watches.find(on) for on in sorted(self._watches.of(watcher), key=str)]
        if not watches:
            raise NoCacheEntryError(f"{watcher} watches nothing")
        return objects_from(*(watch for watch in watches if watch is not None))

    # ---- what follows a change

    def _woken(self, watcher: ObjectIdentifier, cause: Cause) -> None:
        initial = cause is Cause.FOUND
        if self._running is None or (initial and self._options.disable_initial_reconcile):
            return
        priority = Priority.RESYNC if initial else Priority.SECONDARY
        self._running.queue.add(watcher, priority=priority)

    async def _sync(self, watcher: ObjectIdentifier) -> float | None:
        with sync_span(NAME, log_context):
            try:
                after = await self._calls.delay(watcher, self._reconcile, watcher)
            except Exception as error:
                self._failures.failed(watcher, "reconciliation failed", error, watcher=str(watcher))
                raise
            self._failures.succeeded(watcher)
            return after

    # ---- who may do what, and when

    def _started(self) -> Workqueue[ObjectIdentifier]:
        if self._running is None or not self.started.is_set():
            raise NotStartedError("the dynamic watcher must be started to do that")
        return self._running.queue

    def _check(self, watcher: ObjectIdentifier) -> Workqueue[ObjectIdentifier]:
        queue = self._started()
        watcher.validate()
        if not watcher.name:
            raise InvalidInputError(f"a watcher is one object and needs a name: {watcher}")
        return queue

    def _check_cache(self) -> None:
        self._started()
        if not self._options.enable_cache:
            raise CacheDisabledError("no objects are kept: set the option enable_cache")

    @asynccontextmanager
    async def _turn(self, watcher: ObjectIdentifier) -> AsyncIterator[None]:
        """Let nobody else change what *watcher* watches; a query batch does not either."""
        turn = self._turns.get(watcher)
        if turn is None:
            turn = self._turns[watcher] = asyncio.Lock()
        async with turn:
            if watcher in self._batches:
                raise QueryBatchInProgressError(
                    f"the query batch of {watcher} is in progress, and says what it watches"
                )
            yield

    async def _read(
        self, watcher: ObjectIdentifier, identifier: ObjectIdentifier
    ) -> DependencyWatch[ObjectIdentifier]:
        self._check(watcher)
        self._check_cache()
        return await self._batches.read(watcher, await self._parts.of(identifier))

    def _cached(self, identifier: ObjectIdentifier) -> DependencyWatch[ObjectIdentifier]:
        self._check_cache()
        watch = self._watches.find(self._parts.known(identifier))
        if watch is None:
            raise NoCacheEntryError(f"nobody watches {identifier}")
        return watch

    async def _begin(self) -> None:
        self.started.set()
