"""The objects of one store as last seen, by key and by index."""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.errors import InvalidObjectError
from natsctl.model.kinds import Kind
from natsctl.model.store import (
    Applied,
    Batch,
    Change,
    Deleted,
    IllegalKey,
    Listed,
    Listing,
    Stored,
    WatchEvent,
)
from natsctl.split_dict import CurrentKeys, SplitDict

T = TypeVar("T")
IndexFunc = Callable[[T], Iterable[str]]


class Index(Generic[T]):
    """The keys of objects by their values.

    To save memory, a value of one key takes no set, and a key of one value takes no tuple.
    """

    def __init__(self, name: str, func: IndexFunc[T]) -> None:
        self._name = name
        self._func = func
        self._keys = SplitDict[str | set[str]]()  # one key, or several
        self._values = SplitDict[str | tuple[str, ...]]()  # one value, or several

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def empty(self) -> "Index[T]":
        """Return an index of the same name and function, without keys."""
        return Index(self._name, self._func)

    def keys(self, value: str) -> Collection[str]:
        """Return the keys of the objects with this value."""
        keys = self._keys.get(value, ())
        return (keys,) if isinstance(keys, str) else keys

    def values(self) -> SplitDict[str | set[str]]:
        """Return all values; a live view."""
        return self._keys

    def values_at(self, key: str) -> tuple[str, ...]:
        """Return the values of the object at *key*."""
        values = self._values.get(key, ())
        return (values,) if isinstance(values, str) else values

    def values_of(self, obj: T) -> tuple[str, ...]:
        """Return the object's values; raises `InvalidObjectError` if the function fails."""
        try:
            return tuple(dict.fromkeys(self._func(obj)))
        except (Exception, SystemExit) as error:  # the function is a user's
            raise InvalidObjectError(f"index {self._name} fails: {error!r}") from error

    def put(self, key: str, values: tuple[str, ...]) -> None:
        """Replace the values of the object at *key*."""
        before = self.values_at(key)
        if values == before:
            return
        if before:
            self.remove(key)
        if len(values) == 1 and isinstance(values[0], str):
            value = key if values[0] == key else values[0]  # one text, if both are equal
            self._values[key], values = value, (value,)
        elif values:
            self._values[key] = values
        for value in values:
            keys = self._keys.get(value)
            if keys is None:
                self._keys[value] = key
            elif isinstance(keys, set):
                keys.add(key)
            elif keys != key:
                self._keys[value] = {keys, key}

    def remove(self, key: str) -> None:
        """Remove the values of the object at *key*."""
        values = self.values_at(key)
        self._values.pop(key)
        for value in values:
            keys = self._keys[value]
            if isinstance(keys, set) and len(keys) > 1:
                keys.discard(key)
            else:
                self._keys.pop(value)

    def drain(self) -> Iterator[None]:
        """Remove the objects and values, one by one, of an index that nothing reads any more."""
        yield from self._values.drain()
        yield from self._keys.drain()


Keeps = Callable[[str], bool]
"""Returns whether this process needs the objects of the primary with this key."""

PrimaryOf = Callable[[Stored], str | None]
"""Returns the primary that an object belongs to; None if every process keeps the value."""


def itself(stored: Stored) -> str | None:
    """Return the key of an object that is a primary."""
    return stored.key


class Keeping:
    """Decides which values a cache keeps.

    `wants_all` is set when somebody reads a value that is not kept; then every value is kept.
    `settled` is True if the value of every cached object that is kept now has been read.

    Args:
        keeps: returns whether this process needs the objects of a primary.
        primary_of: returns the primary of an object, from its value.
        index: the index of the cached objects by their primary; empty for primaries.
        derived: the indexes that have no values for an object that is not kept.
        quiet: report no change of an object whose value is kept neither before nor after.
    """

    def __init__(
        self,
        keeps: Keeps,
        primary_of: PrimaryOf = itself,
        *,
        index: str = "",
        derived: Collection[str] = (),
        quiet: bool = False,
    ) -> None:
        self.wants_all = asyncio.Event()
        self.settled = False
        self.quiet = quiet
        self.index = index
        self.indexes = frozenset({index, *derived})
        self._keeps = keeps
        self.primary_of = primary_of

    def keeps(self, primary: str) -> bool:
        """Return whether this process keeps the objects of the primary."""
        return self._keeps(primary) or self.wants_all.is_set()

    def other_primary(self, stored: Stored) -> str | None:
        """Return the primary of an object whose value is not kept; None if the value is kept."""
        primary = self.primary_of(stored)
        return None if primary is None or self.keeps(primary) else primary


