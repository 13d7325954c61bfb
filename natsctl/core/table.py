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

DECODED_MAX = 1_000  # objects that nobody has read; all are forgotten when there are more
DELETED_MAX = 100_000  # deletions that are noted until this process has its first keys


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
        return Index(self._name, self._func)

    def keys(self, value: str) -> Collection[str]:
        keys = self._keys.get(value, ())
        return (keys,) if isinstance(keys, str) else keys

    def values(self) -> SplitDict[str | set[str]]:
        return self._keys

    def values_at(self, key: str) -> tuple[str, ...]:
        values = self._values.get(key, ())
        return (values,) if isinstance(values, str) else values

    def values_of(self, obj: T) -> tuple[str, ...]:
        """Return the object's values; raises `InvalidObjectError` if the function fails."""
        try:
            return tuple(dict.fromkeys(self._func(obj)))
        except (Exception, SystemExit) as error:  # the function is a user's
            raise InvalidObjectError(f"index {self._name} fails: {error!r}") from error

    def put(self, key: str, values: tuple[str, ...]) -> None:
        """Replace the values of the object at *key*; it may have none."""
        before = self.values_at(key)
        if values == before:
            return
        for value in before:
            keys = self._keys[value]
            if isinstance(keys, set) and len(keys) > 1:
                keys.discard(key)
            else:
                self._keys.pop(value)
        if len(values) == 1 and isinstance(values[0], str):
            value = key if values[0] == key else values[0]  # one text, if both are equal
            self._values[key], values = value, (value,)
        elif values:
            self._values[key] = values
        else:
            self._values.pop(key)
        for value in values:
            others = self._keys.get(value)
            if others is None:
                self._keys[value] = key
            elif isinstance(others, set):
                others.add(key)
            elif others != key:
                self._keys[value] = {others, key}

    def drain(self) -> Iterator[None]:
        """Remove the objects and values, one by one, of an index that nothing reads any more."""
        yield from self._values.drain()
        yield from self._keys.drain()


Keeps = Callable[[str], bool]
"""Returns whether this process needs the objects of the primary with this key."""

PrimaryOf = Callable[[Stored], str | None]
"""Returns the primary that an object belongs to; None if every process keeps the value."""


class Keeping(msgspec.Struct, frozen=True):
    """Decides which values a table keeps: those of the primaries that this process syncs.

    Attributes:
        keeps: returns whether this process needs the objects of a primary.
        primary_of: returns the primary of an object, from its value; None for primaries.
        index: the name of the index of the objects by their primary; empty for primaries.
    """

    keeps: Keeps
    primary_of: PrimaryOf | None = None
    index: str = ""


class Invalid(msgspec.Struct, frozen=True):
    """A stored object that doesn't decode, the error, and the last valid state.

    `illegal` marks a message of the store whose name isn't a legal key.
    """

    stored: Stored
    error: InvalidObjectError
    last: Stored | None = None
    illegal: bool = False


class Unread(Stored, frozen=True, gc=False):
    """An object whose value this process does not keep; `value` is empty.

    Another process syncs the key of its primary. The value may be invalid.
    """


def is_read(stored: Stored) -> bool:
    """Return whether the value of the object is kept."""
    return type(stored) is not Unread


def read_state(stored: Stored | None) -> Stored | None:
    """Return the object if its value is kept, else None."""
    return None if type(stored) is Unread else stored


