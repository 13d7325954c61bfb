"""Opens the slots of a controller, and enqueues the owners of secondaries that change."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from natsctl.controller.kube_secondary import KubeSecondary
from natsctl.controller.owned import OWNER_INDEX, Owned, Secondary, metadata_of
from natsctl.controller.owners import OwnerNames
from natsctl.controller.slots import Predicate, Slot
from natsctl.core.backends import Backends
from natsctl.core.coordination.term import KeyFilter
from natsctl.core.environment import environment
from natsctl.core.history import SyncHistory
from natsctl.core.informer import Informer
from natsctl.core.installation import InstallationAnnotation
from natsctl.core.loop import KeyQueue
from natsctl.core.readers import CacheReader, Tertiary
from natsctl.core.table import Invalid, Keeping, is_read, read_state
from natsctl.core.tape import ReadStep
from natsctl.core.workqueue import Operation, Priority
from natsctl.core.writes import Writes
from natsctl.errors import UnreadError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.objects import Metadata
from natsctl.model.store import Change, EventType, Stored
from natsctl.slices import in_slices
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")

MapChange = Callable[[Change[Any]], Iterable[str]]
"""Returns the keys of the primaries that a change of a secondary enqueues."""


class Secondaries:
    """The open secondary slots of one controller, in the order of their declaration.

    *maps* is the user's function from changes to keys; None enqueues the owners.
    """

    def __init__(
        self,
        keys: KeyQueue,
        history: SyncHistory,
        *,
        backends: Backends,
        writes: Writes,
        names: OwnerNames,
        mark: InstallationAnnotation,
        maps: MapChange | None = None,
    ) -> None:
        self.owner_kind = keys.primary.kind.name  # as owner labels name it
        self._primary = keys.primary
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
        kind, keys = slot.kind, self._keys
        if slot.role is Tertiary:
            informer: Informer[Any] = Informer(
                await self._backends.open(kind),
                kind,
                indexes=slot.indexes,
                on_listed=keys.queue.hasten_retries,  # its store may have been lost, and is back
                on_appeared=self._kind_appeared,
            )
            return Tertiary(informer, self._writes)
        store: Any
        if isinstance(kind, KubeKind):
            kind = kind.labelled(self._names.selector(self.owner_kind))  # no others are watched
            store = await self._backends.manifests(kind)
        else:
            store = await self._backends.open(kind)

        def owners(obj: Any) -> Iterable[str]:
            key = self._owner_key(kind, kind.metadata_of(obj))
            return () if key is None else (key,)

        def owner_of(stored: Stored) -> str | None:
            """Return the owner if a value may be forgotten: not while a cluster deletes it."""
            metadata = metadata_of(kind, stored)
            is_terminating = metadata.deletion_timestamp is not None
            in_cluster = isinstance(kind, KubeKind)
            return None if in_cluster and is_terminating else self._owner_key(kind, metadata)

        def listed() -> None:
            keys.queue.hasten_retries()
            self._writes.listed(informer)

        keeping, sharing = None, environment().sharing
        if sharing and self._maps is None:  # a function of the user may need every value
            keeping = Keeping(sharing.keeps, owner_of, OWNER_INDEX)
        informer = Informer(
            store,
            kind,
            indexes={**slot.indexes, OWNER_INDEX: owners},
            on_invalid=lambda invalid: self._invalid(kind, invalid),
            on_listed=listed,
            on_appeared=self._kind_appeared,
            keeping=keeping,
        )
        undone = partial(keys.enqueue, operation=Operation.SECONDARY)
        self._writes.follow(informer, partial(self._changed, slot.predicate), undone)
        exists = self._primary.informer.table.__contains__
        secondary: Owned[Any]
        if isinstance(kind, KubeKind):
            secondary = KubeSecondary(
                informer,
                self._writes,
                self._names,
                self.owner_kind,
                manifests=store,
                manager=f"natsctl/{self._history.controller}",
                mark=self._mark,
                exists=exists,
                on_immutable=slot.on_immutable,
                sync_later=lambda key, s: keys.enqueue(key, Operation.RETRY, after=s),
                report=self._report,
            )
        else:
            secondary = Secondary(
                informer, self._writes, self._names, self.owner_kind, exists=exists
            )
        self.slots.append(secondary)
        return secondary

    # ---- owners

    def owners(self, change: Change[Any]) -> list[str]:
        """Return the keys of the primaries that owned the object before or after the change."""
        states = [stored for stored in (change.after, change.before) if stored is not None]
        owners = (self._owner_of(change.kind, stored) for stored in states)
        return list(dict.fromkeys(owner for owner in owners if owner is not None))

    def owner_in(self, obj: object) -> str | None:
        """Return the key of the primary here that owns a decoded secondary; None if none does."""
        slots = (slot.kind for slot in self.slots if slot.kind.describes(obj))
        owners = (self._owner_key(kind, kind.metadata_of(obj)) for kind in slots)
        return next((owner for owner in owners if owner is not None), None)

    def _owner_key(self, kind: Kind[Any], metadata: Metadata) -> str | None:
        """Return the key of the primary here that an object names; None if it names none.

        In a cluster, only an object that carries this installation does.
        """
        mark, owner = self._mark, self._names.owner(metadata)
        if isinstance(kind, KubeKind) and (not mark.on(metadata) or mark.foreign(metadata)):
            return None
        return owner.key if owner is not None and owner.kind == self.owner_kind else None

    def _owner_of(self, kind: Kind[Any], stored: Stored) -> str | None:
        """Return the key of the object's owner; None if it can't exist in this slot.

        Slots may have parts of a kind. An object whose value is not kept belongs to a primary of
        another process.
        """
        owner = self._owner_key(kind, metadata_of(kind, stored)) if is_read(stored) else None
        return owner if owner is not None and self._primary.kind.holds(owner) else None

    def owned(self, key: str) -> Iterator[tuple[Owned[Any], Stored]]:
        """Return the objects that the primary *key* owns, each with its slot."""
        for secondary in self.slots:
            for stored in secondary.owned_stored(key):
                yield secondary, stored

    def around(self, key: str) -> Iterator[ReadStep]:
        """Yield what the primary *key* owns, and the object of the same key in each slot."""
        for slot in self.slots:
            table = slot.informer.table
            for name in {key, *(stored.key for stored in table.by_index(OWNER_INDEX, key))}:
                yield ReadStep(slot.informer, name, read_state(table.get(name)))

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

    # ---- changes

    async def enqueue_orphaned(self, gained: KeyFilter) -> None:
        """Enqueue the *gained* owners of secondaries that do not exist."""
        primaries = self._primary.informer.table
        for secondary in self.slots:
            missing: list[str] = []

            def note(owner: str, missing: list[str] = missing) -> None:
                if owner not in primaries and primaries.kind.holds(owner):
                    missing.append(owner)

            await in_slices(secondary.informer.table.index_values(OWNER_INDEX), note)
            self._keys.enqueue_all(missing, gained)

    def _changed(
        self, predicate: Predicate | None, change: Change[Any], writer: str | None
    ) -> None:
        """Enqueue the keys that the change concerns, but not the *writer*, whose sync made it.

        A change of another installation's object concerns no key. A sync creates objects of one
        key, its own.
        """
        if writer is not None and change.before is None and self._maps is None:
            return
        kind, foreign = change.kind, self._mark.foreign
        states = [stored for stored in (change.before, change.after) if stored is not None]
        known = [stored for stored in states if is_read(stored)]
        in_cluster = isinstance(kind, KubeKind)
        if states and in_cluster and all(foreign(metadata_of(kind, it)) for it in states):
            return
        if predicate is not None and len(known) == len(states) and not _matches(predicate, change):
            return
        try:
            keys = self.owners(change) if self._maps is None else list(self._maps(change))
        except UnreadError:  # all keys are enqueued when the values are read
            keys = self.owners(change)
        except (Exception, SystemExit):
            log.exception(
                "handle_secondary failed; enqueuing the owners",
                controller=self._history.controller,
                kind=kind.name,
                secondary=change.key,
            )
            keys = self.owners(change)
        priority = Priority.RESYNC if change.initial else Priority.SECONDARY
        for key in keys:
            if key != writer:
                self._keys.enqueue(key, Operation.SECONDARY, priority=priority)

    def _invalid(self, kind: Kind[Any], invalid: Invalid) -> None:
        """Enqueue the owner of an object that was overwritten with an invalid value."""
        owner = None if invalid.last is None else self._owner_of(kind, invalid.last)
        if owner is not None:
            self._keys.enqueue(owner, Operation.SECONDARY)

    def _kind_appeared(self) -> None:
        """Enqueue every primary: it may want objects of the optional kind that exists now."""
        self._keys.enqueue_all(self._primary.informer.table.read_keys())

    def _report(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Log a message about a key and record it as an event."""
        name = self._history.controller
        level = logging.WARNING if type is EventType.WARNING else logging.INFO
        log.log(level, "recording an event", controller=name, key=key, reason=reason, note=message)
        self._history.event(key, type, reason, message)


def _matches(predicate: Predicate, change: Change[Any]) -> bool:
    """Return whether the predicate is true; if it raises, the error is logged."""
    try:
        return predicate(change)
    except (Exception, SystemExit):
        log.exception(
            "a predicate failed; enqueuing the owner", kind=change.kind.name, key=change.key
        )
        return True
