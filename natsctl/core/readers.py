"""Gives sync handlers their primaries and tertiaries.

Reads come from the table, and include the writes of the current sync. Writes are compare-and-set at
the store.
"""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import msgspec

from natsctl.core.compare_and_set import (
    Written,
    delete,
    deleted_at,
    read,
    release,
    rewrite,
    with_finalizer,
)
from natsctl.core.informer import Informer
from natsctl.core.sync import current_sync
from natsctl.core.table import is_read
from natsctl.core.workqueue import WorkQueue
from natsctl.core.writes import Writes
from natsctl.errors import ConflictError, InvalidObjectError, NotFoundError, UnreadError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.store import OpenStore, Stored

T = TypeVar("T")

Change: TypeAlias = Callable[[Stored | None], bytes]


class CacheReader(Generic[T]):
    """Reads objects of one kind."""

    def __init__(self, informer: Informer[T], writes: Writes) -> None:
        self.informer = informer
        self.kind: Kind[T] = informer.table.kind
        self._store = informer.store
        self._writes = writes

    @property
    def available(self) -> bool:
        """True if the kind exists in the store; False only for an optional kind."""
        return not self.informer.absent

    def get(self, key: str) -> T | None:
        """Return the object, None if it doesn't exist.

        If the newest state doesn't decode, you get the last valid one; `error` returns the reason.
        Raises `UnreadError` if the object belongs to another process, and its value isn't read yet.
        """
        stored = self._writes.read(self.informer, key)
        return None if stored is None else self._decode(stored)

    def keys(self) -> Collection[str]:
        """Return the keys of all cached objects, changed by the writes of this sync."""
        return self._writes.keys(self.informer)

    def items(self) -> dict[str, T]:
        """Return all objects by key; decodes each of them."""
        return self._decoded(self.keys())

    def by_index(self, name: str, value: str) -> dict[str, T]:
        """Return the objects with *value* in the slot's index *name*, by key."""
        table, written = self.informer.table, self._writes.written_keys(self.informer)
        indexed = self._writes.query(self.informer, name, value)
        cached = [key for key in indexed if key not in written]
        changed = self._decoded(written)
        matching = [key for key, obj in changed.items() if value in table.index_of(name, obj)]
        return self._decoded((*cached, *matching))

    def error(self, key: str) -> InvalidObjectError | None:
        """Return why the object's newest state is invalid, None if it is valid."""
        invalid = self.informer.table.invalid.get(key)
        return None if invalid is None else invalid.error

    async def read(self, key: str) -> T | None:
        """Read the object from the store's leader; return None if it doesn't exist."""
        stored = await read(self._store, key)
        return None if stored is None else self.kind.decode(stored.value)

    def _decoded(self, keys: Collection[str]) -> dict[str, T]:
        states = self._writes.read_all(self.informer, keys)
        return {stored.key: self._decode(stored) for stored in states}

    def _decode(self, stored: Stored) -> T:
        table = self.informer.table
        if table.partial and not is_read(stored):
            table.wants_all.set()
            raise UnreadError(self.kind.name, stored.key)
        return table.decode(stored)


class Tertiary(CacheReader[T]):
    """Objects that are only read; their changes enqueue no key."""


