"""Opens the slots of a controller, and enqueues the owners of secondaries that change."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from natsctl.controller.slots.declare import Slot
from natsctl.controller.slots.kube_secondary import KubeSecondary
from natsctl.controller.slots.owned import OWNER_INDEX, Owned
from natsctl.controller.slots.owners import Owner, OwnerNames
from natsctl.controller.slots.predicates import Forward, filtered
from natsctl.controller.slots.secondary import Secondary
from natsctl.core.backends import Backends
from natsctl.core.coordination.installation import InstallationAnnotation
from natsctl.core.coordination.term import KeyFilter, shares_keys
from natsctl.core.history import SyncHistory
from natsctl.core.informer import Informer
from natsctl.core.loop import KeyQueue
from natsctl.core.readers import CacheReader, Primary, Tertiary
from natsctl.core.table import IndexFunc, Invalid, Keeping, PrimaryOf, is_read, read_state
from natsctl.core.tape import ReadStep
from natsctl.core.workqueue import Operation, Priority
from natsctl.core.writes import Writes
from natsctl.errors import UnreadError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.recorder import EventType
from natsctl.model.store import Change, Store, Stored
from natsctl.slices import in_slices
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")

MapChange = Callable[[Change[Any]], Iterable[str]]
"""Returns the keys of the primaries that a change of a secondary enqueues."""


class Secondaries:
    """The open secondary slots of one controller, in the order of their declaration.

    Args:
        primary: the primaries.
        keys: the queue of the controller.
        history: the history of the controller, for events.
        backends: the systems that store the kinds.
        writes: those that the tables do not show yet.
        names: the labels and annotations that name the owner of an object.
        mark: the annotation of this installation's objects.
        maps: the user's function from changes to keys; None enqueues the owners.
    """

    def __init__(
        self,
        primary: Primary[Any],
        keys: KeyQueue,
        history: SyncHistory,
        *,
        backends: Backends,
        writes: Writes,
        names: OwnerNames,
        mark: InstallationAnnotation,
        maps: MapChange | None = None,
    ) -> None:
        self.owner_kind = primary.kind.name  # as owner labels name it
        self._primary = primary
        self._keys = keys
        self._history = history
        self._backends = backends
        self._writes = writes
        self._names = names
        self._mark = mark
        self._maps = maps
        self.slots: list[Owned[Any]] = []

    def __iter__(self) -> Iterator[Owned[Any]]:
        return iter(self.slots)

    # ---- opening

    async def open(self, slot: Slot[Any]) -> CacheReader[Any]:
        """Open a slot that is not the primary, and return its reader."""
        kind, names, owner_kind = slot.kind, self._names, self.owner_kind
        if slot.role is Tertiary:
            store = await self._backends.open(kind)
            return Tertiary(self._informer(store, slot.indexes), self._writes)
        exists = self._primary.informer.cache.__contains__
        if not isinstance(kind, KubeKind):
            store = await self._backends.open(kind)
            owners = names.index(kind, owner_kind)
            owner_of = names.stored_owner_key(kind, owner_kind)
            informer = self._owned_informer(slot, store, owners, owner_of)
            secondary: Owned[Any] = Secondary(
                informer, self._writes, names, owner_kind, exists=exists
            )
        else:
            part = kind.labelled(names.selector(owner_kind))  # other objects are not watched
            manifests = await self._backends.manifests(part)
            owners, owner_of = self._marked_owners(part), self._marked_owner_of(part)
            informer = self._owned_informer(slot, manifests, owners, owner_of)
            secondary = KubeSecondary(
                informer,
                self._writes,
                names,
                owner_kind,
                manifests=manifests,
                manager=f"natsctl/{self._history.controller}",
                mark=self._mark,
                exists=exists,
                on_immutable=slot.on_immutable,
                sync_later=lambda key, s: self._keys.enqueue(key, Operation.RETRY, after=s),
                report=self._report,
            )
        self.slots.append(secondary)
        return secondary

    def _informer(
        self, store: Store, indexes: Mapping[str, IndexFunc[Any]], **options: Any
    ) -> Informer[Any]:
        listed = self._keys.queue.hasten_retries  # its store may have been lost, and is back
        options = {"on_listed": listed, **options}
        return Informer(
            store, store.kind, indexes=indexes, on_appeared=self._kind_appeared, **options
        )

    def _owned_informer(
        self,
        slot: Slot[Any],
        store: Store,
        owners: IndexFunc[Any],
        owner_of: PrimaryOf,
    ) -> Informer[Any]:
        derived = {OWNER_INDEX: owners}

        def listed() -> None:
            self._keys.queue.hasten_retries()
            self._writes.listed(informer)

        keeping = None
        if shares_keys() and self._maps is None:  # a function of the user may need every value
            keeps = self._keys.keeps
            keeping = Keeping(keeps, owner_of, index=OWNER_INDEX, derived=derived, quiet=True)
        informer = self._informer(
            store,
            {**slot.indexes, **derived},
            on_invalid=lambda invalid: self._invalid(store.kind, invalid),
            on_listed=listed,
            keeping=keeping,
        )
        forward: Forward = self._changed
        if slot.predicate is not None:
            forward = filtered(forward, slot.predicate)
        self._writes.follow(informer, forward, self._enqueue)
        return informer

    def _marked_owners(self, kind: KubeKind[T]) -> IndexFunc[T]:
        """Return the index by owner; it has the objects of this installation."""
        owner, mark = self._names.owner_keys(self.owner_kind), self._mark

        def owned(obj: T) -> Iterable[str]:
            metadata = kind.metadata_of(obj)
            ours = mark.on(metadata) and not mark.foreign(metadata)
            return owner(metadata) if ours else ()

        return owned

    def _marked_owner_of(self, kind: KubeKind[Any]) -> PrimaryOf:
        """Return a function that returns an object's owner if a process may forget the value.

        Each process keeps the value of an object that is being deleted or carries no installation.
        """
        named, mark = self._names.stored_owner_key(kind, self.owner_kind), self._mark

        def owner_of(stored: Stored) -> str | None:
            owner = named(stored)
            if owner is None:
                return None
            metadata = kind.metadata(stored.value)
            plain = mark.on(metadata) and not mark.foreign(metadata)
            return owner if plain and metadata.deletion_timestamp is None else None

        return owner_of

    # ---- owners

    def owners(self, change: Change[Any]) -> list[str]:
        """Return the keys of the primaries that owned the object before or after the change."""
        states = [stored for stored in (change.after, change.before) if stored is not None]
        owners = [self.owner_of(change.kind, stored) for stored in states]
        return list(dict.fromkeys(owner.key for owner in owners if owner and self._may_have(owner)))

    def owner_of(self, kind: Kind[Any], stored: Stored) -> Owner | None:
        """Return the owner of a secondary; None if the object belongs to no primary here.

        An object whose value is not kept belongs to a primary of another process.
        """
        if not is_read(stored):
            return None
        for secondary in self._of_kind(kind):
            owner = secondary.owner_of(stored)
            if not secondary.is_foreign(stored) and self._is_primary(owner):
                return owner
        return None

    def owner_in(self, obj: object) -> Owner | None:
        """Return the owner that a decoded secondary names, as `owner_of` does."""
        for secondary in self.slots:
            if secondary.kind.describes(obj):
                metadata = secondary.kind.metadata_of(obj)
                owner = self._names.owner(metadata)
                if not secondary.foreign_installation(metadata) and self._is_primary(owner):
                    return owner
        return None

    def owned(self, key: str) -> Iterator[tuple[Owned[Any], Stored]]:
        """Return the objects that the primary *key* owns, each with its slot."""
        for secondary in self.slots:
            for stored in secondary.owned_stored(key):
                yield secondary, stored

    def around(self, key: str) -> Iterator[ReadStep]:
        """Yield what the primary *key* owns, and the object of the same key in each slot."""
        for slot in self.slots:
            cache = slot.informer.cache
            for name in {key, *(stored.key for stored in cache.by_index(OWNER_INDEX, key))}:
                yield ReadStep(slot.informer, name, read_state(cache.get(name)))

    def references(self, key: str) -> list[Reference]:
        """Return references to the objects in a cluster that the primary *key* owns."""
        return [reference for slot in self._in_cluster() for reference in slot.references(key)]

    def contests(self) -> dict[str, list[str]]:
        """Return the objects that other writers change back repeatedly, by the owner's key."""
        texts: dict[str, list[str]] = {}
        for slot in self._in_cluster():
            for key, contest in slot.contests.current().items():
                texts.setdefault(contest.owner, []).append(f"{slot.kind.name} {key}: {contest}")
        return texts

    @property
    def undone(self) -> int:
        """The number of times that other writers changed an applied object back."""
        return sum(slot.contests.undone for slot in self._in_cluster())

    def _in_cluster(self) -> list[KubeSecondary[Any]]:
        return [slot for slot in self.slots if isinstance(slot, KubeSecondary)]

    def _of_kind(self, kind: Kind[Any]) -> list[Owned[Any]]:
        """Return the slots of a kind; several slots may have parts of one kind."""
        return [secondary for secondary in self.slots if secondary.kind is kind]

    def _is_primary(self, owner: Owner | None) -> bool:
        return owner is not None and owner.kind == self.owner_kind

    def _may_have(self, owner: Owner) -> bool:
        """Return whether the owner's key may exist in this slot: slots may have parts of a kind."""
        return self._primary.kind.holds(owner.key)

    # ---- changes

    async def enqueue_orphaned(self, gained: KeyFilter) -> None:
        """Enqueue the *gained* owners of secondaries that do not exist."""
        primaries = self._primary.informer.cache
        for secondary in self.slots:
            missing: list[str] = []

            def note(owner: str, missing: list[str] = missing) -> None:
                if owner not in primaries and primaries.kind.holds(owner):
                    missing.append(owner)

            await in_slices(secondary.informer.cache.index_values(OWNER_INDEX), note)
            self._keys.enqueue_all(missing, gained)

    def _changed(self, change: Change[Any], writer: str | None) -> None:
        """Enqueue the keys that the change concerns, but not the *writer*, whose sync made it.

        A change of another installation's object concerns no key, and one of an object whose value
        is not kept concerns a key of another process. A sync creates objects of one key, its own.
        """
        if writer is not None and change.before is None and self._maps is None:
            return
        before, after = change.before, change.after
        has_value = (after is not None and is_read(after)) or (
            is_read(before) if before is not None else after is None
        )
        if not has_value or self._is_foreign(change):
            return
        try:
            keys = self.owners(change) if self._maps is None else list(self._maps(change))
        except UnreadError:  # all keys are enqueued when the values are read
            keys = self.owners(change)
        except (Exception, SystemExit):
            log.exception(
                "handle_secondary failed; enqueuing the owners",
                controller=self._history.controller,
                kind=change.kind.name,
                secondary=change.key,
            )
            keys = self.owners(change)
        priority = Priority.RESYNC if change.initial else Priority.SECONDARY
        for key in keys:
            if key != writer:
                self._keys.enqueue(key, Operation.SECONDARY, priority=priority)

    def _is_foreign(self, change: Change[Any]) -> bool:
        """Return whether the object belongs to another installation, and did before the change."""
        states = [stored for stored in (change.before, change.after) if stored is not None]
        slots = self._of_kind(change.kind)
        return bool(slots and states) and all(
            secondary.is_foreign(stored) for secondary in slots for stored in states
        )

    def _invalid(self, kind: Kind[Any], invalid: Invalid) -> None:
        """Enqueue the owner of an object that was overwritten with an invalid value."""
        if invalid.last is not None:
            owner = self.owner_of(kind, invalid.last)
            if owner is not None and self._may_have(owner):
                self._enqueue(owner.key)

    def _enqueue(self, key: str) -> None:
        """Enqueue a key whose write was undone or overwritten."""
        self._keys.enqueue(key, Operation.SECONDARY)

    def _kind_appeared(self) -> None:
        """Enqueue every primary: it may want objects of the optional kind that exists now."""
        self._keys.enqueue_all(self._primary.informer.cache.read_keys())

    def _report(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Log a message about a key and record it as an event."""
        name = self._history.controller
        level = logging.WARNING if type is EventType.WARNING else logging.INFO
        log.log(level, "recording an event", controller=name, key=key, reason=reason, note=message)
        self._history.event(key, type, reason, message)
