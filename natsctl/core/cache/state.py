"""Holds the objects of a store at one time, by key and by index."""

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Generic, TypeVar

import msgspec

from natsctl.core.cache.index import Index
from natsctl.core.cache.keeping import Keeping
from natsctl.core.cache.packed_keys import PackedKeys
from natsctl.errors import InvalidObjectError
from natsctl.model.kinds import Kind
from natsctl.model.store import Change, Deleted, IllegalKey, Stored
from natsctl.split_dict import SplitDict

T = TypeVar("T")


class Invalid(msgspec.Struct, frozen=True):
    """A stored object that does not decode, the error, and the last valid state.

    `illegal` marks a message of the store whose name is not a legal key.
    """

    stored: Stored
    error: InvalidObjectError
    last: Stored | None = None
    illegal: bool = False


class Unread(Stored, frozen=True, gc=False):
    """An object whose value this process does not keep; `value` is empty.

    Another process syncs the key of its primary. The value may be invalid.
    """


class State(Collection[str], Generic[T]):
    """The last valid state of each object, its index values, and the objects that are invalid.

    As a collection, it is a live view of the keys of the objects that have a last valid state, or
    one that is not kept.

    An object whose value is not kept is neither stored nor decoded: `unread` has its key and its
    revision, and only the index by its primary contains it. `objects` has all others.

    Args:
        kind: the kind of the objects.
        indexes: the indexes by name.
        keeping: decides which values are kept; None keeps all.
    """

    def __init__(
        self, kind: Kind[T], indexes: Mapping[str, Index[T]], keeping: Keeping | None = None
    ) -> None:
        self.kind = kind
        self.keeping = keeping
        self._primary_index = "" if keeping is None else keeping.index
        self.objects = SplitDict[Stored]()
        self.unread = PackedKeys()
        self.invalid: dict[str, Invalid] = {}
        self.rejected: dict[str, None] = {}  # of the invalid objects, those without a last state
        self.indexes = indexes

    def __len__(self) -> int:
        return len(self.objects) + len(self.unread)

    def __contains__(self, key: object) -> bool:
        return key in self.objects or (isinstance(key, str) and key in self.unread)

    def __iter__(self) -> Iterator[str]:
        return chain(self.objects, self.unread)

    def get(self, key: str) -> Stored | None:
        """Return the last valid state of the object, as an `Unread` if its value is not kept."""
        stored = self.objects.get(key)
        if stored is None:
            revision = self.unread.get(key)
            return None if revision is None else Unread(key, revision, b"")
        return stored

    def empty(self) -> "State[T]":
        """Return a state of the same kind and indexes, without objects."""
        indexes = {name: index.empty() for name, index in self.indexes.items()}
        return State(self.kind, indexes, self.keeping)

    def has(self, stored: Stored) -> bool:
        """Return whether the last valid state is this one, as far as its value is kept."""
        known = self.get(stored.key)
        if known is None or known.revision != stored.revision:
            return False
        if is_read(known):
            return known.value == stored.value
        primary = self.other_primary(stored)
        return primary is not None and primary == self.primary_of(stored.key)

    def put(self, stored: Stored) -> T | None:
        """Store a valid object and return it, or None if its value is not kept.

        Raises `InvalidObjectError` if the value is kept and does not decode.
        """
        if self.keeping is not None:
            primary = self.other_primary(stored)
            if primary is not None:
                self.put_unread(stored, primary)
                return None
        obj = self.kind.decode(stored.value)
        key = stored.key
        if self.indexes:
            indexed = [(index, index.values_of(obj)) for index in self.indexes.values()]
            for index, values in indexed:
                index.put(key, values)
        if self.invalid:
            self._forget_invalid(key)
        self.objects[key] = stored
        if self.keeping is not None:
            self.unread.remove(key)
        return obj

    def shows(self, stored: Stored) -> bool:
        """Return whether the present state is valid, and differs only in the stored version."""
        if self.kind.version == 1 or stored.key in self.invalid:
            return False
        old = self.objects.get(stored.key)
        return old is not None and self.kind.converted(old.value, stored.value)

    def put_unread(self, stored: Stored, primary: str) -> None:
        """Store the key, the revision and the primary of an object, without its value."""
        key = stored.key
        if self.invalid:
            self._forget_invalid(key)
        for name, index in self.indexes.items():
            index.put(key, (primary,) if name == self._primary_index else ())
        self.objects.pop(key)
        self.unread.put(key, stored.revision)

    def renew(self, stored: Stored) -> bool:
        """Take over the revision of an object whose value is not kept, and will not be now.

        Returns False, and does nothing, if that is not certain without asking *keeping*.
        """
        return self._stays_unread(stored) and self.unread.replace(stored.key, stored.revision)

    def _stays_unread(self, stored: Stored) -> bool:
        """Return whether an unread object stays so: no key has come to this process since."""
        keeping = self.keeping
        if keeping is None or not keeping.settled or stored.key in self.objects:
            return False
        primary = keeping.primary_of(stored)
        return primary is not None and primary == self.primary_of(stored.key)

    def other_primary(self, stored: Stored) -> str | None:
        """Return the primary of an object whose value is not kept; None if the value is kept."""
        keeping = self.keeping
        if keeping is None:
            return None
        if self._stays_unread(stored) and stored.key in self.unread:
            return self.primary_of(stored.key)
        return keeping.other_primary(stored)

    def primary_of(self, key: str) -> str | None:
        """Return the primary that the cached object belongs to; None if that is not known."""
        if not self._primary_index:
            return key
        return next(iter(self.indexes[self._primary_index].values_at(key)), None)

    def of_primary(self, primary: str) -> Collection[str]:
        """Return the keys of the cached objects that belong to the primary."""
        if not self._primary_index:
            return (primary,)
        return self.indexes[self._primary_index].keys(primary)

    def fill(self, stored: Stored) -> Invalid | bool:
        """Add the value of an unread object of this revision, and return whether it was added.

        Returns the invalid object if the value does not decode.
        """
        if self.unread.get(stored.key) != stored.revision:
            return False
        try:
            return self.put(stored) is not None
        except InvalidObjectError as error:
            invalid = Invalid(stored, error)
            self.reject(invalid)
            return invalid

    def reject(self, invalid: Invalid) -> None:
        """Store an invalid object; its last valid state stays if it was read."""
        key = invalid.stored.key
        self._forget_invalid(key)
        self.invalid[key] = invalid
        if invalid.last is None:
            self.rejected[key] = None
            self.objects.pop(key)
            self.unread.remove(key)
            for index in self.indexes.values():
                index.remove(key)

    def copy(self, key: str, source: "State[T]") -> None:
        """Store the last valid state that *source* has, if any, without decoding it."""
        self.drop(key)
        last_valid = source.get(key)
        if last_valid is not None:
            if is_read(last_valid):
                self.objects[key] = last_valid
            else:
                self.unread.put(key, last_valid.revision)
            for name, index in self.indexes.items():
                index.put(key, source.indexes[name].values_at(key))

    def drop(self, key: str) -> Stored | None:
        """Remove the object, and return its last valid state."""
        self._forget_invalid(key)
        for index in self.indexes.values():
            index.remove(key)
        last = self.objects.pop(key)
        if last is None and self.unread:
            last = self.get(key)
            self.unread.remove(key)
        return last

    def _forget_invalid(self, key: str) -> None:
        self.invalid.pop(key, None)
        self.rejected.pop(key, None)

    def skip(self, event: IllegalKey) -> None:
        """Store or remove a message whose name is not a legal key."""
        if event.exists:
            error = InvalidObjectError("its name is no legal key")
            stored = Stored(event.key, event.revision, b"")
            self.invalid[event.key] = Invalid(stored, error, illegal=True)
        else:
            self.invalid.pop(event.key, None)

    def drain(self) -> Iterator[None]:
        """Remove all objects, a few at a time, of a state that nothing reads any more."""
        yield from self.objects.drain()
        while self.unread:
            self.unread.drain()
            yield
        for index in self.indexes.values():
            yield from index.drain()


