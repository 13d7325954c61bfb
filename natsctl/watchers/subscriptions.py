"""Connects informers to the watchers of the same resource kind."""

from collections.abc import Sequence
from typing import Any

import msgspec

from natsctl.core.coordination.term import KeyFilter
from natsctl.core.history import SyncHistory
from natsctl.core.informer import Informer
from natsctl.core.pauses import Pausing
from natsctl.core.workqueue import Priority
from natsctl.errors import InformerAlreadyAddedError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.store import Change
from natsctl.slices import in_slices
from natsctl.watchers.deliveries import Deliveries
from natsctl.watchers.failed_calls import Policies, Registration
from natsctl.watchers.merged_changes import ObjectChange
from natsctl.watchers.opinionated import OpinionatedWatcher
from natsctl.watchers.sources import Source
from natsctl.watchers.watcher import ResourceWatcher


class ResourceKinds(msgspec.Struct, eq=False):
    """The resource kinds of a controller, each with its sources and watchers."""

    name: str  # of the controller
    policies: Policies
    history: SyncHistory
    pausing: Pausing
    sources: dict[str, list[Source]] = {}
    deliveries: dict[str, Deliveries] = {}
    opened: bool = False  # whether every source has its informer

    def add_source(self, source: Source, resource_kind: str) -> None:
        """See `InformerController.add_informer`."""
        if self.opened:
            raise UsageError(f"{self.name} runs: add informers before its start")
        sources = self.sources.setdefault(resource_kind, [])
        if any(added.part == source.part for added in sources):
            raise InformerAlreadyAddedError(
                f"{self.name} has an informer for exactly these objects of {source.kind.name}"
            )
        sources.append(source)

    def add_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """See `InformerController.add_watcher`."""
        if not isinstance(watcher, ResourceWatcher):
            raise UsageError(f"{self.name}: a watcher has add, update and delete: {watcher!r}")
        if self.opened:
            self._check_has_informer(_name(resource_kind))
        deliveries = self.deliveries_of(resource_kind)
        finalizer = _finalizer(watcher)
        if finalizer is not None and finalizer in _finalizers(deliveries):
            raise UsageError(
                f"two watchers of {deliveries.resource_kind} have the finalizer "
                f"{finalizer}: give one another finalizer_supplier"
            )
        registration = Registration(watcher, self._number(watcher))
        deliveries.registrations = (*deliveries.registrations, registration)
        if self.opened:
            for source in self.sources_of(deliveries):
                for change in source.creates():
                    deliveries.add(change, priority=Priority.RESYNC, to=(registration,))

    def _number(self, watcher: ResourceWatcher) -> int:
        """Return the number of a new watcher among those of its class."""
        name = type(watcher).__name__
        added = (
            registration
            for deliveries in self.deliveries.values()
            for registration in deliveries.registrations
        )
        return 1 + max(
            (
                registration.number
                for registration in added
                if type(registration.watcher).__name__ == name
            ),
            default=0,
        )

    def remove_watcher(self, watcher: ResourceWatcher, resource_kind: str | Kind[Any]) -> None:
        """See `InformerController.remove_watcher`; removes the watcher once."""
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

    def deliveries_of(self, resource_kind: str | Kind[Any]) -> Deliveries:
        """Return the deliveries of the resource kind; the first call creates them."""
        name = _name(resource_kind)
        if not name:
            raise UsageError(f"{self.name}: a resource kind has a name")
        if name not in self.deliveries:
            self.deliveries[name] = Deliveries(
                name, self.policies, history=self.history, pausing=self.pausing
            )
        return self.deliveries[name]

    def registration(self, resource_kind: str, watcher: str) -> Registration:
        """Return the watcher of that name; raises `UsageError` if there is none."""
        deliveries = self.deliveries.get(resource_kind)
        for registration in deliveries.registrations if deliveries and self.opened else ():
            if registration.name == watcher:
                return registration
        raise UsageError(f"{self.name} has no watcher {watcher} of {resource_kind}")

    def sources_of(self, deliveries: Deliveries) -> Sequence[Source]:
        """Return the sources of the deliveries."""
        return self.sources.get(deliveries.resource_kind, ())

    def routes(self) -> list[tuple[Deliveries, list[Source]]]:
        """Return the deliveries and sources of each resource kind."""
        return [(self.deliveries_of(name), sources) for name, sources in self.sources.items()]

    def every_source(self) -> list[Source]:
        """Return the sources of all resource kinds."""
        return [source for sources in self.sources.values() for source in sources]

    def informers(self) -> dict[str, Informer[Any]]:
        """Return the informers by resource kind, and from the second of a kind on with a number."""
        return {
            resource_kind if number == 1 else f"{resource_kind}/{number}": source.informer
            for resource_kind, sources in (self.sources if self.opened else {}).items()
            for number, source in enumerate(sources, 1)
        }

    def held_kinds(self) -> list[Kind[Any]]:
        """Return the kinds whose objects get a finalizer of a watcher."""
        routes = ((sources, _finalizers(deliveries)) for deliveries, sources in self.routes())
        return [source.kind for sources, finalizers in routes if finalizers for source in sources]

    def check(self) -> None:
        """Raise `UsageError` if there is no source, or watchers of a resource kind have none."""
        if not self.sources:
            raise UsageError(f"{self.name} has nothing to watch: add an informer")
        for name, deliveries in self.deliveries.items():
            if deliveries.registrations:
                self._check_has_informer(name)

    def _check_has_informer(self, resource_kind: str) -> None:
        if resource_kind not in self.sources:
            raise UsageError(
                f"{self.name} has watchers of {resource_kind} and no informer: "
                f"its informers are of {', '.join(self.sources)}"
            )

    def changed(self, deliveries: Deliveries, source: Source, change: Change[Any]) -> None:
        """Deliver the change, unless the object only moved to another source of its kind."""
        deliveries.observe(change)
        selected = source.change(change)
        if selected is None:
            return
        siblings = self.sources_of(deliveries)
        if selected.after is None and any(
            sibling.has(selected.key)
            for sibling in siblings
            if sibling is not source and sibling.shares_kind(source)
        ):
            return
        deliveries.add(selected, priority=Priority.RESYNC if change.initial else Priority.USER)


