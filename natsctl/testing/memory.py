"""Stores in memory with the rules of NATS: revisions, compare-and-set, delete markers, watches."""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from natsctl.errors import ConflictError, InvalidKeyError, NotFoundError, TooLargeError
from natsctl.jetstream.bucket import stream_of
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
VALUE_BYTES_MAX = 1024 * 1024 - 256  # the default limit of a nats-server, less the headers


Entry: TypeAlias = Stored | Deleted


class MemoryStore(WatchedStore[Kind[Any], Entry]):
    """Keeps the objects of one kind in this process; a `Store`.

    The next watch of a view continues where the one before broke, as on NATS, unless the bucket is
    another one since, or has lost keys.

    Tests inject faults: `break_watches` is a lost connection, `vanish` a purge by an administrator,
    `recreate` a bucket that was deleted and created again, and `fail` a server that rejects every
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
        self._bucket.generation += 1

    def forget(self) -> None:
        self._reader = None

    def recreate(self) -> None:
        """Replace the bucket by an empty one of the same name, and end every watch."""
        self._bucket.recreate()
        self.break_watches()

    def backup(self) -> "Backup":
        """Return a copy of the bucket for `restore`."""
        entries = {key: list(entries) for key, entries in self._bucket.entries.items()}
        return Backup(entries, self._bucket.revision)

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

    def _first_events(self, shown: Collection[str] | None) -> list[WatchEvent]:
        bucket, newest, reader = self._bucket, self._newest(), self._reader
        end = Listed(bucket.revision)  # `vanish` may have removed the newest entry
        if shown is not None and reader is not None and reader.may_continue(shown, bucket):
            later = (entry for entry in newest if entry.revision > reader.revision)
            return [*map(_shown, later), end]
        if shown is not None:
            self._reader = _Reader(shown, bucket.generation)
        incarnation = str(bucket.incarnation)
        if self._fallbacks is None:
            self._fallbacks = bucket.fallbacks
        elif self._fallbacks != bucket.fallbacks:
            incarnation = f"{incarnation}#{bucket.fallbacks}"
        return [Listing(incarnation), *map(_shown, newest), end]

    def _event(self, change: Entry) -> WatchEvent | None:
        return _shown(change) if matches(self._pattern, change.key) else None

    def _was_taken(self, shown: Collection[str] | None, event: WatchEvent) -> None:
        reader = self._reader
        if reader is None or shown is not reader.shown:
            return
        match event:
            case Applied(stored):
                reader.revision = stored.revision
            case Deleted(revision=revision):
                reader.revision = revision
            case Listed(revision=revision):
                reader.revision, reader.complete = revision, True
            case _:
                pass


class _Reader:
    """How far the reader of a view has come, and in which generation of its bucket."""

    def __init__(self, shown: Collection[str], generation: int) -> None:
        self.shown = shown
        self.revision = 0
        self.complete = False  # whether it has taken a whole list
        self._generation = generation

    def may_continue(self, shown: Collection[str], bucket: "_Bucket") -> bool:
        return self.complete and self.shown is shown and self._generation == bucket.generation


def _shown(entry: Entry) -> WatchEvent:
    return entry if isinstance(entry, Deleted) else Applied(entry)


class Backup(msgspec.Struct, frozen=True):
    """A copy of a bucket: the entries of its keys, and its revision."""

    entries: dict[str, list[Entry]]
    revision: int


class _Bucket(WatchedObjects[Entry]):
    """The entries of one bucket, which several kinds may share."""

    def __init__(self, kind: Kind[Any]) -> None:
        super().__init__()
        declared = kind if isinstance(kind, KvKind) else None
        self.value_bytes_max = (declared and declared.max_value_bytes) or VALUE_BYTES_MAX
        self.entries: dict[str, list[Entry]] = defaultdict(list)
        self.incarnation = 1
        self.fallbacks = 0
        self._history = (declared and declared.history) or HISTORY

    def last(self, key: str) -> Stored | Deleted | None:
        entries = self.entries.get(key)
        return entries[-1] if entries else None

    def newest(self) -> list[Stored | Deleted]:
        return [entries[-1] for entries in self.entries.values() if entries]

    def history(self, key: str) -> list[Stored | Deleted]:
        return list(self.entries.get(key, ()))

    def append(self, entry: Stored | Deleted, *, purge: bool = False) -> None:
        self.writes += 1
        self.revision = entry.revision
        entries = self.entries[entry.key]
        entries.append(entry)
        del entries[: -1 if purge else -self._history]
        self.notify(entry)

    def recreate(self) -> None:
        self.entries.clear()
        self.revision = 0
        self.incarnation += 1
        self.generation += 1

    def restore(self, backup: Backup) -> None:
        self.entries.clear()
        self.entries |= {key: list(entries) for key, entries in backup.entries.items()}
        self.revision = backup.revision
        self.fallbacks += 1
        self.generation += 1


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
