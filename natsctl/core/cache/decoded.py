"""Keeps objects that validation decoded for their first reads, so that none is decoded twice."""

from typing import Generic, TypeVar

from natsctl.model.store import Stored

T = TypeVar("T")

KEPT_MAX = 1_000  # objects; all of them are forgotten when there are more


class DecodedObjects(Generic[T]):
    """Objects that were decoded and not read yet.

    *Guarantees.* Each object is handed out once, because its reader may change it.
    """

    def __init__(self) -> None:
        self._objects: dict[str, tuple[Stored, T]] = {}

    def keep(self, stored: Stored, obj: T) -> None:
        """Keep the object in *stored*, in place of an older state of the same key."""
        if len(self._objects) >= KEPT_MAX:
            self._objects.clear()
        self._objects[stored.key] = stored, obj

    def room(self, count: int) -> dict[str, tuple[Stored, T]]:
        """Return the kept objects by key, each with its state, after making room for more."""
        if len(self._objects) + count > KEPT_MAX:
            self._objects.clear()
        return self._objects

    def take(self, stored: Stored) -> T | None:
        """Return the object in *stored* and forget it; None if it is not kept."""
        kept = self._objects.pop(stored.key, None)
        return kept[1] if kept is not None and kept[0] is stored else None
