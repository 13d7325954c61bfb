"""From the slots that a controller declares to readers, each over an informer of its own."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from natsctl.controller.slots.backends import Systems
from natsctl.controller.slots.declare import Slot, slots
from natsctl.controller.slots.kube_secondary import UNMARKED_INDEX, KubeSecondary, Report
from natsctl.controller.slots.own_writes import OwnWrites
from natsctl.controller.slots.owned import OWNER_INDEX, Owned
from natsctl.controller.slots.owners import Owner, OwnerNames
from natsctl.controller.slots.predicates import filtered
from natsctl.controller.slots.reads import Reads
from natsctl.controller.slots.secondary import Secondary
from natsctl.core.cache.cache import IndexFunc, Invalid
from natsctl.core.cache.informer import Informer, OnChange
from natsctl.core.coordination.installation import Installation, InstallationAnnotation
from natsctl.core.objects.primary import CacheReader, Primary, Tertiary
from natsctl.core.objects.read_your_writes import Barrier
from natsctl.core.task_group import together
from natsctl.errors import StoreError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.store import Change, Store, Stored

T = TypeVar("T")


class Listeners(msgspec.Struct, frozen=True):
    """Plain functions that are told what happens to a controller's objects, and add keys."""

    primary_changed: OnChange[Any]
    primary_invalid: Callable[[Invalid], None]
    secondary_changed: Callable[[Change[Any], str | None], None]  # and whose sync made it
    secondary_invalid: Callable[[Kind[Any], Invalid], None]
    secondary_undone: Callable[[str], None]
    read_changed: Callable[[str], None]
    listed: Callable[[], None]  # a store is there, maybe again
    appeared: Callable[[], None]  # an optional kind is there
    visit_later: Callable[[str, float], None]  # after so many seconds
    report: Report


