"""Holds the objects of a store at one time, by key and by index."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import msgspec

from natsctl.core.cache.index import Index
from natsctl.errors import InvalidObjectError
from natsctl.model.kinds import Kind
from natsctl.model.store import Change, Deleted, IllegalKey, Stored

T = TypeVar("T")


class Invalid(msgspec.Struct, frozen=True):
    """A stored object that does not decode, the error, and the last valid state.

    `illegal` marks a message of the store whose name is not a legal key.
    """

    stored: Stored
    error: InvalidObjectError
    last: Stored | None = None
    illegal: bool = False


class State(Generic[T]):
    """The last valid state of each object, its index values, and the objects that are invalid."""

    def __init__(self, kind: Kind[T], indexes: Mapping[str, Index[T]]) -> None:
        self.kind = kind
        self.objects: dict[str, Stored] = {}
        self.invalid: dict[str, Invalid] = {}
        self.indexes = indexes

    def empty(self) -> "State[T]":
        """Return a state of the same kind and indexes, without objects."""
        return State(self.kind, {name: index.empty() for name, index in self.indexes.items()})

    def put(self, stored: Stored) -> T:
        """Store a valid object and return it; raises `InvalidObjectError` if it does not decode."""
        obj = self.kind.decode(stored.value)
        indexed = [(index, index.values_of(obj)) for index in self.indexes.values()]
        key = stored.key
        self.invalid.pop(key, None)
        self.objects[key] = stored
        for index, values in indexed:
            index.put(key, values)
        return obj

    def shows(self, stored: Stored) -> bool:
        """Return whether the present state is valid, and differs only in the stored version."""
        if self.kind.version == 1 or stored.key in self.invalid:
            return False
        old = self.objects.get(stored.key)
        return old is not None and self.kind.converted(old.value, stored.value)

    def copy(self, key: str, other: "State[T]") -> None:
        """Store the last valid state that *other* has, if any, without decoding it."""
        self.drop(key)
        if key in other.objects:
            self.objects[key] = other.objects[key]
            for name, index in self.indexes.items():
                index.put(key, other.indexes[name].values_at(key))

    def drop(self, key: str) -> Stored | None:
        """Remove the object, and return its last valid state."""
        self.invalid.pop(key, None)
        for index in self.indexes.values():
            index.remove(key)
        return self.objects.pop(key, None)

    def skip(self, event: IllegalKey) -> None:
        """Store or remove a message whose name is not a legal key."""
        if event.exists:
            error = InvalidObjectError("its name is no legal key")
            stored = Stored(event.key, event.revision, b"")
            self.invalid[event.key] = Invalid(stored, error, illegal=True)
        else:
            self.invalid.pop(event.key, None)

    def drain(self) -> Iterator[None]:
        """Remove all objects, one by one, of a state that nothing reads any more.

        Python would free a million objects at once, which stalls the event loop.
        """
        while self.objects:
            self.objects.popitem()
            yield
        for index in self.indexes.values():
            while len(index) or index.values():
                index.drain()
                yield


class NextState(Generic[T]):
    """The state of the store as a listing shows it, which takes effect when the listing ends.

    Args:
        before: the present state, which stays as it is until then.
        incarnation: the incarnation of the store.
    """

    def __init__(self, before: State[T], incarnation: str) -> None:
        self.before = before
        self.after = before.empty()
        self.incarnation = incarnation
        self._changed: dict[str, None] = {}  # keys with another valid state, not just converted
        self._deleted: dict[str, Deleted] = {}

    def put(self, stored: Stored) -> None:
        """Add an object of the listing."""
        key, old = stored.key, self.before.objects.get(stored.key)
        self._deleted.pop(key, None)
        if old is not None and same(old, stored):
            self._keep(key)
            return
        try:
            self.after.put(stored)
            if not self.before.shows(stored):
                self._changed[key] = None
        except InvalidObjectError as error:
            self._keep(key)
            self.after.invalid[key] = Invalid(stored, error, old)

    def remove(self, deleted: Deleted) -> None:
        """Add a delete marker of the listing."""
        self.after.drop(deleted.key)
        self._changed.pop(deleted.key, None)
        self._deleted[deleted.key] = deleted

    def skip(self, event: IllegalKey) -> None:
        """Add an illegal name of the listing."""
        self.after.skip(event)

    def _keep(self, key: str) -> None:
        self.after.copy(key, self.before)
        self._changed.pop(key, None)

    def rejected(self) -> Iterator[Invalid | None]:
        """Return the invalid objects of the listing that were not known, None for others."""
        for key, invalid in self.after.invalid.items():
            known = self.before.invalid.get(key)
            is_known = known is not None and (invalid.illegal or same(known.stored, invalid.stored))
            yield None if is_known else invalid

    def changes(self, *, since: int) -> Iterator[Change[T] | None]:
        """Return what the listing has changed, and empty the state before.

        Objects that it does not contain were deleted. A delete marker of an unknown object is a
        change if it is newer than the revision *since*. None is a step without a change.
        """
        kind, before, after = self.before.kind, self.before, self.after
        for key in self._changed:
            yield Change(kind, key, before.objects.get(key), after.objects[key], initial=True)
        for vanished in self._vanished():
            yield None if vanished is None else self._deletion(vanished)
        for key, deleted in self._deleted.items():
            is_news = deleted.revision > since
            purged = deleted.purged
            yield Change(kind, key, None, None, initial=True, purged=purged) if is_news else None
        yield from before.drain()

    def _deletion(self, key: str) -> Change[T]:
        marker = self._deleted.pop(key, None)
        purged = marker is not None and marker.purged
        return Change(self.before.kind, key, self.before.objects.get(key), None, purged=purged)

    def _vanished(self) -> Iterator[str | None]:
        """Return the keys of the objects that the listing does not contain, None for others."""
        objects, invalid = self.after.objects, self.after.invalid
        for key in self.before.objects:
            yield None if key in objects or key in invalid else key
        for key, rejected in self.before.invalid.items():
            gone = not (key in objects or key in invalid or key in self.before.objects)
            yield key if gone and not rejected.illegal else None


def same(one: Stored, other: Stored) -> bool:
    """Return whether both are the same revision of the same value."""
    return one.revision == other.revision and one.value == other.value