class _State(Collection[str], Generic[T]):
    """The objects of one listing, with what has changed since.

    Each object is in *valid*, with its last valid state; in *unread*, with its revision, if its
    value isn't kept; or in *lost*. As a collection, it is a live view of the keys of the first two.
    """

    def __init__(self, indexes: Mapping[str, Index[T]]) -> None:
        self.valid = SplitDict[Stored]()
        self.unread = SplitDict[int]()
        self.invalid: dict[str, Invalid] = {}
        self.lost: dict[str, None] = {}  # the invalid ones without a last valid state
        self.indexes = indexes

    def __len__(self) -> int:
        return len(self.valid) + len(self.unread)

    def __contains__(self, key: object) -> bool:
        return key in self.valid or key in self.unread

    def __iter__(self) -> Iterator[str]:
        return chain(self.valid, self.unread)

    def get(self, key: str) -> Stored | None:
        """Return the last valid state of the object, as an `Unread` if its value isn't kept."""
        stored = self.valid.get(key)
        if stored is None and self.unread:
            revision = self.unread.get(key)
            return None if revision is None else Unread(key, revision, b"")
        return stored

    def newest(self, key: str) -> Stored | None:
        invalid = self.invalid.get(key)
        return self.get(key) if invalid is None else invalid.stored

    def put(self, stored: Stored, values: Iterable[tuple[Index[T], tuple[str, ...]]]) -> None:
        key = stored.key
        for index, of_index in values:
            index.put(key, of_index)
        if self.invalid:
            self.forget_invalid(key)
        if self.unread:
            self.unread.pop(key)
        self.valid[key] = stored

    def put_unread(self, stored: Stored, primary: str) -> None:
        """Store an object without its value; the only index is the one by primary."""
        key = stored.key
        self.forget_invalid(key)
        for index in self.indexes.values():
            index.put(key, (primary,))
        self.valid.pop(key)
        self.unread[key] = stored.revision

    def reject(self, invalid: Invalid) -> None:
        """Store an invalid object; its last valid state stays if it was read."""
        key = invalid.stored.key
        self.forget_invalid(key)
        if invalid.last is None and not invalid.illegal:
            self.remove(key)
            self.lost[key] = None
        self.invalid[key] = invalid

    def remove(self, key: str) -> None:
        self.forget_invalid(key)
        for index in self.indexes.values():
            index.put(key, ())
        self.valid.pop(key)
        if self.unread:
            self.unread.pop(key)

    def forget_invalid(self, key: str) -> None:
        self.invalid.pop(key, None)
        self.lost.pop(key, None)

    def shows(self, stored: Stored) -> bool:
        known = self.valid.get(stored.key)
        return known is not None and same(known, stored)

    def drain(self) -> Iterator[None]:
        """Remove all objects, one by one, of a state that nothing reads any more."""
        yield from self.valid.drain()
        yield from self.unread.drain()
        for index in self.indexes.values():
            yield from index.drain()


def same(first: Stored, second: Stored) -> bool:
    """Return whether both are the same revision of the same value."""
    return first.revision == second.revision and first.value == second.value


