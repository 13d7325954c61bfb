"""InformerController: informers and watchers, coupled by resource kinds.

One change's journey: an informer sees it and puts it into its object's line. A worker tells it to
every watcher of the resource kind, in the order in which they were added. Where one fails, the
retry policy says when that one is told again, and the dequeue policy whether something newer has
made that pointless.

Seed: grafana-app-sdk operator v0.9.10.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from natsctl.core.cache.cache import Invalid
from natsctl.core.coordination.term import led
from natsctl.core.insight.explain import Explanation, Status
from natsctl.core.insight.measures import Measures, QueueMeasures, cache_measures, lags
from natsctl.core.insight.tree import Beyond, Branch, tree
from natsctl.core.queue.retry import RetryPolicy
from natsctl.core.queue.workqueue import Priority
from natsctl.core.sync.calls import blocking, call_hook
from natsctl.core.sync.journal import Journal
from natsctl.core.sync.options import COUNT, POLICY, SECONDS, SECONDS_OR_ZERO, check_options
from natsctl.core.sync.stopping import finish
from natsctl.core.task_group import together
from natsctl.errors import UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
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

log = logging.getLogger(__name__)


_OPTIONS = {
    "retry_policy": POLICY,
    "workers": COUNT,
    "timeout_s": SECONDS,
    "stop_timeout_s": SECONDS_OR_ZERO,
}


class InformerController:
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
        self.synced = asyncio.Event()  # every cache is complete, and telling has begun
        self._error_handler = error_handler
        self._timeout_s = timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._nats, self._kube = nats, kube
        self._journal = Journal()
        policies = Policies(error_handler, retry_policy, retry_dequeue_policy)
        self._coupling = Coupling(self.name, policies, self._journal)
        self.prepared = False  # its stores are open, so there is something to explain
        self.stopping = False  # it was told to stop
        self._stopping = asyncio.Event()

    def use(self, *, nats: Stores | None = None, kube: ManifestStores | None = None) -> None:
        """Keep kinds there from now on; whoever runs the controller says so before `run`."""
        self._nats = self._nats if nats is None else nats
        self._kube = self._kube if kube is None else kube

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
        in_cluster = isinstance(kind, KubeKind)
        stores = self._kube if in_cluster else self._nats
        if stores is None:
            where = "Kubernetes, and no cluster" if in_cluster else "NATS, and no connection"
            raise UsageError(f"{kind.name} is kept in {where} is given")
        return await stores.open(kind)

    async def run(self) -> None:
        """Tell watchers until `stop`; returns when calls under way are done.

        Raises what could not be had at the start, and the error for which a policy said `Stop`.
        """
        self._coupling.check()
        async with self._opened():
            try:
                async with together() as group:
                    telling = self._coupling.deliveries.values()
                    loops = [group.create_task(self._tell(at), name="telling") for at in telling]
                    starting = group.create_task(self._start())
                    stopping = group.create_task(self._stopping.wait())
                    await asyncio.wait((*loops, stopping), return_when=asyncio.FIRST_COMPLETED)
                    await self._finish(loops)
                    starting.cancel()
                    stopping.cancel()
            finally:
                await call_hook(self.name, self.clean)
        for deliveries in self._coupling.deliveries.values():
            if deliveries.failure is not None:
                raise deliveries.failure

    def stop(self) -> None:
        """Begin no more calls; `run` returns when those under way are done."""
        self.stopping = True
        for deliveries in self._coupling.deliveries.values():
            deliveries.queue.shut_down(drain=False)
        self._stopping.set()

    def resync(self, *keys: str) -> int:
        """Tell every watcher of every object of this process, or of these, as at a start.

        One that failed on an object is told at once what it has not taken, instead. Returns how
        many objects are told of.
        """
        urgency = Priority.USER if keys else Priority.RESYNC
        told = set[str]()
        for deliveries, sources in self._coupling.lines():
            there = (source.informer.cache.keys() for source in sources)
            wanted = keys or sorted({key for found in there for key in found})
            for key in filter(deliveries.holds, wanted):
                news = [each for source in sources for each in source.again(key)]
                deliveries.tell_again(key, news, priority=urgency)
                told.add(key)
        return len(told)

    def explain(self, key: str) -> Explanation:
        """Return what is known of an object, where several resource kinds have it of the first.

        Its last syncs are calls to watchers, of all of them.
        """
        return explain(self.name, key, self._coupling.lines(), self._journal)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """Return the object with what its document tells *beyond* its store."""
        return tree(key, informer_of(key, self._coupling.lines()), beyond=beyond)

    def status(self) -> Status:
        """Return how the controller is doing as a whole; its syncs are calls to watchers."""
        synced = self.synced.is_set()
        return status(
            self.name, self._coupling.lines(), self._journal, synced=synced, has=self.holds
        )

    @property
    def kinds(self) -> list[Kind[Any]]:
        """What is watched: whoever connects sees by it which systems are needed."""
        return [source.kind for source in self._coupling.every_source()]

    @property
    def held_kinds(self) -> list[Kind[Any]]:
        """What watchers hold by a finalizer, which takes permission to update."""
        return self._coupling.held_kinds()

    @property
    def failing(self) -> dict[str, dict[str, str]]:
        """Why objects wait to be told again, by resource kind and key."""
        return {at.resource_kind: at.failures() for at in self._coupling.deliveries.values()}

    def measures(self) -> Measures:
        """Return what was measured so far, for metrics and health checks.

        There is a queue for each resource kind. Deliveries are not counted as syncs.
        """
        queues = (
            QueueMeasures(at.resource_kind, self.workers, at.queue.stats())
            for at in self._coupling.deliveries.values()
        )
        return Measures(
            controller=self.name,
            synced=self.synced.is_set(),
            caches=cache_measures(self._coupling.informers()),
            queues=tuple(queues),
        )

    async def lags(self) -> dict[str, int]:
        """Return by how many revisions each cache is behind its store, where that is known.

        Asks the stores; takes a second at most.
        """
        return await lags(self._coupling.informers())

    def holds(self, key: str) -> bool:
        """Say whether objects with this key are told of by this process now, and not by another."""
        return all(deliveries.holds(key) for deliveries in self._coupling.deliveries.values())

    @property
    def idle(self) -> bool:
        """Whether telling has begun and nothing waits to be told."""
        telling = any(informer.telling for informer in self._coupling.informers().values())
        waiting = any(not at.queue.idle for at in self._coupling.deliveries.values())
        return self.synced.is_set() and not (telling or waiting)

    # ---- start and end

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        """Keep every informer's cache equal to its store."""
        for deliveries, sources in self._coupling.lines():
            for source in sources:
                source.opened(await self.open(source.kind), self._invalid, deliveries.hasten)
        self._coupling.opened = self.prepared = True
        async with together() as group:
            watches = [
                group.create_task(source.informer.run(), name=f"watch of {source.kind.name}")
                for source in self._coupling.every_source()
            ]
            try:
                yield
            finally:
                for watch in watches:
                    watch.cancel()

    async def _start(self) -> None:
        informers = self._coupling.informers().values()
        for informer in informers:
            await informer.cache.complete.wait()
        await led()
        await call_hook(self.name, self.start)
        self.synced.set()
        objects = sum(len(informer.cache) for informer in informers)
        log.info("%s: %d objects listed, telling", self.name, objects)

    async def _tell(self, deliveries: Deliveries) -> None:
        loop = deliveries.loop(self.name, workers=self.workers, timeout_s=self._timeout_s)
        sources = self._coupling.of(deliveries)
        for source in sources:
            loop.watch(source.informer, partial(self._coupling.changed, deliveries, source))
        await loop.run(self._telling, Arrivals(deliveries, sources))

    async def _telling(self) -> None:
        await self.synced.wait()

    async def _finish(self, loops: "list[asyncio.Task[None]]") -> None:
        """Let calls under way end, for a while."""
        self.stop()
        limit_s = self._stop_timeout_s if self.synced.is_set() else 0.0
        await finish(self.name, loops, within_s=limit_s)

    def _invalid(self, invalid: Invalid) -> None:
        if self._error_handler is not None:
            self._error_handler(invalid.error)
