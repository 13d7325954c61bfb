"""Runs informers, and calls the watchers of their resource kinds with each change.

An informer adds a change to the queue of its object. A worker calls every watcher of the resource
kind with the change, in the order in which the watchers were added. If a watcher fails, the retry
policy decides when it is called again, and the dequeue policy whether a newer change replaces the
retry.

Seed: grafana-app-sdk operator v0.9.10.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from natsctl.core.backends import Backends
from natsctl.core.explain import Explanation, Status, explanation_of, status_of
from natsctl.core.host import Host
from natsctl.core.hosted import Hosted
from natsctl.core.informer import Informer
from natsctl.core.options import POLICY, SECONDS, SECONDS_OR_ZERO, WORKERS, check_options
from natsctl.core.recording.document import Delivery
from natsctl.core.retry import RetryPolicy
from natsctl.core.status import Measures, health_of, measures_of
from natsctl.core.sync import blocking
from natsctl.core.table import Invalid
from natsctl.core.tree import Beyond, Branch, tree
from natsctl.core.workqueue import Priority, WorkQueue
from natsctl.model.kinds import Kind
from natsctl.model.store import ManifestStores, Store, Stores
from natsctl.watchers.deliveries import Deliveries
from natsctl.watchers.failed_calls import Policies
from natsctl.watchers.merged_changes import ObjectChange
from natsctl.watchers.retries import (
    DEFAULT_RETRY_POLICY,
    RetryDequeuePolicy,
    opinionated_retry_dequeue_policy,
)
from natsctl.watchers.sources import Labels, Source
from natsctl.watchers.subscriptions import ObjectListener, ResourceKinds, resync, resync_all
from natsctl.watchers.watcher import ResourceWatcher

_OPTIONS = {
    "retry_policy": POLICY,
    "workers": WORKERS,
    "timeout_s": SECONDS,
    "stop_timeout_s": SECONDS_OR_ZERO,
}


class InformerController(Hosted):
    """Calls watchers with every change of the objects of their resource kinds, in order.

    *Guarantees.* Every watcher of a resource kind gets each change, in the order in which you added
    the watchers. One worker at a time handles an object. If a watcher fails, no other watcher and
    no other object waits for it. A retry gets the newest state of the object: if an `add` failed
    and the object changed, the retry is an `add` of the changed object. Up to
    100,000 waiting changes are kept one by one; above that, changes of the same object are merged.

    If several processes share the keys, one process calls the watchers for an object. A process
    that gains an object calls them as at a start: existing objects are added.

    To run a controller with `natsctl run`, subclass this class, and add informers and watchers in
    `__init__`.

    Args:
        name: the name in logs and for the operator; by default the class's name in lower case.
        error_handler: a function that is called with the error of every failed call and of every
            invalid object, for logs and metrics.
        retry_policy: decides from the error and the number of failures in a row whether a call is
            retried; `Stop` ends the controller with that error.
        retry_dequeue_policy: decides whether a new change replaces a waiting retry; with None,
            every change does. A replaced retry is never made.
        workers: how many objects of one resource kind are handled at once.
        timeout_s: a call to a watcher that takes longer fails.
        stop_timeout_s: how long a call may take to end after `stop`.
        nats: the stores of kinds that are declared with `kv`, see `natsctl.connect`.
        kube: the stores of kinds that are declared with `kube`, see `natsctl.connect_kube`.

    Seed: grafana-app-sdk operator v0.9.10, `InformerController`.
    """

    name: str = ""
    surface = "watchers"

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await self.blocking(function, *args)`."""

    def __init__(
        self,
        *,
        name: str = "",
        error_handler: Callable[[Exception], None] | None = None,
        retry_policy: RetryPolicy = DEFAULT_RETRY_POLICY,
        retry_dequeue_policy: RetryDequeuePolicy | None = opinionated_retry_dequeue_policy,
        workers: int = 4,
        timeout_s: float = 60.0,
        stop_timeout_s: float = 30.0,
        nats: Stores | None = None,
        kube: ManifestStores | None = None,
    ) -> None:
        self.name = name or self.name or type(self).__name__.lower()
        options = {"retry_policy": retry_policy, "workers": workers, "timeout_s": timeout_s}
        check_options(self.name, _OPTIONS, {**options, "stop_timeout_s": stop_timeout_s})
        self.workers = workers
        self._error_handler = error_handler
        self._timeout_s = timeout_s
        self._backends = Backends(nats=nats, kube=kube)
        host = Host(
            self.name,
            self._queues,
            start=self.start,
            clean=self.clean,
            stop_timeout_s=stop_timeout_s,
        )
        policies = Policies(error_handler, retry_policy, retry_dequeue_policy)
        self._resource_kinds = ResourceKinds(self.name, policies, host.history, host.pausing)
        host.pausing.report_to(host.history.event, holds=self.holds)
        super().__init__(host)

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        """Set where objects are stored; must be called before `run`."""
        self._backends.use(nats=nats, kube=kube)

    def add_informer(
        self, kind: Kind[Any], resource_kind: str | None = None, *, labels: Labels | None = None
    ) -> None:
        """Call the watchers of *resource_kind* with the changes of these objects.

        A resource kind may have several informers: parts of a kind by namespace (`kube(...,
        namespace=)`), by keys (`kv(..., keys=)`) or by labels. An object that moves from one part
        to another is added there.

        Args:
            kind: the kind to watch.
            resource_kind: by default the kind's name, `Type.bucket` or `Kind.group`.
            labels: a label selector, as `kubectl -l` takes it, or the labels of the objects; other
                objects are ignored.

        Raises `InformerAlreadyAddedError` if the resource kind has an informer for this part, and
        `UsageError` while the controller runs.
        """
        self._resource_kinds.add_source(Source(kind, labels), resource_kind or kind.name)

    def add_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Call the watcher with changes of this resource kind, after the watchers added before.

        A watcher that is added while the controller runs receives every existing object. Raises
        `UsageError` if *watcher* is not a watcher, if the resource kind is empty or, while the
        controller runs, has no informer, and if another of its watchers has the same finalizer.
        """
        self._resource_kinds.add_watcher(watcher, resource_kind)

    def remove_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Remove the watcher and its retries; it need not have been added."""
        self._resource_kinds.remove_watcher(watcher, resource_kind)

    def remove_all_watchers_for_resource(self, resource_kind: str | Kind[Any]) -> None:
        """Remove every watcher of this resource kind, if it has any."""
        self._resource_kinds.remove_all_watchers(resource_kind)

    async def start(self) -> None:
        """Prepare; called after every cache is synced and before the first call to a watcher."""

    async def clean(self) -> None:
        """Release resources; called after the last call to a watcher."""

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the store of a kind, for other objects that watchers read and write.

        Raises `UsageError` if the controller has no connection to its system.
        """
        return await self._backends.open(kind)

    async def run(self) -> None:
        """Call watchers until `stop`; returns when the running calls have ended.

        Raises the error that prevents the start, and the error for which a policy returned `Stop`.
        """
        self._resource_kinds.check()
        async with self.opened():
            await self._host.run(*(self._notify(*route) for route in self._resource_kinds.routes()))
        for deliveries in self._resource_kinds.deliveries.values():
            if deliveries.failure is not None:
                raise deliveries.failure

    def check_watcher(self, delivery: Delivery) -> None:
        """Raise `UsageError` if the delivery's watcher or resource kind does not exist."""
        self._resource_kinds.registration(delivery.resource_kind, delivery.watcher)

    async def deliver(self, key: str, delivery: Delivery) -> None:
        """Call one watcher with one change now, outside of the loops; raises its failure.

        Needs stores that are `opened` and caches that are `complete`. Raises the errors of
        `check_watcher`.
        """
        kind, name = delivery.resource_kind, delivery.watcher
        registration = self._resource_kinds.registration(kind, name)
        source = self._resource_kinds.sources[kind][0]
        store, before, after = source.informer.store, delivery.before, delivery.after
        change = ObjectChange(key, source.kind, store, before, after)
        deliveries = self._resource_kinds.deliveries_of(kind)
        await deliveries.deliver(self.name, registration, change)

    def hold_only(self, keys: Collection[str]) -> None:
        for deliveries, _ in self._resource_kinds.routes():
            deliveries.hold_only(keys)

    def resync(self, *keys: str) -> int:
        """Call the watchers with these objects, or all objects of this process, as at a start.

        If a watcher failed on an object, its retry is made at once instead. Returns the number of
        objects. All objects follow after more urgent ones, a few at a time.
        """
        routes = self._resource_kinds.routes()
        if not keys:
            return sum(resync_all(deliveries, sources) for deliveries, sources in routes)
        resynced = set[str]()
        for deliveries, sources in routes:
            for key in filter(deliveries.holds, keys):
                resync(deliveries, sources, key, priority=Priority.USER)
                resynced.add(key)
        return len(resynced)

    def explain(self, key: str) -> Explanation:
        """See `Hosted.explain`; an object of several resource kinds is explained for the first.

        The first one is that with the object in its queue. The last syncs are the calls to all
        watchers.
        """
        routes = self._resource_kinds.routes()
        queued = (
            deliveries
            for deliveries, _ in routes
            if deliveries.queue.work(key) is not None or deliveries.failed(key)
        )
        deliveries = next(queued, routes[0][0])
        cache = self._informer_of(key).cache
        explanation = explanation_of(self._host, key, cache, deliveries.queue)
        return msgspec.structs.replace(explanation, failures=deliveries.failed(key))

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """See `Hosted.tree`; things that watchers made are *beyond* its store."""
        return tree(key, self._informer_of(key), beyond=beyond)

    def status(self) -> Status:
        """See `Hosted.status`; the syncs are the calls to watchers."""
        routes = self._resource_kinds.routes()
        ages_s = [deliveries.oldest_unanswered_s for deliveries, _ in routes]
        return msgspec.structs.replace(
            status_of(
                self._host,
                self.holds,
                len,
                errors=self._errors(),
                oldest_s=max((age_s for age_s in ages_s if age_s is not None), default=None),
            ),
            keys=sum(
                deliveries.count(source.informer.cache.keys())
                for deliveries, sources in routes
                for source in sources
            ),
            unanswered=sum(deliveries.unanswered for deliveries, _ in routes),
        )

    def _errors(self) -> dict[str, str]:
        """Return the error of each key with a call that is to be retried."""
        return {
            key: error
            for deliveries, _ in self._resource_kinds.routes()
            for key, error in deliveries.failures().items()
        }

    def _informer_of(self, key: str) -> Informer[Any]:
        """Return the first informer that has the object, or the first informer."""
        informers = [source.informer for source in self._resource_kinds.every_source()]
        return next((informer for informer in informers if key in informer.cache), informers[0])

    def holds(self, key: str) -> bool:
        return all(deliveries.holds(key) for deliveries in self._resource_kinds.deliveries.values())

    @property
    def idle(self) -> bool:
        """See `Hosted.idle`; also, no object waits for another call."""
        return super().idle and all(queue.idle for queue in self._queues().values())

    @property
    def kinds(self) -> list[Kind[Any]]:
        """The kinds that the controller watches; they determine which systems it needs."""
        return [source.kind for source in self._resource_kinds.every_source()]

    @property
    def held_kinds(self) -> list[Kind[Any]]:
        """The kinds that watchers give a finalizer, which requires permission to update them."""
        return self._resource_kinds.held_kinds()

    @property
    def failing(self) -> dict[str, dict[str, str]]:
        """The errors of the objects whose calls are to be retried, by resource kind and key."""
        return {
            name: deliveries.failures()
            for name, deliveries in self._resource_kinds.deliveries.items()
        }

    def measures(self) -> Measures:
        """Return the current measures, for metrics and health checks.

        There is a queue for each resource kind. Calls to watchers are not counted as syncs.
        """
        health = health_of(self._host, self.holds, errors=self._errors())
        return measures_of(self._host, health, workers=self.workers)

    def _queues(self) -> dict[str, WorkQueue[str]]:
        deliveries = self._resource_kinds.deliveries
        return {name: delivery.queue for name, delivery in deliveries.items()}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open every store and keep the caches equal to them, without calling a watcher."""
        for deliveries, sources in self._resource_kinds.routes():
            for source in sources:
                source.opened(
                    await self.open(source.kind), self._invalid, deliveries.hasten_retries
                )
        self._resource_kinds.opened = True
        informers = self._resource_kinds.informers()
        records = self._backends.nats
        async with AsyncExitStack() as stack:
            if records is not None:
                recorder = await stack.enter_async_context(records.recorder(self.name))
                self._host.history.recorders = (recorder,)
            watching = self._host.watching(informers, tuple(informers.values()), records=records)
            await stack.enter_async_context(watching)
            yield

    async def _notify(self, deliveries: Deliveries, sources: Sequence[Source]) -> None:
        loop = deliveries.loop(self.name, timeout_s=self._timeout_s)
        loop.paused.follow([source.informer for source in sources])
        for source in sources:
            loop.watch(source.informer, partial(self._resource_kinds.changed, deliveries, source))
        await loop.run(self._host.begin, ObjectListener(deliveries, sources), workers=self.workers)

    def _invalid(self, invalid: Invalid) -> None:
        if self._error_handler is not None:
            self._error_handler(invalid.error)
