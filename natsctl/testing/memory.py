"""Stores in memory with the rules of NATS: revisions, compare-and-set, delete markers, watches."""

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from natsctl.errors import ConflictError, InvalidKeyError, NotFoundError, TooLargeError
from natsctl.jetstream.bucket import stream_of
from natsctl.jetstream.resume import NotResumedError, Proof, Seen
from natsctl.model.keys import check_key, matches
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.store import (
    UNGUARDED,
    Applied,
    Deleted,
    Guarded,
    Listed,
    Listing,
    Stored,
    WatchEvent,
    WriteGuard,
)
from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.jetstream import MemoryJetStream, changes_something
from natsctl.testing.watched import MemoryRecorder, WatchedObjects, WatchedStore

HISTORY = 5
DAY = 1 << 50  # far more than the writes of a bucket, which are its clock
VALUE_BYTES_MAX = 1024 * 1024 - 256  # the default limit of a nats-server, less the headers


Entry: TypeAlias = Stored | Deleted


class MemoryStore(WatchedStore[Kind[Any], "tuple[Entry, int]"]):
    """Keeps the objects of one kind in this process; a `Store`.

    The next watch of a view continues where the one before broke, as on NATS, unless what it has
    seen differs from the bucket.

    Tests inject faults: `break_watches` is a lost connection, `vanish` a purge by an administrator,
    `recreate` a bucket that was deleted and created again, `rename` another subject transform,
    `turn_back_clock` a server's clock that was set back, and `fail` a server that rejects every
    request. A fault affects every kind in the same *bucket*.
    """

    def __init__(
        self, kind: Kind[Any], bucket: "_Bucket | None" = None, *, guard: WriteGuard = UNGUARDED
    ) -> None:
        self._bucket = _Bucket(kind) if bucket is None else bucket
        super().__init__(kind, self._bucket, guard)
        self._name = kind.bucket if isinstance(kind, KvKind) else kind.name
        self._pattern = kind.keys if isinstance(kind, KvKind) else ">"
        self._fallbacks: int | None = None  # of the bucket, when it was first listed here
        self._reader: _Reader | None = None  # with the view that was watched last

    async def get(self, key: str) -> Stored:
        await self._pass()
        return self._existing(self._own(key))

    async def create(self, key: str, value: bytes) -> Stored:
        await self._pass(writes=True)
        if isinstance(self._bucket.last(self._own(key)), Stored):
            raise ConflictError(f"{key} exists in {self._name}")
        return self._write(key, value)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        await self._pass(writes=True)
        self._expect(self._own(key), revision)
        return self._write(key, value)

    async def delete(
        self,
        key: str,
        *,
        revision: int | None = None,
        uid: str = "",  # noqa: ARG002 - a revision is of one object only
        purge: bool = False,
    ) -> int:
        await self._pass(writes=True)
        last = self._bucket.last(self._own(key))
        if revision is not None:
            self._expect(key, revision)
        elif last is None or not purge:
            self._existing(key)
        deleted = Deleted(key, self._bucket.revision + 1, purge)
        self._bucket.append(deleted, purge=purge)
        return deleted.revision

    async def history(self, key: str) -> list[Stored | Deleted]:
        await self._pass()
        return self._bucket.history(self._own(key))

    async def last_revision(self) -> int:
        await self._pass()
        return self._bucket.revision

    async def newest_revision(self) -> int:
        await self._pass()
        newest = self._newest()
        return newest[-1].revision if newest else 0

    def keys(self) -> list[str]:
        """Return the keys of the objects that exist, in order."""
        return sorted(entry.key for entry in self._newest() if isinstance(entry, Stored))

    def stored(self) -> list[Stored]:
        """Return the objects that exist, in the order of their revisions."""
        return [entry for entry in self._newest() if isinstance(entry, Stored)]

    def vanish(self, *keys: str) -> None:
        """Remove keys without a delete marker and without an event of a watch."""
        for key in keys:
            del self._bucket.entries[key]

    def forget(self) -> None:
        self._reader = None

    def recreate(self) -> None:
        """Replace the bucket by an empty one of the same name, and end every watch."""
        self._bucket.recreate()
        self.break_watches()

    def rename(self) -> None:
        """Move the keys to other subjects, as another transform does, and end every watch.

        The next watches list again: what was seen has other names now.
        """
        self.break_watches(listed=True)

    def turn_back_clock(self) -> None:
        """Let what is written from now on be a day older, as if the server's clock was set back."""
        self._bucket.clock -= DAY

    def backup(self) -> "Backup":
        """Return a copy of the bucket for `restore`."""
        entries = {key: list(entries) for key, entries in self._bucket.entries.items()}
        return Backup(entries, self._bucket.revision, dict(self._bucket.times))

    def restore(self, backup: "Backup") -> None:
        """Replace the bucket by an older copy, as a restored backup of a server does."""
        self._bucket.restore(backup)
        self.break_watches()

    def _own(self, key: str) -> str:
        if not matches(self._pattern, check_key(key)):
            raise InvalidKeyError(
                f"key {key!r} does not match the keys of {self._name}: {self._pattern}"
            )
        return key

    def _existing(self, key: str) -> Stored:
        match self._bucket.last(key):
            case Stored() as stored:
                return stored
            case Deleted(revision=revision):
                message = f"{self._name} has no {key}: it was deleted"
                raise NotFoundError(message, deleted_at=revision)
            case None:
                raise NotFoundError(f"{self._name} has no {key}")

    def _expect(self, key: str, revision: int) -> None:
        last = self._bucket.last(key)
        if last is None or last.revision != revision:
            raise ConflictError(f"{key} of {self._name} changed since it was read")

    def _write(self, key: str, value: bytes) -> Stored:
        if len(value) > self._bucket.value_bytes_max:
            raise TooLargeError(f"{key} of {self._name} has {len(value)} bytes, which is too many")
        stored = Stored(key, self._bucket.revision + 1, value)
        self._bucket.append(stored)
        return stored

    def _newest(self) -> list[Stored | Deleted]:
        """Return the newest entry of every key, in the order of revisions."""
        newest = (entry for entry in self._bucket.newest() if matches(self._pattern, entry.key))
        return sorted(newest, key=lambda entry: entry.revision)

    def _listing(self) -> list[WatchEvent]:
        newest = self._newest()
        events = [entry if isinstance(entry, Deleted) else Applied(entry) for entry in newest]
        revision = self._bucket.revision  # `vanish` may have removed the newest entry
        if self._fallbacks != self._bucket.fallbacks and self._fallbacks is not None:
            incarnation = f"{self._bucket.incarnation}#{self._bucket.fallbacks}"
        else:
            self._fallbacks, incarnation = self._bucket.fallbacks, str(self._bucket.incarnation)
        return [Listing(incarnation), *events, Listed(revision)]

    def _event(self, change: tuple[Entry, int]) -> WatchEvent | None:
        return _shown(change[0]) if matches(self._pattern, change[0].key) else None

    def _first_events(
        self, shown: Collection[str] | None
    ) -> list[tuple[WatchEvent, tuple[Entry, int] | None]]:
        bucket, times = self._bucket, self._bucket.times
        if shown is None:
            return [(event, None) for event in self._listing()]
        if self._reader is None or self._reader.shown is not shown:
            self._reader = _Reader(shown)
        reader = self._reader
        entries = self._since(reader) if reader.may_continue(bucket) else None
        if entries is None:
            begin, *_, end = self._listing()
            entries = self._newest()
            reader.begin(bucket)
            first: list[tuple[WatchEvent, tuple[Entry, int] | None]] = [(begin, None)]
        else:
            end, first = Listed(bucket.revision), []
        reader.complete = False
        changes = [(_shown(entry), (entry, times.get(entry.revision, 0))) for entry in entries]
        return [*first, *changes, (end, None)]

    def _since(self, reader: "_Reader") -> list[Entry] | None:
        """Return the entries that follow what a reader has seen, None if more has changed."""
        proof, times = Proof(reader.seen), self._bucket.times
        kept = [entry for entry in self._bucket.all() if matches(self._pattern, entry.key)]
        repeated = [entry for entry in kept if entry.revision >= reader.seen.first]
        try:
            proof.compare(
                (entry.key, entry.revision, times.get(entry.revision, 0)) for entry in repeated
            )
            proof.finish()
        except NotResumedError:
            return None
        new = [entry for entry in repeated if entry.revision > reader.seen.last]
        names = {*reader.shown, *reader.deleted, *(entry.key for entry in new)}
        return new if len(names) == len({entry.key for entry in kept}) else None

    def _was_taken(
        self,
        shown: Collection[str] | None,
        event: WatchEvent,
        change: tuple[Entry, int] | None,
    ) -> None:
        reader = self._reader
        if reader is not None and shown is reader.shown:
            if change is not None:
                reader.note(*change)
            elif isinstance(event, Listed):
                reader.complete = True


