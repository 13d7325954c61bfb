"""Caches the objects of one store, by key and by index."""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from natsctl.errors import InvalidObjectError
from natsctl.model.kinds import Kind
from natsctl.model.store import (
    Applied,
    Change,
    Deleted,
    IllegalKey,
    Listed,
    Listing,
    Stored,
    WatchEvent,
)

T = TypeVar("T")
IndexFunc = Callable[[T], Iterable[str]]


class Invalid(msgspec.Struct, frozen=True):
    """A stored object that does not decode, the error, and the last valid state.

    `illegal` marks a message of the store whose name is not a legal key.
    """

    stored: Stored
    error: InvalidObjectError
    last: Stored | None = None
    illegal: bool = False


def _ignore(_invalid: Invalid) -> None:
    """Ignore invalid objects."""


class Cache(Generic[T]):
    """The objects of one store, updated by watch events.

    *Guarantees.* A listing takes effect at its end, all of it at once; until then, reads return the
    state before it. If an object does not decode, reads return its last valid state, `invalid` has
    the object, and *on_invalid* is called once per revision.
    """

    def __init__(
        self,
        kind: Kind[T],
        indexes: Mapping[str, IndexFunc[T]] | None = None,
        on_invalid: Callable[[Invalid], None] = _ignore,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()  # set after the first complete list
        self.incarnation = ""
        self.revision = 0  # the state includes every write up to this one
        self.since = 0  # the revision of the first listing in this incarnation
        self.invalid: dict[str, Invalid] = {}
        self._objects: dict[str, Stored] = {}
        self._indexes = {name: _Index(name, func) for name, func in (indexes or {}).items()}
        self._listing: _Listing | None = None
        self._on_invalid = on_invalid
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._key_waiters: dict[str, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: str) -> bool:
        """Return whether the object exists, valid or not."""
        return key in self._objects or key in self.invalid

    def get(self, key: str) -> Stored | None:
        """Return the last valid state of the object, None if it has none."""
        return self._objects.get(key)

    def newest(self, key: str) -> Stored | None:
        """Return the newest state of the object, valid or not, None if it does not exist."""
        invalid = self.invalid.get(key)
        return self._objects.get(key) if invalid is None else invalid.stored

    def keys(self) -> Collection[str]:
        """Return the keys of all objects that have a valid state; a live view."""
        return self._objects.keys()

    def by_index(self, index: str, value: str) -> list[Stored]:
        """Return the objects with *value* in the named index, sorted by key."""
        return [self._objects[key] for key in sorted(self._indexes[index].keys(value))]

    def index_of(self, index: str, obj: T) -> Collection[str]:
        """Return the values of *obj* in the named index; *obj* need not be cached."""
        return self._indexes[index].values_of(obj)

    def index_values(self, index: str) -> Collection[str]:
        """Return all values of the named index; a live view."""
        return self._indexes[index].values()

    def indexed(self, index: str) -> int:
        """Return the number of objects with any value in the named index."""
        return len(self._indexes[index])

    def unindexed(self, index: str) -> Iterator[str]:
        """Return the keys of the objects, valid or not, without a value in the named index."""
        indexed = self._indexes[index]
        return (key for key in [*self._objects, *self.invalid] if key not in indexed)

    def apply(self, event: WatchEvent) -> Sequence[Change[T]]:
        """Apply one event and return the changes that it makes."""
        listing = self._listing
        match event:
            case Applied():
                if listing is None:
                    return self._put(event.stored)
                listing.put(event.stored)
            case Deleted():
                if listing is None:
                    return self._remove(event)
                listing.remove(event)
            case IllegalKey():
                if listing is None:
                    self._skip(event)
                    self._reach(event.revision)
                else:
                    listing.illegal[event.key] = event
            case Listing():
                self._listing = _Listing(event.incarnation)
            case Listed():
                return self._end_listing(event.revision)
        return ()

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

    def _end_listing(self, revision: int) -> Sequence[Change[T]]:
        """Take over the listing: objects that it does not contain were deleted."""
        listing, self._listing = self._listing, None
        if listing is None:
            return ()
        if listing.incarnation != self.incarnation:
            self.revision, self.since = 0, revision
        last_revision = self.revision
        for key in [key for key, invalid in self.invalid.items() if invalid.illegal]:
            if key not in listing.illegal:
                del self.invalid[key]
        for event in listing.illegal.values():
            self._skip(event)
        folded = (self._fold(stored, initial=True) for stored in listing.objects.values())
        changes = [change for change in folded if change is not None]
        for key in [key for key in (*self._objects, *self.invalid) if key not in listing.objects]:
            if key in self and key not in listing.illegal:
                marker = listing.deleted.pop(key, None)
                changes.append(self._drop(key, purged=marker is not None and marker.purged))
        for key, deleted in listing.deleted.items():
            if deleted.revision > last_revision:
                purged = deleted.purged
                changes.append(Change(self.kind, key, None, None, initial=True, purged=purged))
        self.incarnation = listing.incarnation
        self._reach(revision)
        self.synced.set()
        return changes

    def _put(self, stored: Stored) -> Sequence[Change[T]]:
        change = self._fold(stored)
        self._reach(stored.revision)
        return () if change is None else (change,)

    def _remove(self, deleted: Deleted) -> Sequence[Change[T]]:
        change = self._drop(deleted.key, purged=deleted.purged)
        self._reach(deleted.revision)
        return (change,)

    def _fold(self, stored: Stored, *, initial: bool = False) -> Change[T] | None:
        key = stored.key
        old = self._objects.get(key)
        if old is not None and _same(old, stored):
            self.invalid.pop(key, None)
            return None  # a relist repeats a cached state
        try:
            obj = self.kind.decode(stored.value)
            indexed = [(index, index.values_of(obj)) for index in self._indexes.values()]
        except InvalidObjectError as error:
            self._reject(Invalid(stored, error, old))
            return None
        self.invalid.pop(key, None)
        self._objects[key] = stored
        self._wake_key_waiters(key)
        for index, values in indexed:
            index.put(key, values)
        return Change(self.kind, key, old, stored, initial)

    def _drop(self, key: str, *, purged: bool = False) -> Change[T]:
        self.invalid.pop(key, None)
        old = self._objects.pop(key, None)
        for index in self._indexes.values():
            index.remove(key)
        self._wake_key_waiters(key)
        return Change(self.kind, key, old, None, purged=purged)

    def _reject(self, invalid: Invalid) -> None:
        previous = self.invalid.get(invalid.stored.key)
        self.invalid[invalid.stored.key] = invalid
        self._wake_key_waiters(invalid.stored.key)
        if previous is None or not _same(previous.stored, invalid.stored):
            self._on_invalid(invalid)

    def _skip(self, event: IllegalKey) -> None:
        """Record a message whose name is not a legal key, and report it the first time."""
        if not event.exists:
            self.invalid.pop(event.key, None)
            return
        reported = event.key in self.invalid
        error = InvalidObjectError("its name is no legal key")
        invalid = Invalid(Stored(event.key, event.revision, b""), error, illegal=True)
        self.invalid[event.key] = invalid
        if not reported:
            self._on_invalid(invalid)

    def _reach(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        while self._waiters and self._waiters[0][0] <= self.revision:
            _, _, future = heapq.heappop(self._waiters)
            _resolve(future)

    def _wake_key_waiters(self, key: str) -> None:
        if self._key_waiters:
            for future in self._key_waiters.pop(key, ()):
                _resolve(future)


class _Listing:
    """The events of a listing that has not ended."""

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.objects: dict[str, Stored] = {}
        self.deleted: dict[str, Deleted] = {}
        self.illegal: dict[str, IllegalKey] = {}

    def put(self, stored: Stored) -> None:
        self.objects[stored.key] = stored
        self.deleted.pop(stored.key, None)

    def remove(self, deleted: Deleted) -> None:
        self.objects.pop(deleted.key, None)
        self.deleted[deleted.key] = deleted


class _Index(Generic[T]):
    """The keys of objects by the values that a function returns for them."""

    def __init__(self, name: str, func: IndexFunc[T]) -> None:
        self._name = name
        self._func = func
        self._keys: dict[str, set[str]] = {}
        self._values: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def keys(self, value: str) -> Collection[str]:
        return self._keys.get(value, ())

    def values(self) -> Collection[str]:
        return self._keys.keys()

    def values_of(self, obj: T) -> tuple[str, ...]:
        """Return the object's values; raises `InvalidObjectError` if the function fails."""
        try:
            return tuple(dict.fromkeys(self._func(obj)))
        except (Exception, SystemExit) as error:  # the function is a user's
            raise InvalidObjectError(f"index {self._name} fails: {error!r}") from error

    def put(self, key: str, values: tuple[str, ...]) -> None:
        if values == self._values.get(key, ()):
            return
        self.remove(key)
        if values:
            self._values[key] = values
        for value in values:
            self._keys.setdefault(value, set()).add(key)

    def remove(self, key: str) -> None:
        for value in self._values.pop(key, ()):
            keys = self._keys[value]
            keys.discard(key)
            if not keys:
                del self._keys[value]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _same(one: Stored, other: Stored) -> bool:
    return one.revision == other.revision and one.value == other.value