class Primary(CacheReader[T]):
    """The objects that hold the desired state."""

    def __init__(
        self,
        informer: Informer[T],
        writes: Writes,
        open_store: OpenStore | None = None,
        queue: WorkQueue[str] | None = None,
    ) -> None:
        super().__init__(informer, writes)
        self.open_store = open_store  # opens the stores of records beside the objects
        self.queue = WorkQueue[str]() if queue is None else queue
        """The work queue of the keys, which has the notes of their syncs."""

    def get(self, key: str) -> T | None:
        sync, table = current_sync.get(), self.informer.table
        own = sync is not None and sync.key == key
        if self._writes.unseen or (sync is not None and sync.tape is not None):
            stored = self._writes.read(self.informer, key)
        elif own and sync.task is None and sync.table is table:  # type: ignore[union-attr]  # it is own
            stored = sync.stored  # type: ignore[union-attr]  # nothing else has run since the start
        else:
            stored = table.get(key)
        if stored is None:
            return None
        kept = table.decoded.pop(key, None)
        if kept is not None and kept[0] is stored:
            obj = kept[1]
        else:
            obj = self._decode(stored) if table.partial else self.kind.decode(stored.value)
        if sync is not None and own and not self.kind.plain:
            sync.generation = obj.metadata.generation  # type: ignore[attr-defined]  # not plain
        return obj

    def _decoded(self, keys: Collection[str]) -> dict[str, T]:
        objects = super()._decoded(keys)
        sync = current_sync.get()
        if sync is not None and sync.key in objects and not self.kind.plain:
            generation = objects[sync.key].metadata.generation  # type: ignore[attr-defined]  # not plain
            sync.generation = generation
        return objects

    async def put(self, key: str, obj: T) -> int:
        """Create the object, or change what it asks for, and return its revision.

        Labels and annotations are added to the existing ones. The status stays, and so do fields
        that the type doesn't know.
        """
        encode = self.kind.encode
        change: Change = lambda it: encode(None if it is None else it.value, obj)  # noqa: E731 - short
        return (await self.rewrite(key, change)).revision

    async def create(self, key: str, obj: T) -> int:
        """Create the object and return its revision; raises `ConflictError` if it exists."""
        value = self.kind.encode(None, obj)
        return (await self.write(key, lambda: self._store.create(key, value))).revision

    async def update(self, key: str, obj: T, *, revision: int) -> int:
        """Change the object and return its new revision.

        Raises `ConflictError` unless *revision* is the newest.
        """
        current = await self._store.get(key)
        if current.revision != revision:
            raise ConflictError(f"{key} is at revision {current.revision}, not at {revision}")
        value = self.kind.encode(current.value, obj)
        send = partial(self._store.update, key, value, revision=revision)
        return (await self.write(key, send)).revision

    async def delete(self, key: str) -> None:
        """Delete the object, or mark it deleted if it has finalizers.

        Raises `NotFoundError` if it doesn't exist.
        """
        with self._writes.writing(self.informer, key):
            deleted = await delete(self._store, key)
        self._writes.landed(self.informer, key, deleted)

    async def update_status(self, key: str, status: msgspec.Struct | Document) -> int:
        """Merge *status* into the object's status and return the revision.

        A value of None removes a field. `observedGeneration` becomes the generation that this sync
        has read, or else the object's. Nothing is written if the status stays the same. Raises
        `NotFoundError` if the object doesn't exist.
        """
        self.kind.require_metadata()
        patch = documents.plain(status)

        def change(current: Stored | None) -> bytes:
            before = _existing(key, current).value
            document = self.kind.document(before)
            changed = documents.with_status(document, {**self._observed(key, document), **patch})
            return before if changed == document else self.kind.render(changed, before)

        return (await self.rewrite(key, change)).revision

    @staticmethod
    def _observed(key: str, document: Document) -> Document:
        """Return the status field with the generation that the sync of the key has read."""
        sync = current_sync.get()
        read_generation = sync.generation if sync is not None and sync.key == key else 0
        generation = read_generation or documents.metadata_of(document).get("generation")
        return {} if generation is None else {"observedGeneration": generation}

    async def add_finalizer(self, key: str, name: str) -> int:
        """Add the finalizer *name* to the object, and return the revision."""
        change: Change = lambda current: with_finalizer(_existing(key, current), name)  # noqa: E731 - short
        return (await self.rewrite(key, change)).revision

    async def remove_finalizer(self, key: str, *names: str) -> None:
        """Remove the finalizers; a deleted object is removed with its last one."""
        with self._writes.writing(self.informer, key):
            written = await release(self._store, key, *names)
        if written is not None:
            self._writes.landed(self.informer, key, written)

    async def last(self, key: str) -> T | None:
        """Return the last valid state of a deleted object, None if none is known."""
        stored = await self.last_state(key)
        return None if stored is None else self.kind.decode(stored.value)

    async def last_state(self, key: str) -> Stored | None:
        """Return the state that `last` decodes."""
        noted = self.queue.noted(key)
        if noted is not None and noted.last is not None:
            return noted.last
        history = await self._store.history(key)
        states = (state for state in reversed(history) if isinstance(state, Stored))
        return next((state for state in states if self.kind.valid(state.value)), None)

    def forget_last(self, key: str, state: Stored | None = None) -> None:
        """Forget the last state of a deleted object, or only this *state*."""
        noted = self.queue.noted(key)
        if noted is not None and (state is None or noted.last is state):
            noted.last = None
            self.queue.tidy(key)

    async def deleted_at(self, key: str) -> int | None:
        """Return the revision of the delete marker that proves the deletion, None without one."""
        return await deleted_at(self._store, key)

    async def forget(self, key: str) -> None:
        """Purge a deleted object, so that no sync cleans up after it again."""
        self.forget_last(key)
        marker = await self.deleted_at(key)
        if marker is not None:
            await self._store.delete(key, revision=marker, purge=True)

    async def rewrite(self, key: str, change: Change, *, seen: Stored | None = None) -> Stored:
        """Store what *change* returns for the object's bytes, by compare-and-set.

        Begins with the state *seen*, by default that of the table. Returns the stored state.
        """
        if seen is None:
            seen = self._writes.read(self.informer, key)
            if seen is not None and not is_read(seen):
                seen = await read(self._store, key)

        async def send() -> Stored:
            return (await rewrite(self._store, key, change, seen=seen)).stored

        return await self.write(key, send)

    async def write(self, key: str, send: Callable[[], Awaitable[Stored]]) -> Stored:
        """Make a write of the object, which later reads and syncs of the key take into account."""
        with self._writes.writing(self.informer, key):
            stored = await send()
        self._writes.landed(self.informer, key, Written(stored.revision, stored))
        return stored


def _existing(key: str, current: Stored | None) -> Stored:
    if current is None:
        raise NotFoundError(f"{key} does not exist")
    return current
