"""Which watchers are told of what which informers see: coupled by resource kinds."""

from collections.abc import Sequence
from typing import Any

from natsctl.core.cache.informer import Informer
from natsctl.core.queue.workqueue import Priority
from natsctl.core.sync.journal import Journal
from natsctl.core.sync.loop import KeyFilter
from natsctl.errors import InformerAlreadyAddedError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.store import Change
from natsctl.watchers.deliveries import Deliveries, Policies, Registration
from natsctl.watchers.opinionated import OpinionatedWatcher
from natsctl.watchers.sources import Source
from natsctl.watchers.watcher import ResourceWatcher


class Coupling:
    """Resource kinds, each with where its news come from and who is told of them.

    Args:
        name: the controller's, for errors.
        policies: what follows a failure.
        journal: where it is noted what came of each call.
    """

    def __init__(self, name: str, policies: Policies, journal: Journal) -> None:
        self.sources: dict[str, list[Source]] = {}
        self.deliveries: dict[str, Deliveries] = {}
        self.opened = False  # whether every source has its informer
        self._name = name
        self._policies = policies
        self._journal = journal

    def add_source(self, source: Source, resource_kind: str) -> None:
        """Have the watchers of *resource_kind* told what happens there.

        Raises `InformerAlreadyAddedError` for a part that the resource kind has already, and
        `UsageError` once it is opened.
        """
        if self.opened:
            raise UsageError(f"{self._name} runs: add informers before")
        sources = self.sources.setdefault(resource_kind, [])
        if any(other.part == source.part for other in sources):
            raise InformerAlreadyAddedError(
                f"{self._name} has an informer for exactly these objects of {source.kind.name}"
            )
        sources.append(source)

    def add_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Add the watcher; once the informers run, it receives the existing objects first.

        Raises `UsageError` if *watcher* is no watcher, if *resource_kind* is empty or, once the
        informers run, has none, and if another watcher there has the same finalizer.
        """
        if not isinstance(watcher, ResourceWatcher):
            raise UsageError(f"{self._name}: a watcher has add, update and delete: {watcher!r}")
        if self.opened:
            self._check_has_informer(_name(resource_kind))
        deliveries = self.at(resource_kind)
        finalizer = _finalizer(watcher)
        if finalizer is not None and finalizer in _finalizers(deliveries):
            raise UsageError(
                f"two watchers of {deliveries.resource_kind} have the finalizer "
                f"{finalizer}: give one another finalizer_supplier"
            )
        registration = Registration(watcher)
        deliveries.registrations = (*deliveries.registrations, registration)
        if self.opened:
            for source in self.of(deliveries):
                for news in source.all():
                    deliveries.tell(news, priority=Priority.RESYNC, to=(registration,))

    def remove_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """Remove the watcher once; a watcher or a resource kind that was never added is ignored."""
        deliveries = self.deliveries.get(_name(resource_kind))
        if deliveries is None:
            return
        remaining = list(deliveries.registrations)
        for registration in remaining:
            if registration.watcher is watcher:
                remaining.remove(registration)
                break
        deliveries.registrations = tuple(remaining)

    def remove_all_watchers(self, resource_kind: str | Kind[Any]) -> None:
        """Remove every watcher of the resource kind; one that was never added is ignored."""
        deliveries = self.deliveries.get(_name(resource_kind))
        if deliveries is not None:
            deliveries.registrations = ()

    def at(self, resource_kind: str | Kind[Any]) -> Deliveries:
        """Return the deliveries of the resource kind, made on first use."""
        name = _name(resource_kind)
        if not name:
            raise UsageError(f"{self._name}: a resource kind has a name")
        if name not in self.deliveries:
            self.deliveries[name] = Deliveries(name, self._policies, journal=self._journal)
        return self.deliveries[name]

    def of(self, deliveries: Deliveries) -> Sequence[Source]:
        """Return where those who are told have their news from."""
        return self.sources.get(deliveries.resource_kind, ())

    def lines(self) -> list[tuple[Deliveries, list[Source]]]:
        """Return of each resource kind who tells, and from where."""
        return [(self.at(name), sources) for name, sources in self.sources.items()]

    def every_source(self) -> list[Source]:
        """Return the sources of all resource kinds."""
        return [source for sources in self.sources.values() for source in sources]

    def informers(self) -> dict[str, Informer[Any]]:
        """Return them by resource kind, those after the first of a kind by their number too."""
        return {
            resource_kind if number == 1 else f"{resource_kind}/{number}": source.informer
            for resource_kind, sources in (self.sources if self.opened else {}).items()
            for number, source in enumerate(sources, 1)
        }

    def held_kinds(self) -> list[Kind[Any]]:
        """Return what watchers hold by a finalizer."""
        lines = ((sources, _finalizers(deliveries)) for deliveries, sources in self.lines())
        return [source.kind for sources, finalizers in lines if finalizers for source in sources]

    def check(self) -> None:
        """Raise `UsageError` where there is nothing to tell, or nothing to tell somebody."""
        if not self.sources:
            raise UsageError(f"{self._name} has nothing to watch: add an informer")
        for name, deliveries in self.deliveries.items():
            if deliveries.registrations:
                self._check_has_informer(name)

    def _check_has_informer(self, resource_kind: str) -> None:
        if resource_kind not in self.sources:
            raise UsageError(
                f"{self._name} has watchers of {resource_kind} and no informer: "
                f"its informers are of {', '.join(self.sources)}"
            )

    def changed(self, deliveries: Deliveries, source: Source, change: Change[Any]) -> None:
        """Tell of it, unless the object is only gone to another part of its kind."""
        news = source.news(change)
        if news is None:
            return
        others = self.of(deliveries)
        if news.after is None and any(
            other.has(news.key) for other in others if other is not source and other.near(source)
        ):
            return
        deliveries.tell(news, priority=Priority.RESYNC if change.initial else Priority.USER)


class Arrivals:
    """Tells of the objects that come as if they were new; an `AssignmentListener`."""

    def __init__(self, deliveries: Deliveries, sources: Sequence[Source]) -> None:
        self._deliveries = deliveries
        self._sources = sources

    def lost(self, holds: KeyFilter) -> None:
        """See `AssignmentListener.lost`."""
        self._deliveries.keep(holds)

    async def gained(self, gained: KeyFilter) -> None:
        """See `AssignmentListener.gained`; objects are delivered before they change again."""
        for source in self._sources:
            for news in source.all():
                if gained(news.key):
                    self._deliveries.tell(news, priority=Priority.RESYNC)
        for source in self._sources:
            for news in await source.deleted(gained):
                self._deliveries.tell(news, priority=Priority.RESYNC)


def _name(resource_kind: str | Kind[Any]) -> str:
    return resource_kind if isinstance(resource_kind, str) else resource_kind.name


def _finalizers(deliveries: Deliveries) -> set[str]:
    found = (_finalizer(registration.watcher) for registration in deliveries.registrations)
    return {finalizer for finalizer in found if finalizer is not None}


def _finalizer(watcher: ResourceWatcher) -> str | None:
    return watcher.finalizer if isinstance(watcher, OpinionatedWatcher) else None