_CHUNKS = 1 << 16  # few keys in each, so that a chunk is searched and copied as fast as a struct


_KEY, _REVISION = b"\xff", b"\xfe"  # precede both in an entry; UTF-8 has neither byte


class PackedKeys:
    """The keys of objects, each with its revision.

    A million keys take about 15 bytes each beside their texts; a table of structs takes 180. The
    keys are divided by their hashes among byte strings, which Python searches fast.

    Keys may be added and removed while the keys are iterated; every other key is returned once.

    Args:
        size: the number of byte strings.
    """

    def __init__(self, size: int = _CHUNKS) -> None:
        self._size = size
        self._chunks: list[bytes] = []  # none before the first key
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        return self._count > 0 and _name(key) in self._chunks[hash(key) % self._size]

    def __iter__(self) -> Iterator[str]:
        for chunk in filter(None, self._chunks):  # almost all are empty if there are few keys
            for entry in chunk.split(_KEY)[1:]:
                yield entry[: entry.index(_REVISION)].decode()

    def get(self, key: str) -> int | None:
        """Return the revision of the key, None if the key is not there."""
        if not self._count:
            return None
        chunk = self._chunks[hash(key) % self._size]
        begin, end = _revision(chunk, _name(key))
        return int(chunk[begin:end]) if begin else None

    def put(self, key: str, revision: int) -> None:
        """Add the key, or replace its revision."""
        if not self.replace(key, revision):
            if not self._chunks:
                self._chunks = [b""] * self._size
            self._chunks[hash(key) % self._size] += b"%b%d" % (_name(key), revision)
            self._count += 1

    def replace(self, key: str, revision: int) -> bool:
        """Replace the revision of the key, and return whether the key is there."""
        if not self._count:
            return False
        number = hash(key) % self._size
        chunk = self._chunks[number]
        begin, end = _revision(chunk, _name(key))
        if begin:
            self._chunks[number] = b"%b%d%b" % (chunk[:begin], revision, chunk[end:])
        return begin > 0

    def remove(self, key: str) -> None:
        """Remove the key, if it is there."""
        if not self._count:
            return
        number, name = hash(key) % self._size, _name(key)
        chunk = self._chunks[number]
        begin, end = _revision(chunk, name)
        if begin:
            self._chunks[number] = chunk[: begin - len(name)] + chunk[end:]
            self._count -= 1

    def drain(self) -> None:
        """Remove some of the keys, so few that other tasks wait for a short time only."""
        while self._count:
            if chunk := self._chunks.pop():
                self._count -= chunk.count(_KEY)
                break
        if not self._count:
            self._chunks = []  # the empty ones too


def _name(key: str) -> bytes:
    """Return the bytes that precede the revision of the key."""
    return b"\xff%b\xfe" % key.encode()


