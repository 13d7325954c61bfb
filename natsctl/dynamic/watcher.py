"""Calls a reconciler for watchers when the objects that they watch change."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol, Self, runtime_checkable
from weakref import WeakValueDictionary

import msgspec

from natsctl.core.backends import Backends
from natsctl.core.dependencies import (
    Dependency,
    DependencyWatch,
    DependencyWatches,
    one,
    those,
)
from natsctl.core.history import HandlerFailures
from natsctl.core.host import Host
from natsctl.core.loop import SyncLoop
from natsctl.core.options import SECONDS, SECONDS_OR_ZERO, WORKERS, check_options
from natsctl.core.retry import ExponentialLimiter, TokenBucket
from natsctl.core.sync import Calls, blocking
from natsctl.core.tape import place_of
from natsctl.core.workqueue import Priority, WorkQueue
from natsctl.dynamic.objects import (
    EVERYTHING,
    GroupVersionKind,
    ObjectCacheOptions,
    ObjectIdentifier,
    Objects,
    Resources,
    ScopedGVR,
    kv_kind,
    named,
    selected,
)
from natsctl.errors import (
    CacheDisabledError,
    InvalidInputError,
    InvalidKeyError,
    InvalidObjectError,
    NoCacheEntryError,
    NotStartedError,
    QueryBatchInProgressError,
    QueryBatchNotStartedError,
    UsageError,
)
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import KvKind
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.selectors import Selector
from natsctl.model.store import Cluster, Stored, Stores
from natsctl.telemetry.logger import get_logger, log_context
from natsctl.telemetry.tracing import sync_span

log = get_logger(__name__)

DYNAMIC = "dynamic"

Reconcile = Callable[[ObjectIdentifier], Awaitable[float | None]]
"""Reconciles a watcher after a change of an object that it watches; see `Reconciler`."""


@runtime_checkable
class Reconciler(Protocol):
    """Reconciles watchers whose watched objects were created, changed or deleted."""

    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Reconcile *watcher*; return the seconds until the next call, or None.

        The call follows the start of a watch of an existing object, and every creation, change and
        deletion of a watched object. One call may follow several changes. If the call raises, it is
        retried with backoff.
        """
        ...


_OPTIONS = {
    "workers": WORKERS,
    "reconcile_timeout_s": SECONDS,
    "list_timeout_s": SECONDS,
    "stop_timeout_s": SECONDS_OR_ZERO,
}


class DynamicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a `DynamicWatcher`.

    Attributes:
        rate_limiter: the backoff of a failing watcher; by default 5 ms, doubling to 1000 s.
        overall_rate: limits the rate of all retries together; by default unlimited. The seed's
            limit is `TokenBucket(rate_per_s=10, burst=100)`.
        enable_cache: keep watched objects in memory, so that they can be read. If False, only
            their metadata is watched, if the system supports that.
        disable_initial_reconcile: don't call the reconciler for objects that exist when their
            watch starts.
        object_cache_options: the time to live of conversions of kinds to resources.
        workers: the number of watchers that are reconciled concurrently.
        reconcile_timeout_s: seconds until a call of the reconciler fails.
        list_timeout_s: seconds that a watch has to list its objects before it fails.
        stop_timeout_s: seconds that running calls may take after `stop`.
    """

    rate_limiter: ExponentialLimiter[ObjectIdentifier] | None = None
    overall_rate: TokenBucket | None = None
    enable_cache: bool = False
    disable_initial_reconcile: bool = False
    object_cache_options: ObjectCacheOptions = ObjectCacheOptions()
    workers: int = 1
    reconcile_timeout_s: float = 60.0
    list_timeout_s: float = 30.0
    stop_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise `UsageError` for a number that is out of range."""
        values = {name: getattr(self, name) for name in _OPTIONS}
        check_options("DynamicOptions", _OPTIONS, values)


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
        self._watches = DependencyWatches[ObjectIdentifier](
            Backends(nats=nats, kube=kube).open,
            self._enqueue,
            self._found,
            list_s=self._options.list_timeout_s,
        )
        self._batches: dict[ObjectIdentifier, set[Dependency[Any]]] = {}  # what each has read
        self._locks: WeakValueDictionary[ObjectIdentifier, asyncio.Lock] = WeakValueDictionary()
        self.host: Host | None = None  # from a start to its end
        self._queue: WorkQueue[ObjectIdentifier]
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
        if self.host is not None:
            raise UsageError("the dynamic watcher runs already: stop it before another start")
        options = self._options
        queue = WorkQueue(limiter=options.rate_limiter, bucket=options.overall_rate)

        async def begin() -> None:
            self.started.set()

        self._queue, self._batches = queue, {}
        self.host = host = Host(
            DYNAMIC,
            lambda: {DYNAMIC: queue},
            start=begin,
            stop_timeout_s=options.stop_timeout_s,
        )
        try:
            async with self._watches.running():
                loop = SyncLoop(self._sync, host, queue)
                await host.run(loop.run(workers=options.workers))
        finally:
            self.started.clear()
            self.host = None

    def stop(self) -> None:
        """Begin no more calls of the reconciler; `start` returns when running calls have ended."""
        if self.host is not None:
            self.host.stop()

    # ---- watchers

    async def add_watcher(self, watcher: ObjectIdentifier, watched: ObjectIdentifier) -> None:
        """Add *watched* to the objects that *watcher* watches; returns once it is listed.

        Raises `InvalidInputError`, `QueryBatchInProgressError`, `NoVersionedResourceError` if the
        kind doesn't exist, a `StoreError` if the object can't be watched, and
        `WatchStoppingError` if the dynamic watcher is stopped.
        """
        self._check(watcher)
        async with self._locked(watcher):
            await self._watches.depend(watcher, await self._dependency_on(watched))

    async def add_or_update_watcher(
        self, watcher: ObjectIdentifier, *watched: ObjectIdentifier
    ) -> None:
        """Replace the objects that *watcher* watches by *watched*, at least one.

        If one of them can't be watched, nothing changes. Raises the errors of `add_watcher`.
        """
        self._check(watcher)
        if not watched:
            raise InvalidInputError("at least one watched object must be given")
        async with self._locked(watcher):
            dependencies = {await self._dependency_on(identifier) for identifier in watched}
            await self._watches.depend_only(watcher, dependencies)

    async def remove_watcher(self, watcher: ObjectIdentifier) -> None:
        """End all watches of *watcher*, and cancel its retry; it may have none.

        Raises `InvalidInputError` and `QueryBatchInProgressError`.
        """
        self._check(watcher)
        async with self._locked(watcher):
            self._watches.keep_only(watcher, ())
            self._queue.forget(watcher)

    def get_watch_count(self) -> int:
        """Return the number of watches; 0 before the start and after the end."""
        return len(self._watches)

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource of a kind; `ObjectCacheOptions` sets how long it is cached.

        Raises `NoVersionedResourceError` if the kind doesn't exist.
        """
        self._started()
        return await self._resources.gvk_to_gvr(gvk)

    # ---- query batches

    async def start_query_batch(self, watcher: ObjectIdentifier) -> None:
        """Begin a query batch: until its end, only reads change the watches of *watcher*.

        Raises `QueryBatchInProgressError` if the watcher has a batch, and `CacheDisabledError`
        without `enable_cache`.
        """
        self._check(watcher, cache=True)
        async with self._locked(watcher):
            self._batches[watcher] = set()

    async def end_query_batch(self, watcher: ObjectIdentifier) -> None:
        """End the batch, and the watches of *watcher* on all objects that the batch didn't read.

        Raises `QueryBatchNotStartedError` if no batch was started, and `CacheDisabledError`
        without `enable_cache`.
        """
        self._check(watcher, cache=True)
        read = self._batches.pop(watcher, None)
        if read is None:
            raise QueryBatchNotStartedError(f"no query batch of {watcher} was started")
        self._watches.keep_only(watcher, read)

    @asynccontextmanager
    async def query_batch(self, watcher: ObjectIdentifier) -> AsyncIterator[None]:
        """Run the context within a query batch.

        If the context raises, it may not have done all its reads; then no watch ends.
        """
        await self.start_query_batch(watcher)
        try:
            yield
        except BaseException:
            self._batches.pop(watcher, None)
            raise
        await self.end_query_batch(watcher)

    async def get(
        self, watcher: ObjectIdentifier, gvk: GroupVersionKind, namespace: str, name: str
    ) -> Document | None:
        """Watch the object for *watcher*, and return a copy of it; None if it doesn't exist.

        The first read of an object waits for the server; later reads return its cached state.
        Raises `QueryBatchNotStartedError` outside a query batch, `CacheDisabledError`, the errors
        of `add_watcher`, and `InvalidObjectError` if the object isn't a document.
        """
        return _object_from(await self._read(watcher, named(gvk, namespace, name)))

    async def list(
        self,
        watcher: ObjectIdentifier,
        gvk: GroupVersionKind,
        namespace: str,
        selector: Selector = EVERYTHING,
    ) -> Objects:
        """Watch the selected objects for *watcher*, and return them in the order of their keys.

        An empty namespace selects all namespaces. Objects that aren't documents are left out.
        Otherwise this is like `get`.
        """
        return _objects_from(await self._read(watcher, selected(gvk, namespace, selector)))

    def get_from_cache(self, gvk: GroupVersionKind, namespace: str, name: str) -> Document | None:
        """Return the object from the cache of its watch; None if it doesn't exist.

        Raises `NoCacheEntryError` if no watcher watches this object, and `CacheDisabledError`.
        """
        return _object_from(self._cached(named(gvk, namespace, name)))

    def list_from_cache(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = EVERYTHING
    ) -> Objects:
        """Return the selected objects from the cache of their watch.

        Raises `NoCacheEntryError` if no watcher watches this selection, and `CacheDisabledError`.
        """
        return _objects_from(self._cached(selected(gvk, namespace, selector)))

    def list_watched_from_cache(self, watcher: ObjectIdentifier) -> Objects:
        """Return every object that *watcher* watches, each once.

        Raises `NoCacheEntryError` if it watches nothing, and `CacheDisabledError`.
        """
        self._check(watcher, cache=True)
        dependencies = sorted(self._watches.dependencies_of(watcher), key=str)
        watches = [self._watches.find(dependency) for dependency in dependencies]
        if not watches:
            raise NoCacheEntryError(f"{watcher} watches nothing")
        return _objects_from(*(watch for watch in watches if watch is not None))

    # ---- syncs

    def _enqueue(self, watcher: ObjectIdentifier, priority: Priority = Priority.SECONDARY) -> None:
        if self.host is not None:
            self._queue.offer(watcher, priority=priority)

    def _found(self, watcher: ObjectIdentifier) -> None:
        if not self._options.disable_initial_reconcile:
            self._enqueue(watcher, Priority.RESYNC)

    async def _sync(self, watcher: ObjectIdentifier) -> float | None:
        with sync_span(DYNAMIC, log_context):
            try:
                return await self._calls.delay(watcher, self._reconcile)
            except Exception as error:
                failures = self._queue.failures(watcher) + 1
                self._failures.failed(
                    "reconciliation failed", error, failures, watcher=str(watcher)
                )
                raise

    # ---- checks

    def _started(self) -> None:
        if self.host is None or not self.started.is_set():
            raise NotStartedError("the dynamic watcher must be started to do that")

    def _check(self, watcher: ObjectIdentifier, *, cache: bool = False) -> None:
        self._started()
        if cache:
            self._check_cache()
        watcher.validate()
        if not watcher.name:
            raise InvalidInputError(f"a watcher is one object and needs a name: {watcher}")

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
                text = f"the query batch of {watcher} is in progress: end it first"
                raise QueryBatchInProgressError(text)
            yield

    async def _read(
        self, watcher: ObjectIdentifier, identifier: ObjectIdentifier
    ) -> DependencyWatch[ObjectIdentifier]:
        self._check(watcher, cache=True)
        dependency = await self._dependency_on(identifier)
        if watcher not in self._batches:
            text = f"objects are read for {watcher} within a query batch only: start one"
            raise QueryBatchNotStartedError(text)
        self._batches[watcher].add(dependency)
        return await self._watches.depend(watcher, dependency)

    def _cached(self, identifier: ObjectIdentifier) -> DependencyWatch[ObjectIdentifier]:
        self._check_cache()
        identifier.validate()
        resource = self._resources.cached(identifier.group_version_kind())
        watch = self._watches.find(self._selection(identifier, resource))
        if watch is None:
            raise NoCacheEntryError(f"no watcher watches {identifier}")
        return watch

    # ---- what an identifier selects

    async def _dependency_on(self, identifier: ObjectIdentifier) -> Dependency[Any]:
        identifier.validate()
        resource = await self._resources.gvk_to_gvr(identifier.group_version_kind())
        return self._selection(identifier, resource)

    def _selection(
        self, identifier: ObjectIdentifier, resource: ScopedGVR | None
    ) -> Dependency[Any]:
        gvk, selector = identifier.group_version_kind(), Selector.parse(identifier.selector)
        name, namespace = identifier.name, identifier.namespace
        try:
            if gvk.in_nats:  # any values of an existing bucket
                bucket = KvKind(bytes, bucket=gvk.kind, create=False)
                bucket.name = gvk.kind
                if name:
                    return one(bucket, identifier.key)
                return those(bucket.part(f"{namespace}.>") if namespace else bucket, selector)
            if resource is not None and not resource.namespaced:
                namespace = ""
            elif name and not namespace:
                raise InvalidInputError(f"this kind is namespaced: set a namespace: {identifier}")
            kind = KubeKind(
                gvk.api_version,
                gvk.kind,
                namespace=namespace or None,
                metadata_only=not self._options.enable_cache,
            )
            return one(kind, joined(namespace, name)) if name else those(kind, selector)
        except InvalidKeyError as error:
            raise InvalidInputError(f"{identifier}: {error}") from error


def _object_from(watch: DependencyWatch[Any]) -> Document | None:
    return next((_document(watch, stored) for stored in watch.objects()), None)


def _objects_from(*watches: DependencyWatch[Any]) -> Objects:
    """Return each object of the watches once; skips values that aren't JSON objects."""
    objects: dict[tuple[str, str], Document] = {}
    for watch in watches:
        for stored in watch.objects():
            with suppress(InvalidObjectError):
                place = place_of(watch.dependency.kind)
                objects[place, stored.key] = _document(watch, stored)
    return list(objects.values())


