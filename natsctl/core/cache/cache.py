"""Caches the objects of one store, by key and by index."""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

from natsctl.core.cache.decoded import DecodedObjects
from natsctl.core.cache.index import Index, IndexFunc
from natsctl.core.cache.keeping import Keeping, Keeps
from natsctl.core.cache.state import Invalid, NextState, State, is_read, read_state, same
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
from natsctl.split_dict import CurrentKeys

T = TypeVar("T")

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
        self._decoded = DecodedObjects[T]()
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
        obj = self._decoded.take(stored)
        return self.kind.decode(stored.value) if obj is None else obj

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

    def put(self, states: Sequence[Stored]) -> list[Change[T]]:  # noqa: C901 - one straight line
        """Apply states of objects, as `apply` does; return the changes, none during a listing."""
        changes: list[Change[T]] = []
        state, listing = self._state, self._listing
        if listing is not None:
            for stored in states:
                listing.put(stored)
            return changes
        kind, decode = self.kind, self.kind.decoder
        if decode is None or state.keeping is not None or state.indexes or self._key_waiters:
            for stored in states:
                change = self._fold(stored)
                if change is not None:
                    changes.append(change)
            self._reach(states[-1].revision)
            return changes
        objects, invalid, kept = state.objects, state.invalid, self._decoded.room(len(states))
        for stored in states:  # as `_fold` does, without a call per state
            key = stored.key
            old = objects.get(key)
            try:
                if invalid or (old is not None and old.revision == stored.revision):
                    raise InvalidObjectError("not simply a newer state")  # noqa: TRY301 - rare
                obj = decode(stored.value)
            except Exception:  # noqa: BLE001 - found again, and reported
                change = self._fold(stored)
                if change is not None:
                    changes.append(change)
            else:
                objects[key] = stored
                kept[key] = stored, obj
                changes.append(Change(kind, key, old, stored))
        self._reach(states[-1].revision)
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
        if listing is None:
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
            self._decoded.keep(stored, obj)
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