class ObjectListener:
    """Delivers objects that are assigned to this process as creates; a `ShareListener`."""

    def __init__(self, deliveries: Deliveries, sources: Sequence[Source]) -> None:
        self._deliveries = deliveries
        self._sources = sources

    async def lost(self, holds: KeyFilter) -> None:
        """See `ShareListener.lost`."""
        await self._deliveries.keep(holds)

    async def gained(self, gained: KeyFilter) -> None:
        """See `ShareListener.gained`; each object is delivered in its newest state."""

        def add(change: ObjectChange) -> None:
            if gained(change.key):
                self._deliveries.add(change, priority=Priority.RESYNC)

        for source in self._sources:
            await in_slices(source.creates(), add)
        for source in self._sources:
            await in_slices(await source.deletes(gained), add)


def resync(
    deliveries: Deliveries, sources: Sequence[Source], key: str, *, priority: Priority
) -> None:
    """Call the watchers with the object as at a start; make the retry of a failed call instead."""
    changes = [change for source in sources for change in source.create(key)]
    deliveries.resync(key, changes, priority=priority)


def resync_all(deliveries: Deliveries, sources: Sequence[Source]) -> int:
    """Resync every object of the resource kind, a few at a time; return how many there are."""

    def add(key: str) -> None:
        if deliveries.holds(key):
            resync(deliveries, sources, key, priority=Priority.RESYNC)

    count = 0
    for source in sources:
        keys = source.informer.cache.keys()
        deliveries.queue.feed(keys, add)
        count += deliveries.count(keys)
    return count


def _name(resource_kind: str | Kind[Any]) -> str:
    return resource_kind if isinstance(resource_kind, str) else resource_kind.name


def _finalizers(deliveries: Deliveries) -> set[str]:
    names = (_finalizer(registration.watcher) for registration in deliveries.registrations)
    return {finalizer for finalizer in names if finalizer is not None}


def _finalizer(watcher: ResourceWatcher) -> str | None:
    return watcher.finalizer if isinstance(watcher, OpinionatedWatcher) else None