def _document(watch: DependencyWatch[Any], stored: Stored) -> Document:
    """Return a copy of the object; one of a bucket gets kind, name and revision too.

    Raises `InvalidObjectError` if it isn't a JSON object.
    """
    document, kind = documents.parse(stored.value), watch.dependency.kind
    if not isinstance(kind, KvKind):
        return document
    identity = {"name": stored.key, "resourceVersion": str(stored.revision)}
    metadata = {**documents.metadata_of(document), **identity}
    version = kv_kind(kind.bucket).api_version
    return {**document, "apiVersion": version, "kind": kind.bucket, "metadata": metadata}


# ---- a reconciler that forwards watchers to the work queue of another runtime


class GenericEvent(msgspec.Struct, frozen=True):
    """An object that `object` watches was created, changed or deleted."""

    object: ObjectIdentifier


class EventSource:
    """The watchers that a `ControllerRuntimeSourceReconciler` receives, for `async for`.

    Pending events of the same watcher are merged. The iteration ends after `close`.
    """

    def __init__(self) -> None:
        self._pending: dict[ObjectIdentifier, None] = {}
        self._changed = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenericEvent:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        watcher = next(iter(self._pending))
        del self._pending[watcher]
        return GenericEvent(watcher)

    def send(self, watcher: ObjectIdentifier) -> None:
        """Add an event for *watcher*; does nothing after `close`."""
        if not self._closed:
            self._pending[watcher] = None
            self._changed.set()

    def close(self) -> None:
        """End the iteration after the pending events."""
        self._closed = True
        self._changed.set()

    async def feed(self, enqueue: Callable[[str], None]) -> None:
        """Call *enqueue* with the key of each watcher until `close`.

        Example:
            await source.feed(lambda key: runtime.enqueue_key(key, Operation.SECONDARY))
        """
        async for event in self:
            enqueue(event.object.key)


class ControllerRuntimeSourceReconciler:
    """Forwards every watcher to its source; see `controller_runtime_source`."""

    def __init__(self, source: EventSource) -> None:
        self._source = source

    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Forward *watcher*; returns None."""
        self._source.send(watcher)
        return None


def controller_runtime_source() -> tuple[ControllerRuntimeSourceReconciler, EventSource]:
    """Return a reconciler for a `DynamicWatcher`, and the source of the watchers it receives.

    With them, a change of an object on which a primary depends enqueues the primary.

    Example:
        reconciler, source = controller_runtime_source()
        watcher = DynamicWatcher(reconciler, nats=nats)
        ...
        await source.feed(lambda key: runtime.enqueue_key(key, Operation.SECONDARY))

    Seed: stolostron kubernetes-dependency-watches v0.5.2, `NewControllerRuntimeSource`.
    """
    source = EventSource()
    return ControllerRuntimeSourceReconciler(source), source
