"""Keeps the writes of syncs until the tables show them.

Reads within a sync include the writes of that sync. The next sync of the same key begins when the
tables include those writes. If a table does not include them in time, or if the result of a write
is unknown, the store is read instead.

A change that shows a write is known by its revisions, so that a sync does not enqueue its own key.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from natsctl.core.compare_and_set import Written
from natsctl.core.informer import Informer
from natsctl.core.sync import current_sync, current_tape
from natsctl.core.tape import KeysStep, QueryStep, ReadStep, TargetStep
from natsctl.errors import NotFoundError, StoreMissingError, StoreTimeoutError
from natsctl.model.store import Change, Stored

AnyInformer = Informer[Any]
Place = tuple[AnyInformer, str]
"""An object: the informer of its kind, and its key."""

Forward = Callable[[Change[Any], str | None], None]
"""Takes a change, and the key whose sync made it; None if no sync of this process did."""


class UnseenWrite(msgspec.Struct, eq=False):
    """A write that the table may not show yet."""

    writer: str  # the key whose sync wrote
    place: Place
    revision: int
    stored: Stored | None  # the object as it was written; None if it was deleted
    incarnation: str  # of the table at the time of the write
    base: int | None = None  # the revision before the write, 0 for a new object; None if unknown
    certain: bool = True  # whether no later write may have taken effect

    @property
    def order(self) -> tuple[int, bool]:
        """The position among the writes of an object: a deletion follows its base revision."""
        return _order(self.base or 0, None if self.stored is None else self.revision)

    @property
    def passed(self) -> bool:
        """Whether the table includes the write, and no longer has what the write deleted."""
        informer, key = self.place
        if informer.table.revision < self.revision:
            return False
        return self.stored is not None or not informer.table.shows(key, self.revision)


class Writes:
    """The writes of a controller's syncs that its tables may not show yet.

    `unseen` has them by the key whose sync wrote: such a key is synced only after `wait`. A table
    whose changes are passed to `see` has to be named by `follow`.
    """

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.notes = False  # whether syncs have tapes
        self.waited_s = 0.0
        self.timeouts = 0
        self.unseen: dict[str, dict[Place, UnseenWrite]] = {}  # the newest to each object
        self._timeout_s = timeout_s
        self._order: dict[AnyInformer, deque[UnseenWrite]] = defaultdict(deque)
        self._objects: dict[Place, _InFlight] = {}  # with writes that run, or that no change showed
        self._followers: dict[AnyInformer, tuple[Forward, Callable[[str], None]]] = {}

    # ---- a write

    @contextmanager
    def writing(self, informer: AnyInformer, key: str) -> Iterator[None]:
        """Hold back changes of the object until the write in the context has ended.

        If the write has no answer, or is cancelled, it may have taken effect. The next sync of the
        key that wrote then begins with the object as the store has it.
        """
        place, sync = (informer, key), current_sync.get()
        target = self._objects.setdefault(place, _InFlight())
        target.running += 1
        try:
            yield
        except (StoreTimeoutError, asyncio.CancelledError):
            if sync is not None:
                writes = self.unseen.setdefault(sync.key, {})
                before, incarnation = writes.get(place), informer.table.incarnation
                revision, stored = (0, None) if before is None else (before.revision, before.stored)
                writes[place] = UnseenWrite(
                    sync.key, place, revision, stored, incarnation, certain=False
                )
            raise
        finally:
            target.running -= 1
            if not target.running:
                if not target.landed:
                    del self._objects[place]
                changes, target.held_back = target.held_back, []
                for change in changes:
                    self.see(informer, change)

    def landed(
        self, informer: AnyInformer, key: str, written: Written, *, base: int | None = None
    ) -> None:
        """Note a write of the current sync; a write outside of a sync is not noted.

        Its change is known as the sync's own if *base* is the revision before the write.
        """
        sync = current_sync.get()
        if sync is None:
            return
        self._prune(informer)
        write = self._note(sync.key, (informer, key), written, base)
        if base is not None and informer in self._followers:
            self._objects.setdefault(write.place, _InFlight()).landed.append(write)

    def _note(
        self, key: str, place: Place, written: Written, base: int | None = None
    ) -> UnseenWrite:
        incarnation = place[0].table.incarnation
        write = UnseenWrite(key, place, written.revision, written.stored, incarnation, base)
        self.unseen.setdefault(key, {})[place] = write
        self._order[place[0]].append(write)
        return write

    def _prune(self, informer: AnyInformer) -> None:
        """Forget the oldest writes that the table includes, or whose store was replaced."""
        order, incarnation = self._order[informer], informer.table.incarnation
        while order:
            write = order[0]
            passed = write.passed
            if not passed and write.incarnation == incarnation:
                return
            order.popleft()
            writes = self.unseen.get(write.writer, {})
            if passed and writes.get(write.place) is write:
                del writes[write.place]
                if not writes:
                    del self.unseen[write.writer]

    # ---- may this key be synced?

    async def wait(self, key: str) -> None:
        """Wait until every table includes the writes of *key*'s syncs.

        If a table does not include a write in time, if its store was replaced, or if a later write
        may have taken effect, the object is read from the store; raises `StoreError` if that fails.
        """
        clock = asyncio.get_running_loop().time
        started = clock()
        deadline = started + self._timeout_s
        for place, write in list(self.unseen.get(key, {}).items()):
            informer, name = place
            table, shown = informer.table, False
            if write.incarnation == table.incarnation and write.certain:
                try:
                    async with asyncio.timeout_at(deadline):
                        if write.stored is None:
                            await table.left_behind(name, write.revision)
                        else:
                            await table.passed(write.revision)
                    shown = True
                except TimeoutError:
                    self.timeouts += 1
            if not shown:
                self._note(key, place, await _read(informer, name))
            self._prune(informer)
        self.waited_s += clock() - started

    # ---- is this change my own?

    def follow(
        self,
        informer: AnyInformer,
        forward: Forward,
        undone: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Forward the changes that `see` gets, each with the key whose sync made it, or None.

        If no change ever shows a write, the write was undone while the watch was broken, by a
        deletion or by a write of another sync. Then *undone* is called with the key whose sync
        wrote.
        """
        self._followers[informer] = forward, undone

    def see(self, informer: AnyInformer, change: Change[Any]) -> None:
        """Forward a change, now or when the running writes of its object have ended."""
        place = informer, change.key
        target = self._objects.get(place)
        if target is not None and target.running:
            target.held_back.append(change)
            return
        forward, undone = self._followers[informer]
        if target is None:
            forward(change, None)
            return
        base = 0 if change.before is None else change.before.revision
        shown = _order(base, None if change.after is None else change.after.revision)
        landed, target.landed = target.landed, []
        writer = None
        for write in landed:
            if write.order > shown:
                target.landed.append(write)
            elif write.order == shown and write.base == base:
                writer = write.writer
        if not target.landed:
            del self._objects[place]
        for other in {write.writer for write in landed if write.order < shown} - {writer}:
            undone(other)
        self._prune(informer)
        forward(change, writer)

    def listed(self, informer: AnyInformer) -> None:
        """Treat the writes that a complete list has not shown as undone.

        This includes a write that is newer than the list; its key is then synced once too often.
        """
        writers = set[str]()
        for place, target in list(self._objects.items()):
            if place[0] is informer:
                writers.update(write.writer for write in target.landed)
                target.landed = []
                if not target.running:
                    del self._objects[place]
        for writer in writers:
            self._followers[informer][1](writer)

    def undone(self, informer: AnyInformer) -> set[str]:
        """Return the keys whose syncs wrote what a complete list shows in an older state.

        The server acknowledged the write and lost it, or it is newer than the list.
        """
        shows = informer.table.shows
        return {
            write.writer
            for write in self._order[informer]
            if write.stored is not None and shows(write.place[1], write.revision - 1)
        }

    # ---- reads

    def read(self, informer: AnyInformer, key: str) -> Stored | None:
        """Return the object's last valid state, or the newer write of this sync's key."""
        written = self._written(informer, key) if self.unseen else None
        stored = informer.table.get(key) if written is None else written.stored
        if self.notes and (tape := current_tape()) is not None:
            tape.append(ReadStep(informer, key, stored))
        return stored

    def read_all(self, informer: AnyInformer, keys: Collection[str]) -> list[Stored]:
        """Return the states of several objects, as `read` does; those that exist."""
        states = (self.read(informer, key) for key in keys)
        return [stored for stored in states if stored is not None]

    def keys(self, informer: AnyInformer) -> tuple[str, ...]:
        """Return the keys of all objects in the table, changed by the writes of this sync."""
        written, keys = self.written_keys(informer), tuple(informer.table.keys())
        if written:
            kept = (key for key in keys if key not in written)
            keys = (*kept, *(stored.key for stored in self.read_all(informer, written)))
        if self.notes and (tape := current_tape()) is not None:
            tape.append(KeysStep(informer, keys))
        return keys

    def query(self, informer: AnyInformer, index: str, value: str) -> list[str]:
        """Return the keys of the objects in the table with *value* in an index, sorted."""
        keys = [stored.key for stored in informer.table.by_index(index, value)]
        if self.notes and (tape := current_tape()) is not None:
            tape.append(QueryStep(informer, index, value, tuple(keys)))
        return keys

    def newest(self, informer: AnyInformer, key: str) -> Stored | None:
        """Return the object's newest state, valid or not, or the newer write of this sync's key."""
        written = self._written(informer, key)
        stored = informer.table.newest(key) if written is None else written.stored
        if self.notes and (tape := current_tape()) is not None:
            tape.append(TargetStep(informer, key, stored))
        return stored

    def written_keys(self, informer: AnyInformer) -> set[str]:
        """Return the keys that syncs of the current key wrote, and that may not be shown yet."""
        sync = current_sync.get()
        written = self.unseen.get(sync.key, {}) if sync is not None else {}
        return {key for writer, key in written if writer is informer}

    def _written(self, informer: AnyInformer, key: str) -> UnseenWrite | None:
        sync = current_sync.get()
        write = None if sync is None else self.unseen.get(sync.key, {}).get((informer, key))
        return None if write is None or write.passed else write


class _InFlight(msgspec.Struct, eq=False):
    """The writes to one object that run, or that no change has shown."""

    running: int = 0
    landed: list[UnseenWrite] = []
    held_back: list[Change[Any]] = []  # until no write runs


def _order(base: int, result: int | None) -> tuple[int, bool]:
    return (base, True) if result is None else (result, False)


async def _read(informer: AnyInformer, key: str) -> Written:
    try:
        stored = await informer.store.get(key)
    except StoreMissingError:
        if not informer.absent:
            raise
        return Written(0, None)  # the kind does not exist any more, nor do its objects
    except NotFoundError as error:
        cached = informer.table.newest(key)
        return Written(error.deleted_at or (cached.revision if cached else 0), None)
    return Written(stored.revision, stored)