class NextState(Generic[T]):
    """The state of the store as a listing shows it, which takes effect when the listing ends.

    Args:
        before: the present state, which stays as it is until then.
        incarnation: the incarnation of the store.

    `deleted` has the delete markers of the listing.
    """

    def __init__(self, before: State[T], incarnation: str) -> None:
        self.before = before
        self.after = before.empty()
        self.incarnation = incarnation
        self._first = not len(before)  # all objects are new, so that no key is noted
        self._changed = SplitDict[None]()  # keys with another valid state, not just converted
        self.deleted: dict[str, Deleted] = {}

    def put(self, stored: Stored) -> None:
        """Add an object of the listing."""
        key = stored.key
        old = None if self._first else self.before.get(key)
        if self.deleted:
            self.deleted.pop(key, None)
        if old is not None and self.before.has(stored):
            self._keep_former_state(key)
            return
        try:
            self.after.put(stored)
            if not self._first and not self.before.shows(stored):
                self._changed[key] = None
        except InvalidObjectError as error:
            self._keep_former_state(key)
            self.after.reject(Invalid(stored, error, read_state(old)))

    def remove(self, deleted: Deleted) -> None:
        """Add a delete marker of the listing."""
        self.after.drop(deleted.key)
        self._changed.pop(deleted.key)
        self.deleted[deleted.key] = deleted

    def skip(self, event: IllegalKey) -> None:
        """Add an illegal name of the listing."""
        self.after.skip(event)

    def _keep_former_state(self, key: str) -> None:
        self.after.copy(key, self.before)
        self._changed.pop(key)

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
        is_quiet = self.after.keeping is not None and self.after.keeping.quiet
        applied = self._first_changes if self._first else self._changes_of_known
        return chain(applied(is_quiet=is_quiet), self._deletions(since), self.before.drain())

    def _first_changes(self, *, is_quiet: bool) -> Iterator[Change[T]]:
        """Return the changes of a listing if no object was known before."""
        kind, after = self.before.kind, self.after
        unread = () if is_quiet else filter(None, map(after.get, after.unread))
        for new in chain(after.objects.each_value(), unread):
            yield Change(kind, new.key, None, new, initial=True)

    def _changes_of_known(self, *, is_quiet: bool) -> Iterator[Change[T] | None]:
        kind, before, after = self.before.kind, self.before, self.after
        for key in self._changed:
            old, new = before.get(key), after.get(key)
            if new is None or (is_quiet and read_state(new) is read_state(old) is None):
                yield None
            else:
                yield Change(kind, key, old, new, initial=True)

    def _deletions(self, since: int) -> Iterator[Change[T] | None]:
        kind = self.before.kind
        for vanished in self._vanished_keys():
            yield None if vanished is None else self._deletion(vanished)
        for key, deleted in self.deleted.items():
            is_news = deleted.revision > since
            purged = deleted.purged
            yield Change(kind, key, None, None, initial=True, purged=purged) if is_news else None

    def _deletion(self, key: str) -> Change[T]:
        marker = self.deleted.pop(key, None)
        purged = marker is not None and marker.purged
        return Change(self.before.kind, key, self.before.get(key), None, purged=purged)

    def _vanished_keys(self) -> Iterator[str | None]:
        """Return the keys of the objects that the listing does not contain, None for others."""
        after, invalid = self.after, self.after.invalid
        for key in self.before:
            yield None if key in after or key in invalid else key
        for key, rejected in self.before.invalid.items():
            has_vanished = not (key in after or key in invalid or key in self.before)
            yield key if has_vanished and not rejected.illegal else None


def is_read(stored: Stored) -> bool:
    """Return whether the value of the object is kept."""
    return type(stored) is not Unread


def read_state(stored: Stored | None) -> Stored | None:
    """Return the object if its value is kept, else None."""
    return None if type(stored) is Unread else stored


def same(first: Stored, second: Stored) -> bool:
    """Return whether both are the same revision of the same value."""
    return first.revision == second.revision and first.value == second.value
