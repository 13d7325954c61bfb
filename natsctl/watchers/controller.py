"""InformerController: informers and watchers, coupled by resource kinds.

One change's journey: an informer sees it and puts it into its object's line. A worker tells it to
every watcher of the resource kind, in the order in which they were added. Where one fails, the
retry policy says when that one is told again, and the dequeue policy whether something newer has
made that pointless.

Seed: grafana-app-sdk operator v0.9.10.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from natsctl.core.cache.cache import Invalid
from natsctl.core.insight.explain import Explanation, Status
from natsctl.core.insight.hosted import Hosted
from natsctl.core.insight.measures import Measures, measures_of
from natsctl.core.insight.tree import Beyond, Branch, tree
from natsctl.core.objects.backends import Backends
from natsctl.core.queue.retry import RetryPolicy
from natsctl.core.queue.workqueue import Priority, Workqueue
from natsctl.core.sync.calls import blocking
from natsctl.core.sync.host import Host
from natsctl.core.sync.options import COUNT, POLICY, SECONDS, SECONDS_OR_ZERO, check_options
from natsctl.model.kinds import Kind
from natsctl.model.store import ManifestStores, Store, Stores
from natsctl.watchers.deliveries import Deliveries, Policies
from natsctl.watchers.explain import explain, informer_of, status
from natsctl.watchers.retries import (
    DEFAULT_RETRY_POLICY,
    RetryDequeuePolicy,
    opinionated_retry_dequeue_policy,
)
from natsctl.watchers.sources import Labels, Source
from natsctl.watchers.subscriptions import Arrivals, Coupling
from natsctl.watchers.watcher import ResourceWatcher

_OPTIONS = {
    "retry_policy": POLICY,
    "workers": COUNT,
    "timeout_s": SECONDS,
    "stop_timeout_s": SECONDS_OR_ZERO,
}


class InformerController(Hosted):
    """Tells watchers of everything that happens to objects, in order, until they have taken it.

    *Guarantees.* Each change is told to every watcher of its resource kind, to one after another,
    in the order in which they were added; an object is with one worker at a time. A watcher that
    fails holds up no other watcher and no other object. It never goes back: what is told again is
    what the object is by then, so a failed `add` after which the object changed is an `add` of the
    changed object. Changes that come faster than they are told are kept one by one, up to
    100,000 in all; beyond, those of one object become one.

    Where several processes share the work, an object is told of by one of them. Whoever gets it
    tells of it as at a start: what is there is added.

    Subclass it to have it run by `natsctl run`: add informers and watchers in `__init__`.

    Args:
        name: in logs and for the operator; by default the class's name in lower case.
        error_handler: told of every failure of a watcher, and of every object that is no valid one
            of its kind; for logs and metrics.
        retry_policy: what follows a failure, from the error and the failures in a row; `Stop` ends
            the controller with that error.
        retry_dequeue_policy: whether a new change makes a pending retry pointless; with None, every
            change does. It may be given up for good by that: the change is told, the retry is not.
        workers: how many objects of one resource kind are told of at once.
        timeout_s: a call to a watcher that takes longer fails.
        stop_timeout_s: how long calls under way may go on after `stop`.
        nats: where kinds declared with `kv` are kept, as `natsctl.connect` gives it.
        kube: where kinds declared with `kube` are kept, as `natsctl.connect_kube` gives it.

    Seed: grafana-app-sdk operator v0.9.10, `InformerController`.
    """

    name: str = ""

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
        given = {"retry_policy": retry_policy, "workers": workers, "timeout_s": timeout_s}
        check_options(self.name, _OPTIONS, {**given, "stop_timeout_s": stop_timeout_s})
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
        self._coupling = Coupling(self.name, policies, host.journal)
        super().__init__(host)

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        """Set where objects are stored; must be called before `run`."""
        self._backends.use(nats=nats, kube=kube)

    def add_informer(
        self, kind: Kind[Any], resource_kind: str | None = None, *, labels: Labels | None = None
    ) -> None:
        """Tell the watchers of *resource_kind* of these objects.

        A resource kind may have several informers: parts of a kind by namespace (`kube(...,
        namespace=)`), by keys (`kv(..., keys=)`) or by labels. An object that moves from one to
        another is told as added there.

        Args:
            kind: what to watch.
            resource_kind: by default the kind's name, `Type.bucket` or `Kind.group`.
            labels: only objects that this label selector means: as `kubectl -l` takes it, or the
                labels that they have.

        Raises `InformerAlreadyAddedError` for a part that the resource kind has already, and
        `UsageError` while the controller runs.
        """
        self._coupling.add_source(Source(kind, labels), resource_kind or kind.name)

    def add_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Have the watcher told of objects of this resource kind, after those added before.

        A watcher that is added while the controller runs receives every existing object. Raises
        `UsageError` if *watcher* is no watcher, if the resource kind is empty or, while the
        controller runs, has no informer, and if another watcher there has the same finalizer.
        """
        self._coupling.add_watcher(watcher, resource_kind)

    def remove_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Tell the watcher nothing more, not even what it failed on; one not added is fine."""
        self._coupling.remove_watcher(watcher, resource_kind)

    def remove_all_watchers_for_resource(self, resource_kind: str | Kind[Any]) -> None:
        """Remove every watcher of this resource kind; one that was never added is ignored."""
        self._coupling.remove_all_watchers(resource_kind)

    async def start(self) -> None:
        """Prepare, after every cache is complete and before anything is told."""

    async def clean(self) -> None:
        """Let go of everything, after the last call to a watcher."""

    async def open(self, kind: Kind[Any]) -> Store:
        """Return where objects of a kind are kept: for what watchers read and write elsewhere.

        Raises `UsageError` where its system was not given.
        """
        return await self._backends.open(kind)

    async def run(self) -> None:
        """Notify watchers until `stop`; returns when the calls under way have ended.

        Raises the error that prevents the start, and the error for which a policy returned `Stop`.
        """
        self._coupling.check()
        async with self._open():
            await self._host.run(*(self._notify(*line) for line in self._coupling.lines()))
        for deliveries in self._coupling.deliveries.values():
            if deliveries.failure is not None:
                raise deliveries.failure

    def resync(self, *keys: str) -> int:
        """Notify every watcher of every object of this process, or of these, as at a start.

        A watcher that failed on an object gets at once what it has not taken, instead. Returns the
        number of these objects.
        """
        priority = Priority.USER if keys else Priority.RESYNC
        resynced = set[str]()
        for deliveries, sources in self._coupling.lines():
            cached = (source.informer.cache.keys() for source in sources)
            wanted = keys or sorted({key for found in cached for key in found})
            for key in filter(deliveries.holds, wanted):
                changes = [change for source in sources for change in source.create(key)]
                deliveries.resync(key, changes, priority=priority)
                resynced.add(key)
        return len(resynced)

    def explain(self, key: str) -> Explanation:
        """See `Hosted.explain`; an object of several resource kinds is explained for the first.

        Its last syncs are the calls to all watchers.
        """
        return explain(self.name, key, self._coupling.lines(), self._host.journal)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """See `Hosted.tree`; all that was made for an object is *beyond* its store."""
        return tree(key, informer_of(key, self._coupling.lines()), beyond=beyond)

    def status(self) -> Status:
        """See `Hosted.status`; the syncs are the calls to watchers."""
        return status(self._host, self._coupling.lines(), has=self.holds)

    def holds(self, key: str) -> bool:
        """See `Hosted.holds`."""
        return all(deliveries.holds(key) for deliveries in self._coupling.deliveries.values())

    @property
    def idle(self) -> bool:
        """See `Hosted.idle`; also, no object waits for another call."""
        return super().idle and all(queue.idle for queue in self._queues().values())

    @property
    def kinds(self) -> list[Kind[Any]]:
        """The kinds that the controller watches; they determine which systems it needs."""
        return [source.kind for source in self._coupling.every_source()]

    @property
    def held_kinds(self) -> list[Kind[Any]]:
        """The kinds that watchers give a finalizer, which takes permission to update them."""
        return self._coupling.held_kinds()

    @property
    def failing(self) -> dict[str, dict[str, str]]:
        """The errors of the objects whose calls are to be retried, by resource kind and key."""
        return {
            name: deliveries.failures() for name, deliveries in self._coupling.deliveries.items()
        }

    def measures(self) -> Measures:
        """Return the current measures, for metrics and health checks.

        There is a queue for each resource kind. Calls to watchers are not counted as syncs.
        """
        return measures_of(self._host, workers=self.workers)

    def _queues(self) -> dict[str, Workqueue[str]]:
        deliveries = self._coupling.deliveries
        return {name: delivery.queue for name, delivery in deliveries.items()}

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        for deliveries, sources in self._coupling.lines():
            for source in sources:
                source.opened(
                    await self.open(source.kind), self._invalid, deliveries.hasten_retries
                )
        self._coupling.opened = True
        informers = self._coupling.informers()
        async with self._host.watching(informers, tuple(informers.values())):
            yield

    async def _notify(self, deliveries: Deliveries, sources: Sequence[Source]) -> None:
        loop = deliveries.loop(self.name, timeout_s=self._timeout_s)
        for source in sources:
            loop.watch(source.informer, partial(self._coupling.changed, deliveries, source))
        await loop.run(self._host.begin, Arrivals(deliveries, sources), workers=self.workers)

    def _invalid(self, invalid: Invalid) -> None:
        if self._error_handler is not None:
            self._error_handler(invalid.error)