class _Reader:
    """What the reader of one view has seen of a bucket."""

    def __init__(self, shown: Collection[str]) -> None:
        self.shown = shown
        self.seen = Seen()
        self.deleted: set[str] = set()
        self.complete = False  # whether it has taken a whole list
        self._of = (0, 0)

    def may_continue(self, bucket: "_Bucket") -> bool:
        """Return whether the bucket may be the one that was seen."""
        is_same = self._of == (bucket.incarnation, bucket.losses)
        has_seen = self.complete and bool(self.seen.newest)
        return is_same and has_seen and self.seen.last <= bucket.revision

    def begin(self, bucket: "_Bucket") -> None:
        """Begin a list."""
        self.seen, self._of = Seen(), (bucket.incarnation, bucket.losses)
        self.deleted.clear()

    def note(self, entry: Entry, time: int) -> None:
        """Note an entry that was taken."""
        self.seen.note(((entry.key, entry.revision, time),))
        if isinstance(entry, Deleted):
            self.deleted.add(entry.key)
        else:
            self.deleted.discard(entry.key)


def _shown(entry: Entry) -> WatchEvent:
    return entry if isinstance(entry, Deleted) else Applied(entry)


class Backup(msgspec.Struct, frozen=True):
    """A copy of a bucket: the entries of its keys, its revision, and when each was written."""

    entries: dict[str, list[Entry]]
    revision: int
    times: dict[int, int] = {}