def _revision(chunk: bytes, name: bytes) -> tuple[int, int]:
    """Return where the revision after *name* begins and ends; zeros if there is none."""
    position = chunk.find(name)
    if position < 0:
        return 0, 0
    begin = position + len(name)
    end = chunk.find(_KEY, begin)
    return begin, len(chunk) if end < 0 else end


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
            self.forget_invalid(key)
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
            self.forget_invalid(key)
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
        self.forget_invalid(key)
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
        self.forget_invalid(key)
        for index in self.indexes.values():
            index.remove(key)
        last = self.objects.pop(key)
        if last is None and self.unread:
            last = self.get(key)
            self.unread.remove(key)
        return last

    def forget_invalid(self, key: str) -> None:
        """Forget that the newest state of the object was invalid."""
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

    def put_all(self, states: Sequence[Stored]) -> None:
        """Add objects of the listing."""
        after, decode = self.after, self.before.kind.decoder
        if not self._first or decode is None or after.keeping or after.indexes or self.deleted:
            for stored in states:
                self.put(stored)
            return
        valid: dict[str, Stored] = {}
        for stored in states:  # as `put` does, without calls per object
            try:
                decode(stored.value)
            except Exception:  # noqa: BLE001 - found again, and reported
                valid.pop(stored.key, None)
                self.put(stored)
            else:
                valid[stored.key] = stored
        if after.invalid:
            for key in valid:
                after.forget_invalid(key)
        after.objects.put_all(valid)

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
        for part in after.objects.parts:
            for new in tuple(part.values()):
                yield Change(kind, new.key, None, new, True)
        for new in unread:
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


KEPT_MAX = 1_000  # objects; all of them are forgotten when there are more


DELETED_MAX = 100_000  # deletions that are noted until this process has its first keys


def _ignore(_invalid: Invalid) -> None:
    """Ignore invalid objects."""


def _do_nothing() -> None:
    """Do nothing."""


