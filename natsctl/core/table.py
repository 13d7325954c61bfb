"""The objects of one store as last seen, by key and by index."""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Generic, TypeVar

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
        self.name, self.func = name, func
        self.by_value = SplitDict[str | set[str]]()  # one key, or several
        self.by_key = SplitDict[str | tuple[str, ...]]()  # one value, or several

    def keys(self, value: str) -> Collection[str]:
        keys = self.by_value.get(value, ())
        return (keys,) if isinstance(keys, str) else keys

    def values_at(self, key: str) -> tuple[str, ...]:
        values = self.by_key.get(key, ())
        return (values,) if isinstance(values, str) else values

    def values_of(self, obj: T) -> tuple[str, ...]:
        """Return the object's values; raises `InvalidObjectError` if the function fails."""
        try:
            return tuple(dict.fromkeys(self.func(obj)))
        except (Exception, SystemExit) as error:  # the function is a user's
            raise InvalidObjectError(f"index {self.name} fails: {error!r}") from error

    def put(self, key: str, values: tuple[str, ...]) -> None:
        """Replace the values of the object at *key*; it may have none."""
        before = self.values_at(key)
        if values == before:
            return
        for value in before:
            keys = self.by_value[value]
            if isinstance(keys, set) and len(keys) > 1:
                keys.discard(key)
            else:
                self.by_value.pop(value)
        if len(values) == 1 and isinstance(values[0], str):
            value = key if values[0] == key else values[0]  # one text, if both are equal
            self.by_key[key], values = value, (value,)
        elif values:
            self.by_key[key] = values
        else:
            self.by_key.pop(key)
        for value in values:
            others = self.by_value.get(value)
            if others is None:
                self.by_value[value] = key
            elif isinstance(others, set):
                others.add(key)
            elif others != key:
                self.by_value[value] = {others, key}


class Keeping(msgspec.Struct, frozen=True):
    """Decides which values a table keeps: those of the primaries that this process syncs.

    Attributes:
        keeps: returns whether this process needs the objects of the primary with this key.
        primary_of: returns the primary of an object, or None if every process keeps the value.
            Not set for primaries themselves.
        index: the name of the index of the objects by their primary; empty for primaries.
    """

    keeps: Callable[[str], bool]
    primary_of: Callable[[Stored], str | None] | None = None
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


