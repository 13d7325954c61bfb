"""Finds the owners of secondaries, and the secondaries of an owner, in all slots."""

from collections.abc import Iterator
from typing import Any

import msgspec

from natsctl.controller.slots.kube_secondary import KubeSecondary
from natsctl.controller.slots.owned import OWNER_INDEX, Owned
from natsctl.controller.slots.owners import Owner, OwnerNames
from natsctl.core.table import is_read, read_state
from natsctl.core.tape import ReadStep
from natsctl.model.kinds import Kind
from natsctl.model.manifests import Reference
from natsctl.model.store import Change, Stored


class Secondaries(msgspec.Struct, frozen=True, eq=False):
    """The open secondary slots of one controller, in the order of their declaration."""

    owner_kind: str  # the primary's kind, as owner labels name it
    names: OwnerNames
    _slots: list[Owned[Any]] = []

    def __iter__(self) -> Iterator[Owned[Any]]:
        return iter(self._slots)

    def add(self, secondary: Owned[Any]) -> None:
        """Add a slot."""
        self._slots.append(secondary)

    def of_kind(self, kind: Kind[Any]) -> list[Owned[Any]]:
        """Return the slots of a kind; several slots may have parts of one kind."""
        return [secondary for secondary in self._slots if secondary.kind is kind]

    def owner_of(self, kind: Kind[Any], stored: Stored) -> Owner | None:
        """Return the owner of a secondary; None if the object belongs to no primary here.

        An object whose value is not kept belongs to a primary of another process.
        """
        if not is_read(stored):
            return None
        for secondary in self.of_kind(kind):
            owner = secondary.owner_of(stored)
            if not secondary.is_foreign(stored) and self._is_primary(owner):
                return owner
        return None

    def owner_in(self, obj: object) -> Owner | None:
        """Return the owner that a decoded secondary names, as `owner_of` does."""
        for secondary in self._slots:
            if secondary.kind.describes(obj):
                metadata = secondary.kind.metadata_of(obj)
                owner = self.names.owner(metadata)
                if not secondary.foreign_installation(metadata) and self._is_primary(owner):
                    return owner
        return None

    def is_foreign(self, change: Change[Any]) -> bool:
        """Return whether the object belongs to another installation, and did before the change."""
        states = [stored for stored in (change.before, change.after) if stored is not None]
        slots = self.of_kind(change.kind)
        return bool(slots and states) and all(
            secondary.is_foreign(stored) for secondary in slots for stored in states
        )

    def owned(self, key: str) -> Iterator[tuple[Owned[Any], Stored]]:
        """Return the objects that the primary *key* owns, each with its slot."""
        for secondary in self._slots:
            for stored in secondary.owned_stored(key):
                yield secondary, stored

    def around(self, key: str) -> Iterator[ReadStep]:
        """Yield what the primary *key* owns, and the object of the same key in each slot."""
        for slot in self._slots:
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
        return [slot for slot in self._slots if isinstance(slot, KubeSecondary)]

    def _is_primary(self, owner: Owner | None) -> bool:
        return owner is not None and owner.kind == self.owner_kind
