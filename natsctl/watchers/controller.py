"""Runs informers, and calls the watchers of their resource kinds with each change.

An informer adds a change to the queue of its object. A worker calls every watcher of the resource
kind with the change, in the order in which the watchers were added. If a watcher fails, the retry
policy decides when it is called again, and the dequeue policy whether a newer change replaces the
retry.

Seed: grafana-app-sdk operator v0.9.10.
"""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from natsctl.core.backends import Backends
from natsctl.core.counters import Counts
from natsctl.core.host import Host
from natsctl.core.hosted import Hosted
from natsctl.core.informer import Informer
from natsctl.core.options import POLICY, SECONDS, SECONDS_OR_ZERO, WORKERS, check_options
from natsctl.core.record.document import Delivery
from natsctl.core.reports import Beyond, tree
from natsctl.core.retry import RetryPolicy
from natsctl.core.sync import Calls, blocking
from natsctl.core.table import Invalid
from natsctl.core.workqueue import Priority, WorkQueue
from natsctl.errors import InformerAlreadyAddedError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.reports import Branch, Explanation, Status
from natsctl.model.store import ManifestStores, Store, Stores
from natsctl.watchers.resource_kind import (
    Labels,
    ObjectChange,
    Policies,
    Registration,
    ResourceKind,
    Source,
)
from natsctl.watchers.watcher import (
    DEFAULT_RETRY_POLICY,
    ResourceWatcher,
    RetryDequeuePolicy,
    opinionated_retry_dequeue_policy,
)

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
        self._backends = Backends(nats=nats, kube=kube)
        host = Host(
            self.name,
            self._queues,
            start=self.start,
            clean=self.clean,
            stop_timeout_s=stop_timeout_s,
        )
        calls = Calls(
            self.name, "the watcher", limit_s=timeout_s, call_name="the call", setting="timeout_s"
        )
        self._policies = Policies(error_handler, retry_policy, retry_dequeue_policy, calls)
        self._resource_kinds: dict[str, ResourceKind] = {}
        self._has_opened = False  # whether every source has its informer
        host.pausing.event = host.history.event
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
        if self._has_opened:
            raise UsageError(f"{self.name} runs: add informers before its start")
        source, sources = Source(kind, labels), self._named(resource_kind or kind).sources
        if any(added.part == source.part for added in sources):
            raise InformerAlreadyAddedError(
                f"{self.name} has an informer for exactly these objects of {kind.name}"
            )
        sources.append(source)

    def add_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Call the watcher with changes of this resource kind, after the watchers added before.

        A watcher that is added while the controller runs receives every existing object. Raises
        `UsageError` if *watcher* isn't a watcher, if the resource kind is empty or, while the
        controller runs, has no informer, and if another of its watchers has the same finalizer.
        """
        if not isinstance(watcher, ResourceWatcher):
            raise UsageError(f"{self.name}: a watcher has add, update and delete: {watcher!r}")
        if self._has_opened:
            self._check_has_informer(_name(resource_kind))
        named = self._named(resource_kind)
        cls, every = type(watcher).__name__, self._resource_kinds.values()
        added = [one for kind in every for one in kind.registrations if one.cls == cls]
        registration = Registration(watcher, 1 + max((one.number for one in added), default=0))
        if registration.finalizer in named.finalizers:
            raise UsageError(
                f"two watchers of {named.name} have the finalizer {registration.finalizer}: "
                "give one another finalizer_supplier"
            )
        named.registrations = (*named.registrations, registration)
        if self._has_opened:
            named.add_existing((registration,))

    def remove_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Remove the watcher and its retries, if it was added."""
        kind = self._resource_kinds.get(_name(resource_kind))
        added = [] if kind is None else list(kind.registrations)
        first = next((one for one in added if one.watcher is watcher), None)
        if kind is not None and first is not None:
            kind.registrations = tuple(one for one in added if one is not first)

    def remove_all_watchers_for_resource(self, resource_kind: str | Kind[Any]) -> None:
        kind = self._resource_kinds.get(_name(resource_kind))
        if kind is not None:
            kind.registrations = ()

    def _named(self, resource_kind: str | Kind[Any]) -> ResourceKind:
        name = _name(resource_kind)
        if not name:
            raise UsageError(f"{self.name}: a resource kind has a name")
        if name not in self._resource_kinds:
            self._resource_kinds[name] = ResourceKind(name, self.host, self._policies)
        return self._resource_kinds[name]

    def _watched(self) -> list[ResourceKind]:
        return [kind for kind in self._resource_kinds.values() if kind.sources]

    def _check_has_informer(self, name: str) -> None:
        watched = [kind.name for kind in self._watched()]
        if name not in watched:
            raise UsageError(
                f"{self.name} has watchers of {name} and no informer: "
                f"its informers are of {', '.join(watched)}"
            )

    async def start(self) -> None:
        """Prepare; called after every table is synced and before the first call to a watcher."""

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
        if not self._watched():
            raise UsageError(f"{self.name} has nothing to watch: add an informer")
        for kind in self._resource_kinds.values():
            if kind.registrations:
                self._check_has_informer(kind.name)

        async with self.opened():
            await self.host.run(*(kind.run(self.workers) for kind in self._watched()))
        for kind in self._resource_kinds.values():
            if kind.failure is not None:
                raise kind.failure

    def registration(self, delivery: Delivery) -> tuple[ResourceKind, Registration]:
        """Return what calls the delivery's watcher; raises `UsageError` if nothing does."""
        kind = self._resource_kinds.get(delivery.resource_kind)
        for registration in () if kind is None or not self._has_opened else kind.registrations:
            if registration.name == delivery.watcher:
                return cast("ResourceKind", kind), registration
        raise UsageError(
            f"{self.name} has no watcher {delivery.watcher} of {delivery.resource_kind}"
        )

    async def deliver(self, key: str, delivery: Delivery) -> None:
        """Call one watcher with one change now, outside of the loops; raises its failure.

        Needs stores that are `opened` and tables that are `complete`. Raises the errors of
        `registration`.
        """
        kind, registration = self.registration(delivery)
        source, before, after = kind.sources[0], delivery.before, delivery.after
        change = ObjectChange(key, source.kind, source.informer.store, before, after)
        await kind.deliver(registration, change)

    def hold_only(self, keys: Collection[str]) -> None:
        for kind in self._watched():
            kind.loop.hold_only(keys)

    def resync(self, *keys: str) -> int:
        """Call the watchers with these objects, or all objects of this process, as at a start.

        If a watcher failed on an object, its retry is made at once instead. Returns the number of
        objects. All objects follow after more urgent ones, a few at a time.
        """
        if not keys:
            return sum(kind.resync_all() for kind in self._watched())
        resynced = set[str]()
        for kind in self._watched():
            for key in filter(kind.holds, keys):
                kind.resync(key, Priority.USER)
                resynced.add(key)
        return len(resynced)

    def explain(self, key: str) -> Explanation:
        """See `Hosted.explain`; an object of several resource kinds is explained for the first.

        The first one is that with the object in its queue. The last syncs are the calls to all
        watchers.
        """
        kinds = self._watched()
        queued = (kind for kind in kinds if kind.queue.work(key) is not None or kind.failed(key))
        kind = next(queued, kinds[0])
        explanation = self._explain(key, self._informer_of(key).table, kind.queue)
        return msgspec.structs.replace(explanation, failures=kind.failed(key))

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """See `Hosted.tree`; things that watchers made are *beyond* its store."""
        return tree(key, self._informer_of(key), beyond=beyond)

    def status(self) -> Status:
        """See `Hosted.status`; the syncs are the calls to watchers."""
        kinds = self._watched()
        return msgspec.structs.replace(
            super().status(),
            keys=sum(kind.count() for kind in kinds),
            unanswered=sum(len(kind.pending) for kind in kinds),
        )

    def _oldest_s(self, counts: Counts | None) -> float | None:  # noqa: ARG002 - it counts none
        ages_s = (kind.oldest_unanswered_s for kind in self._watched())
        return max((age_s for age_s in ages_s if age_s is not None), default=None)

    def _errors(self) -> dict[str, str]:
        errors = [kind.failures() for kind in self._watched()]
        return {key: error for of_kind in errors for key, error in of_kind.items()}

    def _informer_of(self, key: str) -> Informer[Any]:
        informers = [source.informer for kind in self._watched() for source in kind.sources]
        return next((informer for informer in informers if key in informer.table), informers[0])

    def holds(self, key: str) -> bool:
        return all(kind.holds(key) for kind in self._resource_kinds.values())

    @property
    def idle(self) -> bool:
        """See `Hosted.idle`; also, no object waits for another call."""
        return super().idle and all(queue.idle for queue in self._queues().values())

    @property
    def kinds(self) -> list[Kind[Any]]:
        """The kinds that the controller watches; they determine which systems it needs."""
        return [source.kind for kind in self._watched() for source in kind.sources]

    @property
    def held_kinds(self) -> list[Kind[Any]]:
        """The kinds that watchers give a finalizer, which requires permission to update them."""
        kinds = (kind for kind in self._watched() if kind.finalizers)
        return [source.kind for kind in kinds for source in kind.sources]

    @property
    def failing(self) -> dict[str, dict[str, str]]:
        """The errors of the objects whose calls are to be retried, by resource kind and key."""
        return {name: kind.failures() for name, kind in self._resource_kinds.items()}

    def _queues(self) -> dict[str, WorkQueue[str]]:
        return {name: kind.queue for name, kind in self._resource_kinds.items()}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        informers: dict[str, Informer[Any]] = {}
        for kind in self._watched():
            for number, source in enumerate(kind.sources, 1):
                store = await self.open(source.kind)
                source.informer = Informer(
                    store, source.kind, on_invalid=self._invalid, on_listed=kind.hasten_retries
                )
                informers[kind.name if number == 1 else f"{kind.name}/{number}"] = source.informer
        self._has_opened, records = True, self._backends.nats
        primaries, systems = (*informers.values(),), () if records is None else (records,)
        async with self.host.watching(informers, primaries, records=records, systems=systems):
            yield

    def _invalid(self, invalid: Invalid) -> None:
        if self._error_handler is not None:
            self._error_handler(invalid.error)


def _name(resource_kind: str | Kind[Any]) -> str:
    return resource_kind if isinstance(resource_kind, str) else resource_kind.name