class _State(Generic[T]):
    """The objects of one listing, with what has changed since.

    Each object is in *valid*, with its last valid state; in *unread*, with its revision, if its
    value isn't kept; or in *lost*, if it's invalid and has no last valid state.
    """

    def __init__(self, indexes: Mapping[str, Index[T]]) -> None:
        self.valid = SplitDict[Stored]()
        self.unread = SplitDict[int]()
        self.lost = SplitDict[None]()
        self.invalid: dict[str, Invalid] = {}
        self.indexes = indexes

    def get(self, key: str) -> Stored | None:
        """Return the last valid state of the object, as an `Unread` if its value isn't kept."""
        stored = self.valid.get(key)
        if stored is None and self.unread:
            revision = self.unread.get(key)
            return None if revision is None else Unread(key, revision, b"")
        return stored

    def each(self, *values: str) -> Iterable[tuple[Index[T], tuple[str, ...]]]:
        """Return each index, with the same values."""
        return [(index, values) for index in self.indexes.values()]

    def set(
        self, key: str, stored: Stored | None, values: Iterable[tuple[Index[T], tuple[str, ...]]]
    ) -> None:
        """Replace the object, and its values in each index; None removes it."""
        for index, of_index in values:
            index.put(key, of_index)
        if self.invalid:
            self.forget_invalid(key)
        if type(stored) is Unread:
            self.valid.pop(key)
            self.unread[key] = stored.revision
            return
        if self.unread:
            self.unread.pop(key)
        if stored is None:
            self.valid.pop(key)
        else:
            self.valid[key] = stored

    def reject(self, invalid: Invalid) -> None:
        """Note an invalid object; its last valid state stays if it was read."""
        key = invalid.stored.key
        if invalid.last is None:
            self.set(key, None, self.each())
            self.lost[key] = None
        self.invalid[key] = invalid

    def forget_invalid(self, key: str) -> None:
        if self.invalid.pop(key, None) is not None:
            self.lost.pop(key)

    def drain(self) -> Iterator[None]:
        """Remove all objects, one by one, of a state that nothing reads any more."""
        yield from self.valid.drain()
        yield from self.unread.drain()
        for index in self.indexes.values():
            yield from index.by_key.drain()
            yield from index.by_value.drain()


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
        self._take_over(_State(by_name))
        self.shown: Collection[str] = CurrentKeys(
            lambda: (self._listing or self._state).valid,
            lambda: (self._listing or self._state).unread,
            lambda: (self._listing or self._state).lost,
        )
        """The keys that exist by the events so far, valid or not, also during a listing."""

    def _take_over(self, state: _State[T]) -> None:
        self._state = state
        self.get: Callable[[str], Stored | None] = state.get if self.partial else state.valid.get
        """Returns the last valid state of an object, None if it has none."""
        self.kept = state.valid
        """The last valid states that are kept: read its parts where a call takes too long."""
        self.invalid: Mapping[str, Invalid] = state.invalid
        """The objects whose newest state is invalid, by key; a view until the next listing."""

    # ---- look up

    def __len__(self) -> int:
        return len(self._state.valid) + len(self._state.unread)

    def __contains__(self, key: str) -> bool:
        """Return whether the object exists, valid or not."""
        return self.newest(key) is not None

    def decode(self, stored: Stored) -> T:
        """Return the object in a state of this kind as a value that nothing else holds."""
        decoded = self.decoded.pop(stored.key, None)
        return decoded[1] if decoded and decoded[0] is stored else self.kind.decode(stored.value)

    def newest(self, key: str) -> Stored | None:
        """Return the newest state of the object, valid or not, None if it does not exist."""
        invalid = self.invalid.get(key)
        return self.get(key) if invalid is None else invalid.stored

    def keys(self) -> CurrentKeys:
        """Return the keys of all objects that have a valid state; a live view.

        Other tasks may run during an iteration.
        """
        if not self.partial:
            return self.read_keys()
        return CurrentKeys(lambda: self._state.valid, lambda: self._state.unread)

    def read_keys(self) -> CurrentKeys:
        """Return those of `keys` whose values are kept; a live view."""
        return CurrentKeys(lambda: self._state.valid)

    def by_index(self, index: str, value: str) -> list[Stored]:
        """Return the objects with *value* in the named index, sorted by key."""
        indexed = map(self.get, sorted(self._state.indexes[index].keys(value)))
        return [stored for stored in indexed if stored is not None]

    def index_of(self, index: str, obj: T) -> Collection[str]:
        """Return the values of *obj* in the named index; *obj* need not be in the table."""
        return self._state.indexes[index].values_of(obj)

    def index_values(self, index: str) -> CurrentKeys:
        """Return all values of the named index; a live view."""
        return CurrentKeys(lambda: self._state.indexes[index].by_value)

    def indexed(self, index: str) -> int:
        return len(self._state.indexes[index].by_key)

    def unindexed(self, index: str) -> Iterator[str | None]:
        """Return the objects, valid or not, without a value in the named index.

        Yields their keys, and None for each other object. Other tasks may run in between.
        """
        for key in chain(self.keys(), tuple(self.invalid)):
            yield None if key in self._state.indexes[index].by_key else key

    # ---- values that this process doesn't keep

    @property
    def divided(self) -> bool:
        """True if this process keeps the values of its assigned keys and no others."""
        return self.partial and not self.wants_all.is_set()

    def primary_of(self, key: str, state: _State[T] | None = None) -> str | None:
        """Return the primary that the object belongs to; None if that is not known."""
        if self._keeping is None or not self._keeping.index:
            return key
        values = (state or self._state).indexes[self._keeping.index].values_at(key)
        return values[0] if values else None

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

    def missing(self, wanted: Callable[[str], bool]) -> Iterator[str | None]:
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
        for state in filter(None, (self._state, self._listing)):
            if state.unread.get(stored.key) != stored.revision:
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
        invalid, newest = self.invalid.get(key), read_state(self.newest(key))
        if newest is not None and not (invalid is not None and invalid.illegal):
            primary = self._other_primary(newest)
            if primary is not None:
                self._state.set(key, Unread(key, newest.revision, b""), self._state.each(primary))

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
            case Applied() | Batch():
                return self.put(event.states)
            case Deleted():
                return self._remove(event)
            case IllegalKey():
                self._note_illegal(event)
            case Listing():
                dropped, self._markers = self._listing, {}
                indexes = self._state.indexes.items()
                self._listing = _State({name: Index(name, it.func) for name, it in indexes})
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
            else:
                others.append(stored)
        return others

    def _fold(self, stored: Stored) -> Change[T] | None:
        key, state = stored.key, self._state
        old, known = self.get(key), state.invalid.get(key)
        if old == stored:
            state.forget_invalid(key)
            return None  # the watch repeats a state
        try:
            obj = self._store(state, stored)
        except InvalidObjectError as error:
            invalid = Invalid(stored, error, read_state(old))
            self.before_fewer()
            state.reject(invalid)
            if known is None or known.stored != stored:
                self._on_invalid(invalid)
            return None
        # the function of an index is a user's, and may hold the object
        if obj is not None and not state.indexes:
            if len(self.decoded) >= DECODED_MAX:
                self.decoded.clear()
            self.decoded[key] = stored, obj
        if known is None and self._is_converted(old, stored):
            return None
        if obj is not None:
            return Change(self.kind, key, old, stored)
        is_others = old is not None and not is_read(old)
        return None if is_others else Change(self.kind, key, old, self.get(key))

    def _store(self, state: _State[T], stored: Stored) -> T | None:
        """Store an object and return it, or None if its value is not kept.

        Raises `InvalidObjectError` if the value is kept and does not decode.
        """
        key, primary = stored.key, self._other_primary(stored) if self.partial else None
        if primary is not None:  # the only index is the one by primary
            state.set(key, Unread(key, stored.revision, b""), state.each(primary))
            return None
        obj = self.kind.decode(stored.value)
        state.set(key, stored, [(it, it.values_of(obj)) for it in state.indexes.values()])
        return obj

    def _is_converted(self, old: Stored | None, new: Stored) -> bool:
        """Return whether a valid state differs only in its stored version from the one before."""
        if self.kind.version == 1 or old is None or not is_read(old):
            return False
        return self.kind.converted(old.value, new.value)

    def _remove(self, deleted: Deleted) -> Iterable[Change[T]]:
        key, state = deleted.key, self._state
        if self._listing is not None:
            self._listing.set(key, None, self._listing.each())
            self._markers[key] = deleted
            return ()
        self.before_fewer()
        old = self.get(key)
        state.set(key, None, state.each())
        if self._deleted is not None:
            self._deleted[key] = None
            if len(self._deleted) > DELETED_MAX:
                self._deleted = None
        self._reach(deleted.revision)
        return (Change(self.kind, key, old, None, purged=deleted.purged),)

    def _note_illegal(self, event: IllegalKey) -> None:
        """Note a message whose name is not a legal key, and report it the first time."""
        state = self._listing or self._state
        known = state.invalid.pop(event.key, None)
        if event.exists:
            stored = Stored(event.key, event.revision, b"")
            error = InvalidObjectError("its name is not a legal key")
            state.invalid[event.key] = invalid = Invalid(stored, error, illegal=True)
            if known is None and self._listing is None:
                self._on_invalid(invalid)
        if self._listing is None:
            self._reach(event.revision)

    # ---- listing

    def _list(  # noqa: C901 - one straight line
        self, listing: _State[T], states: Sequence[Stored]
    ) -> None:
        before, decode = self._state, self.kind.decoder
        if self._markers:
            for stored in states:
                self._markers.pop(stored.key, None)
        if decode is not None and not (self.partial or before.valid or before.indexes):
            try:
                for stored in states:
                    decode(stored.value)
            except Exception:  # noqa: BLE001, S110 - found again, and noted
                pass
            else:
                for stored in states if listing.invalid else ():
                    listing.forget_invalid(stored.key)
                listing.valid.put_all({stored.key: stored for stored in states})
                return
        for stored in self._note_unread(listing, states):
            key = stored.key
            former, error = before.valid.get(key), None
            if former != stored:  # else it isn't decoded again
                try:
                    self._store(listing, stored)
                    continue
                except InvalidObjectError as raised:
                    error = raised
            names = before.indexes.items()
            values = [(listing.indexes[name], index.values_at(key)) for name, index in names]
            listing.set(key, former, values)
            if error is not None:
                listing.reject(Invalid(stored, error, former))

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
        kind, any_before = self.kind, bool(before.valid or before.unread)
        for key, invalid in after.invalid.items():
            known = before.invalid.get(key)
            if known is None or not (invalid.illegal or known.stored == invalid.stored):
                self._on_invalid(invalid)
            yield None
        for part in tuple(after.valid.parts):
            for new in tuple(part.values()):
                old = before.get(new.key) if any_before else None
                unchanged = old is not None and (
                    old is new or (old.key not in before.invalid and self._is_converted(old, new))
                )
                yield None if unchanged else Change(kind, new.key, old, new, True)
        for key in chain(before.valid, before.unread, before.lost):
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
            is_news, purged = deleted.revision > since, deleted.purged
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