class _Bucket(WatchedObjects["tuple[Entry, int]"]):
    """The entries of one bucket, which several kinds may share."""

    def __init__(self, kind: Kind[Any]) -> None:
        super().__init__()
        declared = kind if isinstance(kind, KvKind) else None
        self.value_bytes_max = (declared and declared.max_value_bytes) or VALUE_BYTES_MAX
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        self.times: dict[int, int] = {}  # when each revision was stored
        self.clock = 0
        self.incarnation = 1
        self.fallbacks = 0
        self._history = (declared and declared.history) or HISTORY

    def last(self, key: str) -> Stored | Deleted | None:
        entries = self.entries.get(key)
        return entries[-1] if entries else None

    def newest(self) -> list[Stored | Deleted]:
        return [entries[-1] for entries in self.entries.values() if entries]

    def all(self) -> list[Entry]:
        """Return every entry, in the order of revisions."""
        entries = itertools.chain.from_iterable(self.entries.values())
        return sorted(entries, key=lambda entry: entry.revision)

    def history(self, key: str) -> list[Stored | Deleted]:
        return list(self.entries.get(key, ()))

    def append(self, entry: Stored | Deleted, *, purge: bool = False) -> None:
        self.writes += 1
        self.clock += 1
        self.revision = entry.revision
        entries = self.entries[entry.key]
        entries.append(entry)
        del entries[: -1 if purge else -self._history]
        self.times[entry.revision] = self.clock
        self.notify((entry, self.clock))

    def recreate(self) -> None:
        self.entries.clear()
        self.times.clear()
        self.revision = 0
        self.incarnation += 1

    def restore(self, backup: Backup) -> None:
        self.entries.clear()
        self.entries |= {key: list(entries) for key, entries in backup.entries.items()}
        self.revision, self.times = backup.revision, dict(backup.times)
        self.fallbacks += 1


class MemoryStores(Guarded):
    """Stores in memory, one per bucket or kind; a `Stores`.

    Kinds of the same bucket share its entries, as in NATS. `kube` is the cluster beside the NATS
    system: a new cluster by default, or one that several NATS systems share. Guards don't apply
    to it.
    """

    def __init__(self, *, kube: MemoryCluster | None = None) -> None:
        self.events = MemoryRecorder()
        self.kube = MemoryCluster(self.events) if kube is None else kube
        self.jetstream = MemoryJetStream()
        self._buckets: dict[str, _Bucket] = {}

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Ask the JetStream API in memory, which doesn't know the buckets; see `JetStream.api`."""
        if changes_something(endpoint):
            self.guard.check(None)
        return await self.jetstream.api(endpoint, body)

    async def open(self, kind: Kind[Any]) -> MemoryStore:
        return self.store(kind)

    def store(self, kind: Kind[Any]) -> MemoryStore:
        """Return the kind's store; the first call creates the bucket."""
        name = stream_of(kind.bucket) if isinstance(kind, KvKind) else kind.name
        if name not in self._buckets:
            self._buckets[name] = _Bucket(kind)
        return MemoryStore(kind, self._buckets[name], guard=self.guard)

    @property
    def delivered(self) -> bool:
        """True if every open watch, also of the cluster, has yielded every change."""
        return all(bucket.delivered for bucket in self._buckets.values()) and self.kube.delivered

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[MemoryRecorder]:  # noqa: ARG002 - one recorder serves all
        yield self.events.guarded(self.guard)