class Opened:
    """The slots of one controller, opened.

    Args:
        names: the labels that link secondaries to primaries.
        owner: the primary's kind, as owner labels say it.
        manager: who writes, as a cluster calls it.
        barrier: what remembers the controller's writes.
        listeners: who is told of changes, once `subscriptions` are made.
    """

    primary: Primary[Any]
    _mark: InstallationAnnotation

    def __init__(
        self,
        systems: Systems,
        barrier: Barrier,
        listeners: Listeners,
        *,
        names: OwnerNames,
        owner: str,
        manager: str,
    ) -> None:
        self.reads = Reads(systems, listeners.read_changed)
        self.secondaries: list[Owned[Any]] = []
        self.informers: list[Informer[Any]] = []
        self.by_slot: dict[str, Informer[Any]] = {}
        self.subscriptions: list[tuple[Informer[Any], OnChange[Any]]] = []
        self._systems = systems
        self._barrier = barrier
        self._listeners = listeners
        self._names = names
        self._owner = owner
        self._manager = manager

    async def open(self, controller: object, installation: Installation) -> None:
        """Put a reader in the place of every slot that the controller's class declares.

        The attribute `reads` gets a reader of everything else. Objects in a cluster belong to
        *installation*.
        """
        self._mark = InstallationAnnotation(self._names.installation, installation)
        vars(controller)["reads"] = self.reads
        for slot in slots(type(controller)):
            vars(controller)[slot.name] = reader = await self._open(slot)
            self.by_slot[slot.name] = reader.informer

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Keep every cache equal to its store, while the context lasts."""
        async with together() as group, self.reads.running():
            watches = [
                group.create_task(informer.run(), name=f"watch of {informer.cache.kind.name}")
                for informer in self.informers
            ]
            try:
                yield
            finally:
                for watch in watches:
                    watch.cancel()

    async def complete(self) -> None:
        """Wait until every cache has seen a whole listing."""
        for informer in self.informers:
            await informer.cache.complete.wait()

    def owner_of(self, kind: Kind[Any], stored: Stored) -> Owner | None:
        """Return the owner of a secondary; None if the object belongs to no primary here."""
        for secondary in self.secondaries:
            if secondary.kind is kind and not secondary.is_foreign(stored):
                owner = secondary.owner_of(stored)
                if owner is not None and owner.kind == self._owner:
                    return owner
        return None

    def owner_in(self, obj: object) -> Owner | None:
        """Return the owner that a decoded secondary names, as `owner_of` does."""
        for secondary in self.secondaries:
            if secondary.kind.describes(obj):
                metadata = secondary.kind.metadata_of(obj)
                owner = self._names.owner(metadata)
                foreign = secondary.foreign_installation(metadata)
                if owner is not None and owner.kind == self._owner and not foreign:
                    return owner
        return None

    def is_foreign(self, change: Change[Any]) -> bool:
        """Return whether the secondary belongs to another installation, and did so before."""
        states = [stored for stored in (change.before, change.after) if stored is not None]
        changed = [at for at in self.secondaries if at.kind is change.kind]
        return bool(changed and states) and all(
            secondary.is_foreign(stored) for secondary in changed for stored in states
        )

    @property
    def failure(self) -> StoreError | None:
        """Why a cache has no watch just now, None where all have."""
        failures = (informer.failure for informer in self.informers)
        return next((failure for failure in failures if failure is not None), None)

    @property
    def telling(self) -> bool:
        """Whether there are cached changes still to be told."""
        return any(informer.telling for informer in self.informers)

    def owned(self, key: str) -> Iterator[tuple[Kind[Any], Stored]]:
        """Return the newest states of the objects that the primary *key* owns, with their kinds."""
        for secondary in self.secondaries:
            for stored in secondary.owned_stored(key):
                yield secondary.kind, secondary.informer.cache.newest(stored.key) or stored

    def references(self, key: str) -> list[Reference]:
        """Return what in a cluster was made for the primary *key*."""
        return [reference for each in self._manifests() for reference in each.references(key)]

    def contests(self) -> dict[str, list[str]]:
        """Return which of its objects others change back again and again, by primary key."""
        found: dict[str, list[str]] = {}
        for secondary in self._manifests():
            for key, contest in secondary.contests.current().items():
                found.setdefault(contest.owner, []).append(
                    f"{secondary.kind.name} {key}: {contest}"
                )
        return found

    @property
    def undone(self) -> int:
        """How often others undid what was applied."""
        return sum(secondary.contests.undone for secondary in self._manifests())

    def _manifests(self) -> list[KubeSecondary[Any]]:
        return [at for at in self.secondaries if isinstance(at, KubeSecondary)]

    async def _open(self, slot: Slot[Any]) -> CacheReader[Any]:
        if isinstance(slot.kind, KubeKind) and slot.role is KubeSecondary:
            return await self._open_manifests(slot, slot.kind)
        store = await self._systems.open(slot.kind)
        if slot.role is Secondary:
            owners = {OWNER_INDEX: self._names.index(store.kind, self._owner)}
            informer, own = self._secondary_informer(slot, store, owners)
            return self._made(
                Secondary(
                    informer, self._barrier, own, self._names, self._owner, exists=self._exists
                )
            )
        if slot.role is Tertiary:
            informer = self._informer(store, slot.indexes)
            self.subscriptions.append((informer, _wake_nobody))
            return Tertiary(informer, self._barrier)
        informer = self._informer(store, slot.indexes, self._listeners.primary_invalid)
        self.subscriptions.append((informer, self._listeners.primary_changed))
        self.primary = Primary(informer, self._barrier, self._systems.open)
        return self.primary

    async def _open_manifests(self, slot: Slot[Any], kind: KubeKind[Any]) -> Owned[Any]:
        """Open what is made in a cluster: only what has our owner label is watched."""
        part = kind.labelled(self._names.selector(self._owner))
        manifests = await self._systems.manifests(part)
        informer, own = self._secondary_informer(slot, manifests, self._marked_owners(part))
        return self._made(
            KubeSecondary(
                informer,
                self._barrier,
                own,
                self._names,
                self._owner,
                manifests=manifests,
                manager=self._manager,
                mark=self._mark,
                exists=self._exists,
                on_immutable=slot.on_immutable,
                visit_later=self._listeners.visit_later,
                report=self._listeners.report,
            )
        )

    def _marked_owners(self, kind: KubeKind[T]) -> dict[str, IndexFunc[T]]:
        """Return the indexes by owner of what is not another installation's."""
        owner, mark = self._names.index(kind, self._owner), self._mark

        def own(obj: T) -> Iterable[str]:
            return () if mark.foreign(kind.metadata_of(obj)) else owner(obj)

        def unmarked(obj: T) -> Iterable[str]:
            return () if mark.on(kind.metadata_of(obj)) else owner(obj)

        return {OWNER_INDEX: own, UNMARKED_INDEX: unmarked}

    def _exists(self, key: str) -> bool:
        return key in self.primary.informer.cache

    def _made(self, secondary: Owned[Any]) -> Owned[Any]:
        self.secondaries.append(secondary)
        return secondary

    def _secondary_informer(
        self, slot: Slot[Any], store: Store, owners: Mapping[str, IndexFunc[Any]]
    ) -> tuple[Informer[Any], OwnWrites]:
        listeners, kind = self._listeners, store.kind
        indexes = {**slot.indexes, **owners}
        forward = listeners.secondary_changed
        if slot.predicate is not None:
            forward = filtered(forward, slot.predicate)
        own = OwnWrites(forward, listeners.secondary_undone)
        invalid = partial(listeners.secondary_invalid, kind)
        informer = self._informer(store, indexes, invalid, own.listed)
        self.subscriptions.append((informer, own.see))
        return informer, own

    def _informer(
        self,
        store: Store,
        indexes: Mapping[str, IndexFunc[Any]],
        on_invalid: Callable[[Invalid], None] | None = None,
        on_listed: Callable[[], None] | None = None,
    ) -> Informer[Any]:
        def listed() -> None:
            self._listeners.listed()
            if on_listed is not None:
                on_listed()

        informer = Informer(
            store,
            store.kind,
            indexes=indexes,
            on_invalid=on_invalid,
            on_listed=listed,
            on_appeared=self._listeners.appeared,
        )
        self.informers.append(informer)
        return informer


def _wake_nobody(_change: Change[Any]) -> None:
    """Tertiaries are only read."""
