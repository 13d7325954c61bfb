"""Stores in memory, with a real store's rules: revisions, compare-and-set, markers, watches."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec

from natsctl.errors import ConflictError, NotFoundError, StoreError, WatchBrokenError
from natsctl.kv.codec import check_key
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.recorder import EventType
from natsctl.model.store import Applied, Deleted, Listed, Listing, Stored, WatchEvent

HISTORY = 5


class MemoryStore:
    """Keeps the objects of one kind in this process; a `Store`.

    Faults are made on purpose: `break_watches` stands for a lost connection, `vanish` for an
    administrator's purge, `recreate` for a store deleted and made again, `fail` for one that
    refuses everything.
    """

    def __init__(self, kind: Kind[Any]) -> None:
        self.kind = kind
        self.writes = 0
        self._entries: dict[str, list[Stored | Deleted]] = defaultdict(list)
        self._revision = 0
        self._incarnation = 1
        self._failure: StoreError | None = None
        self._watches: set[asyncio.Queue[WatchEvent | None]] = set()

    async def get(self, key: str) -> Stored:
        """See `Store.get`."""
        await self._pass()
        entries = self._entries.get(check_key(key))
        match entries[-1] if entries else None:
            case Stored() as stored:
                return stored
            case Deleted(_, revision):
                raise NotFoundError(f"{key} was deleted", deleted_at=revision)
            case None:
                raise NotFoundError(f"{key} does not exist")

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`."""
        await self._pass()
        if isinstance(self._last(check_key(key)), Stored):
            raise ConflictError(f"{key} exists in {self.kind.name}")
        return self._write(key, value)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """See `Store.update`."""
        await self._pass()
        last = self._last(check_key(key))
        if last is None or last.revision != revision:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        return self._write(key, value)

    async def delete(self, key: str, *, revision: int | None = None, purge: bool = False) -> int:
        """See `Store.delete`."""
        await self._pass()
        last = self._last(check_key(key))
        if last is None or (isinstance(last, Deleted) and not purge):
            raise NotFoundError(f"{key} does not exist")
        if revision is not None and last.revision != revision:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        if purge:
            self._entries[key].clear()
        return self._append(Deleted(key, self._next())).revision

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`."""
        await self._pass()
        return list(self._entries.get(check_key(key), ()))

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """See `Store.watch`."""
        await self._pass()
        queue: asyncio.Queue[WatchEvent | None] = asyncio.Queue()
        self._watches.add(queue)
        try:
            async with aclosing(self._events(queue, self._listing())) as events:
                yield events
        finally:
            self._watches.discard(queue)

    def keys(self) -> list[str]:
        """Return the keys of the objects that exist, in order."""
        return sorted(key for key in self._entries if isinstance(self._last(key), Stored))

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    def break_watches(self) -> None:
        """End every watch, as a lost connection does."""
        for queue in self._watches:
            queue.put_nowait(None)

    def vanish(self, *keys: str) -> None:
        """Remove keys without a trace, and tell no watch."""
        for key in keys:
            del self._entries[key]

    def recreate(self) -> None:
        """Become an empty store of the same name."""
        self._entries.clear()
        self._revision = 0
        self._incarnation += 1
        self.break_watches()

    def fail(self, error: StoreError | None) -> None:
        """Refuse every call with *error*, until called with None; ends every watch too."""
        self._failure = error
        if error is not None:
            self.break_watches()

    async def _pass(self) -> None:
        """Let others run, as a real store would, and refuse where told to."""
        await asyncio.sleep(0)
        if self._failure is not None:
            raise self._failure

    def _listing(self) -> list[WatchEvent]:
        """Return the newest message of every key, in the order of revisions."""
        newest = sorted((e[-1] for e in self._entries.values() if e), key=lambda at: at.revision)
        shown = [at if isinstance(at, Deleted) else Applied(at) for at in newest]
        return [Listing(str(self._incarnation)), *shown, Listed(self._revision)]

    async def _events(
        self, queue: asyncio.Queue[WatchEvent | None], listing: list[WatchEvent]
    ) -> AsyncGenerator[WatchEvent, None]:
        for event in listing:
            yield event
        while (live := await queue.get()) is not None:
            yield live
        raise WatchBrokenError(f"the watch of {self.kind.name} was broken")

    def _last(self, key: str) -> Stored | Deleted | None:
        entries = self._entries.get(key)
        return entries[-1] if entries else None

    def _next(self) -> int:
        self._revision += 1
        return self._revision

    def _write(self, key: str, value: bytes) -> Stored:
        stored = Stored(key, self._next(), value)
        self._append(stored)
        return stored

    def _append(self, entry: Stored | Deleted) -> Stored | Deleted:
        self.writes += 1
        entries = self._entries[entry.key]
        entries.append(entry)
        history = self.kind.history if isinstance(self.kind, KvKind) else HISTORY
        del entries[:-history]
        event = Applied(entry) if isinstance(entry, Stored) else entry
        for queue in self._watches:
            queue.put_nowait(event)
        return entry


class Event(msgspec.Struct, frozen=True):
    """An event as it was recorded."""

    key: str
    type: EventType
    reason: str
    message: str


class MemoryRecorder:
    """Keeps events in a list; a `Recorder`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """See `Recorder.event`."""
        self.events.append(Event(key, type, reason, message))


class MemoryStores:
    """Stores in memory, one per bucket or kind; a `Stores`.

    Kinds with the same bucket share a store, as they would in NATS.
    """

    def __init__(self) -> None:
        self.events = MemoryRecorder()
        self._stores: dict[str, MemoryStore] = {}

    async def open(self, kind: Kind[Any]) -> MemoryStore:
        """See `Stores.open`."""
        return self.store(kind)

    def store(self, kind: Kind[Any]) -> MemoryStore:
        """Return the kind's store, made at the first call."""
        name = kind.bucket if isinstance(kind, KvKind) else kind.name
        return self._stores.setdefault(name, MemoryStore(kind))

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[MemoryRecorder]:  # noqa: ARG002 - one recorder serves all
        """See `Stores.recorder`."""
        yield self.events