class Cache(Generic[T]):
    """The objects of one store, updated by watch events.

    *Guarantees.* A listing takes effect at its end, all of it at once; until then, reads return the
    state before it. If an object does not decode, reads return its last valid state, `invalid` has
    the object, and *on_invalid* is called once per revision. An object that was stored as another
    version of its type, and is otherwise the same, is not a change. An event takes little time, no
    matter how many objects there are: the next state is built while the listing arrives.

    Of an object whose value *keeping* does not keep, the cache has only the key, the revision and
    the primary, as an `Unread`, and does not decode it. A cache with other indexes than those of
    *keeping* keeps every value. With *notes_deleted*, `take_deleted` returns the deleted keys.
    """

    def __init__(
        self,
        kind: Kind[T],
        indexes: Mapping[str, IndexFunc[T]] | None = None,
        on_invalid: Callable[[Invalid], None] = _ignore,
        *,
        keeping: Keeping | None = None,
        notes_deleted: bool = False,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()  # set after the first complete list
        self.incarnation = ""
        self.revision = 0  # the state includes every write up to this one
        self.since = 0  # the revision of the first listing in this incarnation
        by_name = {name: Index(name, func) for name, func in (indexes or {}).items()}
        if keeping is not None and not keeping.indexes.issuperset(by_name):
            keeping = None
        self._keeping = keeping
        self._is_quiet = keeping is not None and keeping.quiet
        self.partial = keeping is not None  # whether values can be missing
        self.wants_all = asyncio.Event() if keeping is None else keeping.wants_all
        self._take_over(State(kind, by_name, keeping))
        self.shown = _ShownKeys(self._state)
        self._listing: NextState[T] | None = None
        self._deleted: dict[str, Deleted] | None = {} if notes_deleted else None
        self.decoded: dict[str, tuple[Stored, T]] = {}
        """Objects that validation has decoded and nobody has read, each with its state.

        Each is handed out once, because its reader may change it. At `KEPT_MAX` all are forgotten.
        """
        self._on_invalid = on_invalid
        self.before_fewer: Callable[[], None] = _do_nothing
        """Called before an event may lower the number of objects."""
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._key_waiters: dict[str, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, key: str) -> bool:
        """Return whether the object exists, valid or not."""
        return key in self._state or key in self._state.invalid

    def decode(self, stored: Stored) -> T:
        """Return the object in a state of this kind as a value that nothing else holds."""
        kept = self.decoded.pop(stored.key, None)
        return kept[1] if kept and kept[0] is stored else self.kind.decode(stored.value)

    def _take_over(self, state: State[T]) -> None:
        self._state = state
        self.get: Callable[[str], Stored | None] = state.get if self.partial else state.objects.get
        """Returns the last valid state of an object, None if it has none."""
        self.invalid: Mapping[str, Invalid] = state.invalid
        """The objects whose newest state is invalid, by key; a view until the next listing."""

    def unread(self, wanted: Keeps) -> Iterator[str | None]:
        """Return the objects of the *wanted* primaries whose values are missing, also in a listing.

        Yields their keys, and None for each other such object. Other tasks may run in between.
        """
        states = [self._state] if self._listing is None else [self._state, self._listing.after]
        for state in states:
            for key in state.unread:
                primary = state.primary_of(key)
                yield key if primary is not None and wanted(primary) else None

    def fill(self, stored: Stored) -> Change[T] | None:
        """Add the value of an object that was read from the store, if its revision is cached.

        Returns the change from no object to this one if the value was added. Call this and
        `release` only while no changes of an event are left to take.
        """
        self.before_fewer()  # the value may be invalid
        if self._listing is not None:
            self._listing.after.fill(stored)
        match self._state.fill(stored):
            case Invalid() as invalid:
                self._on_invalid(invalid)
            case True:
                return Change(self.kind, stored.key, None, stored, initial=True)
            case False:
                pass
        return None

    def release(self, key: str) -> None:
        """Forget the value of the object, unless it is kept."""
        newest, invalid, state = self.newest(key), self._state.invalid.get(key), self._state
        is_illegal = invalid is not None and invalid.illegal
        if self._keeping is None or newest is None or is_illegal or not is_read(newest):
            return
        primary = state.primary_of(key)
        if primary is not None and self._keeping.keeps(primary):
            return
        primary = self._keeping.other_primary(newest)
        if primary is not None:
            state.put_unread(newest, primary)

    @property
    def divided(self) -> bool:
        """True if this process keeps the values of its assigned keys and no others."""
        return self.partial and not self.wants_all.is_set()

    def settle_kept(self, *, settled: bool) -> None:
        """Note whether the value of every cached object that is kept has been read."""
        if self._keeping is not None:
            self._keeping.settled = settled

    def want_all(self) -> None:
        """Keep every value from now on, because somebody reads objects of other processes."""
        self.settle_kept(settled=False)
        self.wants_all.set()

    def take_deleted(self) -> Collection[str] | None:
        """Return the keys whose deletions were seen since the start, and note no later ones.

        A key may exist again. Returns None if the deletions are not known.
        """
        deleted, self._deleted = self._deleted, None
        return None if deleted is None else deleted.keys()

    def belongs_to(self, primary: str, key: str) -> bool:
        """Return whether the object belongs to the primary, as far as values are not kept."""
        return self._state.primary_of(key) == primary

    def of_primary(self, primary: str) -> Collection[str]:
        """Return the keys of the cached objects that belong to the primary."""
        return self._state.of_primary(primary)

    def newest(self, key: str) -> Stored | None:
        """Return the newest state of the object, valid or not, None if it does not exist."""
        invalid = self._state.invalid.get(key)
        return self.get(key) if invalid is None else invalid.stored

    def keys(self) -> Collection[str]:
        """Return the keys of all objects that have a valid state; a live view.

        Other tasks may run during an iteration, until the next listing.
        """
        return self._state if self.partial else self.read_keys()

    def read_keys(self) -> CurrentKeys:
        """Return those of `keys` whose values are kept; a live view, also after a listing."""
        return CurrentKeys(lambda: self._state.objects)

    def by_index(self, index: str, value: str) -> list[Stored]:
        """Return the objects with *value* in the named index, sorted by key."""
        indexed = map(self.get, sorted(self._state.indexes[index].keys(value)))
        return [stored for stored in indexed if stored is not None]

    def index_of(self, index: str, obj: T) -> Collection[str]:
        """Return the values of *obj* in the named index; *obj* need not be cached."""
        return self._state.indexes[index].values_of(obj)

    def index_values(self, index: str) -> CurrentKeys:
        """Return all values of the named index; a live view, as `keys` is."""
        return CurrentKeys(lambda: self._state.indexes[index].values())  # noqa: PLW0108 - a listing replaces the state

    def indexed(self, index: str) -> int:
        """Return the number of objects with any value in the named index."""
        return len(self._state.indexes[index])

    def unindexed(self, index: str) -> Iterator[str | None]:
        """Return the objects, valid or not, without a value in the named index.

        Yields their keys, and None for each other object. Other tasks may run in between.
        """
        for key in chain(self.keys(), tuple(self._state.invalid)):
            yield None if key in self._state.indexes[index] else key

    def apply(self, event: WatchEvent) -> Iterable[Change[T] | None]:
        """Apply one event, and return the changes that it makes.

        The event has taken effect when this returns. The changes of a listing are found one by one,
        as the caller takes them, so that other tasks can run in between; None is a step without a
        change. Take all changes before the next event.
        """
        listing = self._listing
        match event:
            case Applied():
                return self.put((event.stored,))
            case Batch():
                return self.put(event.states)
            case Deleted():
                if listing is None:
                    return self._remove(event)
                listing.remove(event)
            case IllegalKey():
                if listing is None:
                    self._reject_illegal(event)
                else:
                    listing.skip(event)
            case Listing():
                self._listing = NextState(self._state, event.incarnation)
                self.shown.state = self._listing.after
                return () if listing is None else listing.after.drain()
            case Listed():
                return self._end_listing(event.revision)
        return ()

    def put(  # noqa: C901, PLR0912 - one straight line
        self, states: Sequence[Stored]
    ) -> list[Change[T]]:
        """Apply states of objects, as `apply` does; return the changes, none during a listing."""
        changes: list[Change[T]] = []
        state, listing = self._state, self._listing
        if listing is not None:
            listing.put_all(states)
            return changes
        kind, decode = self.kind, self.kind.decoder
        if decode is None or state.keeping is not None or state.indexes or self._key_waiters:
            for stored in states:
                change = self._fold(stored)
                if change is not None:
                    changes.append(change)
            self._reach(states[-1].revision)
            return changes
        objects, invalid, kept = state.objects, state.invalid, self.decoded
        if len(kept) + len(states) > KEPT_MAX:
            kept.clear()
        parts = objects.parts
        for stored in states:  # as `_fold` does, without a call per state
            key = stored.key
            part = parts[hash(key) % len(parts)]
            old = part.get(key)
            try:
                if invalid or (old is not None and old.revision == stored.revision):
                    raise InvalidObjectError("not simply a newer state")  # noqa: TRY301 - rare
                obj = decode(stored.value)
            except Exception:  # noqa: BLE001 - found again, and reported
                change = self._fold(stored)
                if change is not None:
                    changes.append(change)
            else:
                if old is None:
                    objects[key] = stored
                    parts = objects.parts
                else:
                    part[key] = stored
                kept[key] = stored, obj
                changes.append(Change(kind, key, old, stored))
        if self._waiters:
            self._reach(states[-1].revision)
        elif states[-1].revision > self.revision:
            self.revision = states[-1].revision
        return changes

    async def passed(self, revision: int) -> None:
        """Wait until the state includes every write up to *revision*."""
        if self.revision < revision:
            future = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiters, (revision, id(future), future))
            await future

    async def left_behind(self, key: str, revision: int) -> None:
        """Wait until the object has a newer state than *revision*, or does not exist."""
        await self.passed(revision)
        while self.shows(key, revision):
            future = asyncio.get_running_loop().create_future()
            self._key_waiters.setdefault(key, []).append(future)
            await future

    def shows(self, key: str, revision: int) -> bool:
        """Return whether the cached state of the object is of *revision* or older."""
        newest = self.newest(key)
        return newest is not None and newest.revision <= revision

    def _end_listing(self, revision: int) -> Iterable[Change[T] | None]:
        """Take over the state that the listing shows."""
        listing, self._listing = self._listing, None
        if listing is None:  # the watch continues where the one before ended
            self._reach(revision)
            return ()
        self.before_fewer()
        if listing.incarnation != self.incarnation:
            self.revision, self.since = 0, revision
        since = self.revision
        if self._deleted is not None:
            self._note_listing(listing.deleted)
        self._take_over(listing.after)
        self.incarnation = listing.incarnation
        self._reach(revision)
        for key in list(self._key_waiters):
            self._wake_key_waiters(key)
        self.synced.set()
        return chain(self._report_rejected(listing), listing.changes(since=since))

    def _report_rejected(self, listing: NextState[T]) -> Iterator[None]:
        for invalid in listing.rejected():
            if invalid is not None:
                self._on_invalid(invalid)
            yield None

    def _fold(self, stored: Stored) -> Change[T] | None:
        key, state = stored.key, self._state
        if self._is_quiet and not self._key_waiters and state.renew(stored):
            return None
        old = self.get(key)
        if old is not None and old.revision == stored.revision and state.has(stored):
            state.invalid.pop(key, None)
            return None  # the watch repeats a cached state
        is_converted = self.kind.version > 1 and state.shows(stored)
        try:
            obj = state.put(stored)
        except InvalidObjectError as error:
            self._reject(Invalid(stored, error, read_state(old)))
            return None
        # the function of an index is a user's, and may hold the object
        if obj is not None and not state.indexes:
            if len(self.decoded) >= KEPT_MAX:
                self.decoded.clear()
            self.decoded[key] = stored, obj
        if self._key_waiters:
            self._wake_key_waiters(key)
        change = Change(self.kind, key, old, self.get(key) if obj is None else stored)
        is_other = obj is None and old is not None and not is_read(old)
        return None if is_converted or (is_other and self._is_quiet) else change

    def _remove(self, deleted: Deleted) -> Iterable[Change[T]]:
        key = deleted.key
        self.before_fewer()
        old = self._state.drop(key)
        if self._deleted is not None:
            self._note_deleted(self._deleted, deleted)
        self._wake_key_waiters(key)
        self._reach(deleted.revision)
        return (Change(self.kind, key, old, None, purged=deleted.purged),)

    def _note_listing(self, deleted: dict[str, Deleted]) -> None:
        """Note the markers of the first listing; a later one takes those of known objects away."""
        known = len(deleted) <= DELETED_MAX and not self.synced.is_set()
        self._deleted = deleted if known else None

    def _note_deleted(self, noted: dict[str, Deleted], deleted: Deleted) -> None:
        noted[deleted.key] = deleted
        if len(noted) > DELETED_MAX:
            self._deleted = None

    def _reject(self, invalid: Invalid) -> None:
        previous = self._state.invalid.get(invalid.stored.key)
        self.before_fewer()
        self._state.reject(invalid)
        self._wake_key_waiters(invalid.stored.key)
        if previous is None or not same(previous.stored, invalid.stored):
            self._on_invalid(invalid)

    def _reject_illegal(self, event: IllegalKey) -> None:
        """Record a message whose name is not a legal key, and report it the first time."""
        reported = event.key in self._state.invalid
        self._state.skip(event)
        if event.exists and not reported:
            self._on_invalid(self._state.invalid[event.key])
        self._reach(event.revision)

    def _reach(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        while self._waiters and self._waiters[0][0] <= self.revision:
            _, _, future = heapq.heappop(self._waiters)
            _resolve(future)

    def _wake_key_waiters(self, key: str) -> None:
        for future in self._key_waiters.pop(key, ()):
            _resolve(future)


class _ShownKeys(Collection[str]):
    """The keys of the objects that exist by the events so far, valid or not; a live view.

    During a listing, *state* is the one that the listing shows. Other tasks may run during an
    iteration.
    """

    def __init__(self, state: State[Any]) -> None:
        self.state = state

    def __len__(self) -> int:
        return len(self.state) + len(self.state.rejected)

    def __contains__(self, key: object) -> bool:
        return key in self.state or key in self.state.rejected

    def __iter__(self) -> Iterator[str]:
        return chain(self.state, tuple(self.state.rejected))


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
