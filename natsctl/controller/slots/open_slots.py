"""Opens the kinds that a controller declares: their stores, their informers and their readers."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from natsctl.controller.slots.declare import Slot
from natsctl.controller.slots.kube_secondary import KubeSecondary, Report
from natsctl.controller.slots.owned import OWNER_INDEX
from natsctl.controller.slots.owners import OwnerNames
from natsctl.controller.slots.predicates import filtered
from natsctl.controller.slots.secondary import Secondary
from natsctl.core.backends import Backends
from natsctl.core.coordination.installation import InstallationAnnotation
from natsctl.core.informer import Informer, OnChange, OnChanges
from natsctl.core.readers import CacheReader, Primary, Tertiary
from natsctl.core.table import IndexFunc, Invalid, Keeping, Keeps, PrimaryOf
from natsctl.core.writes import Barrier, OwnWrites
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Change, Store, Stored

T = TypeVar("T")


class Listeners(msgspec.Struct, frozen=True):
    """Functions that are called with events of secondaries and tertiaries; they enqueue keys."""

    changed: Callable[[Change[Any], str | None], None]  # with the key whose sync made the change
    invalid: Callable[[Kind[Any], Invalid], None]
    undone: Callable[[str], None]
    listed: Callable[[], None]  # a store is listed, perhaps after it was lost
    appeared: Callable[[], None]  # a missing optional kind exists now
    sync_later: Callable[[str, float], None]  # with a key and seconds
    report: Report


class OpenSlot(msgspec.Struct, frozen=True):
    """The reader of a slot, and the function that takes the changes of its objects."""

    reader: CacheReader[Any]
    on_change: OnChange[Any]
    on_changes: OnChanges[Any] | None = None


class Opening(msgspec.Struct, frozen=True):
    """The values that all slots of a controller share while they are opened.

    `manager` is the field manager of the controller's applies. `keeps` returns whether this process
    needs the secondaries of a primary; None if it needs all.
    """

    backends: Backends
    barrier: Barrier
    primary: Primary[Any]
    names: OwnerNames
    mark: InstallationAnnotation
    manager: str
    listeners: Listeners
    keeps: Keeps | None = None

    async def open(self, slot: Slot[Any]) -> OpenSlot:
        """Open a slot that is not the primary."""
        if isinstance(slot.kind, KubeKind) and slot.role is KubeSecondary:
            return await self._open_manifests(slot, slot.kind)
        store = await self.backends.open(slot.kind)
        if slot.role is Secondary:
            owners = {OWNER_INDEX: self.names.index(store.kind, self.owner_kind)}
            owner_of = self.names.stored_owner_key(store.kind, self.owner_kind)
            informer, own_writes = self._owned_informer(slot, store, owners, owner_of)
            secondary = Secondary(
                informer, self.barrier, own_writes, self.names, self.owner_kind, exists=self._exists
            )
            return OpenSlot(secondary, own_writes.see)
        informer = Informer(
            store,
            store.kind,
            indexes=slot.indexes,
            on_listed=self.listeners.listed,
            on_appeared=self.listeners.appeared,
        )
        return OpenSlot(Tertiary(informer, self.barrier), lambda _: None)  # enqueues no key

    @property
    def owner_kind(self) -> str:
        """The primary's kind, as owner labels name it."""
        return self.primary.kind.name

    async def _open_manifests(self, slot: Slot[Any], kind: KubeKind[Any]) -> OpenSlot:
        """Open a kind of the cluster; only objects with this owner kind's label are watched."""
        part = kind.labelled(self.names.selector(self.owner_kind))
        manifests = await self.backends.manifests(part)
        owners, owner_of = self._marked_owners(part), self._marked_owner_of(part)
        informer, own_writes = self._owned_informer(slot, manifests, owners, owner_of)
        secondary = KubeSecondary(
            informer,
            self.barrier,
            own_writes,
            self.names,
            self.owner_kind,
            manifests=manifests,
            manager=self.manager,
            mark=self.mark,
            exists=self._exists,
            on_immutable=slot.on_immutable,
            sync_later=self.listeners.sync_later,
            report=self.listeners.report,
        )

        def changed(change: Change[Any]) -> None:
            if change.after is None:
                secondary.forget_applied(change.key)
            own_writes.see(change)

        return OpenSlot(secondary, changed)

    def _marked_owners(self, kind: KubeKind[T]) -> dict[str, IndexFunc[T]]:
        """Return the index by owner; it has the objects of this installation."""
        owner, mark = self.names.owner_keys(self.owner_kind), self.mark

        def owned(obj: T) -> Iterable[str]:
            metadata = kind.metadata_of(obj)
            ours = mark.on(metadata) and not mark.foreign(metadata)
            return owner(metadata) if ours else ()

        return {OWNER_INDEX: owned}

    def _marked_owner_of(self, kind: KubeKind[Any]) -> PrimaryOf:
        """Return a function that returns an object's owner if a process may forget the value.

        Each process keeps the value of an object that is being deleted or carries no installation.
        """
        named, mark = self.names.stored_owner_key(kind, self.owner_kind), self.mark

        def owner_of(stored: Stored) -> str | None:
            owner = named(stored)
            if owner is None:
                return None
            metadata = kind.metadata(stored.value)
            plain = mark.on(metadata) and not mark.foreign(metadata)
            return owner if plain and metadata.deletion_timestamp is None else None

        return owner_of

    def _exists(self, key: str) -> bool:
        return key in self.primary.informer.cache

    def _owned_informer(
        self,
        slot: Slot[Any],
        store: Store,
        owners: Mapping[str, IndexFunc[Any]],
        owner_of: PrimaryOf,
    ) -> tuple[Informer[Any], OwnWrites]:
        changed = self.listeners.changed
        if slot.predicate is not None:
            changed = filtered(changed, slot.predicate)
        own_writes = OwnWrites(changed, self.listeners.undone)

        def listed() -> None:
            self.listeners.listed()
            own_writes.listed()

        keeping = None
        if self.keeps is not None:
            keeping = Keeping(self.keeps, owner_of, index=OWNER_INDEX, derived=owners, quiet=True)
        informer = Informer(
            store,
            store.kind,
            indexes={**slot.indexes, **owners},
            on_invalid=partial(self.listeners.invalid, store.kind),
            on_listed=listed,
            on_appeared=self.listeners.appeared,
            keeping=keeping,
        )
        return informer, own_writes