class Table(Generic[T]):
    """The objects of one store, updated by watch events.

    *Guarantees.* A listing takes effect at its end, all of it at once; until then, reads return the
    state before it. If an object does not decode, reads return its last valid state, `invalid` has
    the object, and *on_invalid* is called once per revision. An object that was stored as another
    version of its type, and is otherwise the same, is not a change. An event takes little time, no
    matter how many objects there are: the next state is built while the listing arrives.

    Of an object whose value *keeping* does not keep, the table has only the key, the revision and
    the primary, as an `Unread`, and does not decode it. A table with other indexes than that of
    *keeping* keeps every value. With *notes_deleted*, `take_deleted` returns the deleted keys.
    """

    def __init__(
        self,
        kind: Kind[T],
        indexes: Mapping[str, IndexFunc[T]] | None = None,
        on_invalid: Callable[[Invalid], None] = lambda _: None,
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
        if keeping is not None and not {keeping.index}.issuperset(by_name):
            keeping = None
        self._keeping = keeping
        self.partial = keeping is not None  # whether values can be missing
        self.wants_all = asyncio.Event()
        """Set when somebody reads a value that is not kept; then every value is kept."""
        self._take_over(_State(by_name))
        self.shown: Collection[str] = _Shown(self)
        """The keys that exist by the events so far, valid or not, also during a listing."""
        self._listing: _State[T] | None = None
        self._listed_incarnation = ""
        self._markers: dict[str, Deleted] = {}  # of the listing
        self._deleted: dict[str, None] | None = {} if notes_deleted else None
        self.decoded: dict[str, tuple[Stored, T]] = {}
        """Objects that validation has decoded and nobody has read, each with its state.

        Each is handed out once, because its reader may change it. At `DECODED_MAX` all are
        forgotten.
        """
        self._on_invalid = on_invalid
        self.before_fewer: Callable[[], None] = lambda: None
        """Called before an event may lower the number of objects."""
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []

    def _take_over(self, state: _State[T]) -> None:
        self._state = state
        self.get: Callable[[str], Stored | None] = state.get if self.partial else state.valid.get
        """Returns the last valid state of an object, None if it has none."""
        self.invalid: Mapping[str, Invalid] = state.invalid
        """The objects whose newest state is invalid, by key; a view until the next listing."""

    # ---- look up

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, key: str) -> bool:
        """Return whether the object exists, valid or not."""
        return key in self._state or key in self._state.invalid

    def decode(self, stored: Stored) -> T:
        """Return the object in a state of this kind as a value that nothing else holds."""
        decoded = self.decoded.pop(stored.key, None)
        return decoded[1] if decoded and decoded[0] is stored else self.kind.decode(stored.value)

    def newest(self, key: str) -> Stored | None:
        """Return the newest state of the object, valid or not, None if it does not exist."""
        return self._state.newest(key)

    def keys(self) -> Collection[str]:
        """Return the keys of all objects that have a valid state; a live view.

        Other tasks may run during an iteration, until the next listing.
        """
        return self._state if self.partial else self.read_keys()

    def read_keys(self) -> CurrentKeys:
        """Return those of `keys` whose values are kept; a live view, also after a listing."""
        return CurrentKeys(lambda: self._state.valid)

    def by_index(self, index: str, value: str) -> list[Stored]:
        """Return the objects with *value* in the named index, sorted by key."""
        indexed = map(self.get, sorted(self._state.indexes[index].keys(value)))
        return [stored for stored in indexed if stored is not None]

    def index_of(self, index: str, obj: T) -> Collection[str]:
        """Return the values of *obj* in the named index; *obj* need not be in the table."""
        return self._state.indexes[index].values_of(obj)

    def index_values(self, index: str) -> CurrentKeys:
        """Return all values of the named index; a live view, as `read_keys` is."""
        return CurrentKeys(lambda: self._state.indexes[index].values())  # noqa: PLW0108 - a listing replaces the state

    def indexed(self, index: str) -> int:
        return len(self._state.indexes[index])

    def unindexed(self, index: str) -> Iterator[str | None]:
        """Return the objects, valid or not, without a value in the named index.

        Yields their keys, and None for each other object. Other tasks may run in between.
        """
        for key in chain(self.keys(), tuple(self._state.invalid)):
            yield None if key in self._state.indexes[index] else key

    # ---- values that this process doesn't keep

    @property
    def divided(self) -> bool:
        """True if this process keeps the values of its assigned keys and no others."""
        return self.partial and not self.wants_all.is_set()

    def primary_of(self, key: str, state: _State[T] | None = None) -> str | None:
        """Return the primary that the object belongs to; None if that is not known."""
        if self._keeping is None or not self._keeping.index:
            return key
        indexes = (self._state if state is None else state).indexes
        return next(iter(indexes[self._keeping.index].values_at(key)), None)

    def of_primary(self, primary: str) -> Collection[str]:
        """Return the keys of the objects that belong to the primary."""
        if self._keeping is None or not self._keeping.index:
            return (primary,)
        return self._state.indexes[self._keeping.index].keys(primary)

    def _other_primary(self, stored: Stored) -> str | None:
        """Return the primary of an object whose value isn't kept; None if the value is kept."""
        keeping = self._keeping
        if keeping is None or self.wants_all.is_set():
            return None
        primary = stored.key if keeping.primary_of is None else keeping.primary_of(stored)
        return None if primary is None or keeping.keeps(primary) else primary

    def missing(self, wanted: Keeps) -> Iterator[str | None]:
        """Return the objects of the *wanted* primaries whose values are missing, also in a listing.

        Yields their keys, and None for each other such object. Other tasks may run in between.
        """
        for state in filter(None, (self._state, self._listing)):
            for key in state.unread:
                primary = self.primary_of(key, state)
                yield key if primary is not None and wanted(primary) else None

    def fill(self, stored: Stored) -> Change[T] | None:
        """Add the value of an object that was read from the store, if its revision is known here.

        Returns the change from no object to this one if the value was added. Call this and
        `release` only while no changes of an event are left to take.
        """
        self.before_fewer()  # the value may be invalid
        filled = None
        for state in (self._state, self._listing):
            if state is None or state.unread.get(stored.key) != stored.revision:
                continue
            try:
                added = self._store(state, stored) is not None
            except InvalidObjectError as error:
                state.reject(Invalid(stored, error))
                if state is self._state:
                    self._on_invalid(state.invalid[stored.key])
            else:
                if added and state is self._state:
                    filled = Change(self.kind, stored.key, None, stored, initial=True)
        return filled

    def release(self, key: str) -> None:
        """Forget the value of the object, unless it is kept."""
        invalid, newest = self._state.invalid.get(key), read_state(self._state.newest(key))
        if newest is not None and not (invalid is not None and invalid.illegal):
            primary = self._other_primary(newest)
            if primary is not None:
                self._state.put_unread(newest, primary)

    def take_deleted(self) -> Collection[str] | None:
        """Return the keys whose deletions were seen since the start, and note no later ones.

        A key may exist again. Returns None if the deletions are not known.
        """
        deleted, self._deleted = self._deleted, None
        return deleted

    # ---- replace

    def apply(self, event: WatchEvent) -> Iterable[Change[T] | None]:
        """Apply one event, and return the changes that it makes.

        The event has taken effect when this returns. The changes of a listing are found one by one,
        as the caller takes them, so that other tasks can run in between; None is a step without a
        change. Take all changes before the next event.
        """
        match event:
            case Applied():
                return self.put((event.stored,))
            case Batch():
                return self.put(event.states)
            case Deleted():
                return self._remove(event)
            case IllegalKey():
                self._note_illegal(event)
            case Listing():
                dropped, self._markers = self._listing, {}
                indexes = self._state.indexes.items()
                self._listing = _State({name: index.empty() for name, index in indexes})
                self._listed_incarnation = event.incarnation
                return () if dropped is None else dropped.drain()
            case Listed():
                return self._end_listing(event.revision)
        return ()

    def put(  # noqa: C901 - one straight line
        self, states: Sequence[Stored]
    ) -> list[Change[T]]:
        """Apply states of objects, as `apply` does; return the changes, none during a listing."""
        changes: list[Change[T]] = []
        state, kind, decode = self._state, self.kind, self.kind.decoder
        if self._listing is not None:
            self._list(self._listing, states)
            return changes
        if decode is None or self.partial or state.indexes:
            folded = map(self._fold, self._note_unread(state, states))
            changes = [change for change in folded if change is not None]
            self._reach(states[-1].revision)
            return changes
        valid, invalid, decoded = state.valid, state.invalid, self.decoded
        if len(decoded) + len(states) > DECODED_MAX:
            decoded.clear()
        parts = valid.parts
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
                    valid[key] = stored
                    parts = valid.parts
                else:
                    part[key] = stored
                decoded[key] = stored, obj
                changes.append(Change(kind, key, old, stored))
        if self._waiters:
            self._reach(states[-1].revision)
        else:
            self.revision = max(self.revision, states[-1].revision)
        return changes

    def _note_unread(self, state: _State[T], states: Sequence[Stored]) -> Sequence[Stored]:
        """Note the revisions of primaries that other processes sync; return the other states."""
        keeping, before, others = self._keeping, self._state, list[Stored]()
        if keeping is None or keeping.index or self.wants_all.is_set():
            return states
        if state.invalid or before.invalid:
            return states
        keeps, unread, lists = keeping.keeps, state.unread, before is not state
        parts = unread.parts
        for stored in states:
            key = stored.key
            if keeps(key):
                others.append(stored)
                continue
            part = parts[hash(key) % len(parts)]
            if key in part:
                part[key] = stored.revision
            elif lists and key not in before.valid and key not in state.valid:
                unread[key] = stored.revision
                parts = unread.parts
            else:
                others.append(stored)
        return others

    def _fold(self, stored: Stored) -> Change[T] | None:
        key, state = stored.key, self._state
        old = self.get(key)
        if state.shows(stored):
            state.forget_invalid(key)
            return None  # the watch repeats a state
        is_converted = self._is_converted(state, stored)
        try:
            obj = self._store(state, stored)
        except InvalidObjectError as error:
            before, invalid = state.invalid.get(key), Invalid(stored, error, read_state(old))
            self.before_fewer()
            state.reject(invalid)
            if before is None or not same(before.stored, stored):
                self._on_invalid(invalid)
            return None
        # the function of an index is a user's, and may hold the object
        if obj is not None and not state.indexes:
            if len(self.decoded) >= DECODED_MAX:
                self.decoded.clear()
            self.decoded[key] = stored, obj
        is_others = obj is None and old is not None and not is_read(old)
        if is_converted or is_others:
            return None
        return Change(self.kind, key, old, stored if obj is not None else self.get(key))

    def _store(self, state: _State[T], stored: Stored) -> T | None:
        """Store an object and return it, or None if its value is not kept.

        Raises `InvalidObjectError` if the value is kept and does not decode.
        """
        if self.partial:
            primary = self._other_primary(stored)
            if primary is not None:
                state.put_unread(stored, primary)
                return None
        obj = self.kind.decode(stored.value)
        state.put(stored, [(index, index.values_of(obj)) for index in state.indexes.values()])
        return obj

    def _is_converted(self, before: _State[T], stored: Stored) -> bool:
        """Return whether the state before was valid, and differs only in the stored version."""
        if self.kind.version == 1 or stored.key in before.invalid:
            return False
        old = before.valid.get(stored.key)
        return old is not None and self.kind.converted(old.value, stored.value)

    def _remove(self, deleted: Deleted) -> Iterable[Change[T]]:
        key = deleted.key
        if self._listing is not None:
            self._listing.remove(key)
            self._markers[key] = deleted
            return ()
        self.before_fewer()
        old = self._state.get(key)
        self._state.remove(key)
        if self._deleted is not None:
            self._deleted[key] = None
            if len(self._deleted) > DELETED_MAX:
                self._deleted = None
        self._reach(deleted.revision)
        return (Change(self.kind, key, old, None, purged=deleted.purged),)

    def _note_illegal(self, event: IllegalKey) -> None:
        """Note a message whose name is not a legal key, and report it the first time."""
        state = self._state if self._listing is None else self._listing
        known = event.key in state.invalid
        if event.exists:
            error = InvalidObjectError("its name is not a legal key")
            stored = Stored(event.key, event.revision, b"")
            state.reject(Invalid(stored, error, illegal=True))
        else:
            state.forget_invalid(event.key)
        if self._listing is None:
            if event.exists and not known:
                self._on_invalid(state.invalid[event.key])
            self._reach(event.revision)

    # ---- listing

    def _list(  # noqa: C901 - one straight line
        self, listing: _State[T], states: Sequence[Stored]
    ) -> None:
        before, decode = self._state, self.kind.decoder
        plain = decode is not None and not (self.partial or before or before.indexes)
        valid: dict[str, Stored] = {}
        for stored in self._note_unread(listing, states):
            key = stored.key
            try:
                if decode is not None and plain:
                    decode(stored.value)
                    valid[key] = stored
                    continue
            except Exception:  # noqa: BLE001 - found again, and noted
                valid.pop(key, None)
            if before.shows(stored):  # it isn't decoded again
                self._keep_former(listing, key)
                continue
            try:
                self._store(listing, stored)
            except InvalidObjectError as error:
                self._keep_former(listing, key)
                listing.reject(Invalid(stored, error, before.valid.get(key)))
        if plain:
            if listing.invalid:
                for key in valid:
                    listing.forget_invalid(key)
            listing.valid.put_all(valid)
        if self._markers:
            for stored in states:
                self._markers.pop(stored.key, None)

    def _keep_former(self, listing: _State[T], key: str) -> None:
        listing.remove(key)
        former = self._state.valid.get(key)
        if former is not None:
            indexes = self._state.indexes
            values = [(listing.indexes[name], indexes[name].values_at(key)) for name in indexes]
            listing.put(former, values)

    def _end_listing(self, revision: int) -> Iterable[Change[T] | None]:
        listing, self._listing = self._listing, None
        if listing is None:  # the watch continues where the one before ended
            self._reach(revision)
            return ()
        self.before_fewer()
        if self._listed_incarnation != self.incarnation:
            self.revision, self.since = 0, revision
        since, before = self.revision, self._state
        markers, self._markers = self._markers, {}
        if self._deleted is not None:  # a later listing takes away the markers of known objects
            first = len(markers) <= DELETED_MAX and not self.synced.is_set()
            self._deleted = dict.fromkeys(markers) if first else None
        self._take_over(listing)
        self.incarnation = self._listed_incarnation
        self._reach(revision)
        self.synced.set()
        return self._listed_changes(before, listing, markers, since)

    def _listed_changes(
        self, before: _State[T], after: _State[T], markers: dict[str, Deleted], since: int
    ) -> Iterator[Change[T] | None]:
        """Return what a listing has changed, report what it made invalid, and empty *before*.

        Objects that it does not contain were deleted. A delete marker of an unknown object is a
        change if it is newer than the revision *since*. None is a step without a change.
        """
        kind, any_before = self.kind, bool(before)
        for key, invalid in after.invalid.items():
            known = before.invalid.get(key)
            if known is None or not (invalid.illegal or same(known.stored, invalid.stored)):
                self._on_invalid(invalid)
            yield None
        for part in after.valid.parts:
            for new in tuple(part.values()):
                old = before.get(new.key) if any_before else None
                unchanged = old is new or (old is not None and self._is_converted(before, new))
                yield None if unchanged else Change(kind, new.key, old, new, True)
        for key in chain(before, tuple(before.lost)):
            left = after.get(key)
            if left is None and key not in after.lost:
                marker = markers.pop(key, None)
                purged = marker is not None and marker.purged
                yield Change(kind, key, before.get(key), None, purged=purged)
            elif left is not None and not is_read(left) and key in before.valid:
                yield Change(kind, key, before.get(key), left, initial=True)
            else:
                yield None
        for key, deleted in markers.items():
            is_news = deleted.revision > since
            purged = deleted.purged
            yield Change(kind, key, None, None, initial=True, purged=purged) if is_news else None
        yield from before.drain()

    # ---- waiting

    async def passed(self, revision: int) -> None:
        """Wait until the state includes every write up to *revision*."""
        if self.revision < revision:
            await self._reached(revision)

    async def left_behind(self, key: str, revision: int) -> None:
        """Wait until the object has a newer state than *revision*, or does not exist."""
        await self.passed(revision)
        while self.shows(key, revision):
            await self._reached(0)  # the next event

    async def _reached(self, revision: int) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (revision, id(future), future))
        await future

    def shows(self, key: str, revision: int) -> bool:
        """Return whether the state of the object is of *revision* or older."""
        newest = self.newest(key)
        return newest is not None and newest.revision <= revision

    def _reach(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        while self._waiters and self._waiters[0][0] <= self.revision:
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                future.set_result(None)


class _Shown(Collection[str]):
    """The keys of all objects of a table: during a listing, of those that it has shown so far.

    Other tasks may run during an iteration.
    """

    def __init__(self, table: Table[Any]) -> None:
        self._table = table

    @property
    def _shown(self) -> _State[Any]:
        table = self._table
        return table._state if table._listing is None else table._listing  # noqa: SLF001 - a part of it

    def __len__(self) -> int:
        return len(self._shown) + len(self._shown.lost)

    def __contains__(self, key: object) -> bool:
        return key in self._shown or key in self._shown.lost

    def __iter__(self) -> Iterator[str]:
        return chain(self._shown, tuple(self._shown.lost))
