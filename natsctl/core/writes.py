"""Makes syncs read their own writes.

Reads within a sync include the writes of that sync. The next sync of the same key begins when the
caches include those writes. If a cache does not include them in time, or if the result of a write
is unknown, the store is read instead.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from natsctl.core.compare_and_set import Written
from natsctl.core.informer import Informer
from natsctl.core.sync import current_sync, current_tape
from natsctl.core.table import Cache
from natsctl.core.tape import KeysStep, QueryStep, ReadStep, TargetStep
from natsctl.errors import NotFoundError, StoreMissingError, StoreTimeoutError
from natsctl.model.store import Change, Stored

AnyInformer = Informer[Any]


class _Unseen(msgspec.Struct, frozen=True, eq=False):
    written: Written
    incarnation: str  # of the cache at the time of the write
    is_newest: bool = True  # whether no later write may have taken effect


_NO_WRITE = Written(0, None)  # every cache includes it


class Barrier:
    """Keeps the writes of each key's syncs until the caches include them.

    `unseen` has the keys with writes that a cache may lack, as a live view.
    """

    def __init__(self, timeout_s: float = 10.0) -> None:
        self.notes = False  # whether syncs have tapes
        self.waited_s = 0.0
        self.timeouts = 0
        self._timeout_s = timeout_s
        self._written: dict[str, dict[tuple[AnyInformer, str], _Unseen]] = {}
        self.unseen: Collection[str] = self._written.keys()
        self._order: dict[AnyInformer, deque[tuple[str, str, _Unseen]]] = defaultdict(deque)

    def wrote(self, informer: AnyInformer, key: str, written: Written) -> None:
        """Note a write of the current sync; a write outside of a sync is not noted."""
        sync = current_sync.get()
        if sync is not None:
            self._prune(informer)
            self._remember(sync.key, informer, key, written)

    def writing(self, informer: AnyInformer, key: str) -> "_Write":
        """Return a context for a write of the current sync.

        If the write has no answer, or is cancelled, it may have taken effect. The next sync of the
        key then begins with the object as the store has it.
        """
        return _Write(self, informer, key)

    def lost_answer(self, informer: AnyInformer, key: str) -> None:
        """Note that a write of the current sync may have taken effect."""
        sync = current_sync.get()
        if sync is not None:
            writes = self._written.setdefault(sync.key, {})
            before = writes.get((informer, key))
            written = _NO_WRITE if before is None else before.written
            incarnation = informer.cache.incarnation
            writes[informer, key] = _Unseen(written, incarnation, is_newest=False)

    def read(self, informer: AnyInformer, key: str) -> Stored | None:
        """Return the object's last valid state, or the newer write of this sync's key."""
        written = self._unseen_write(informer, key) if self._written else None
        stored = informer.cache.get(key) if written is None else written.stored
        if self.notes:
            sync = current_sync.get()
            if sync is not None and sync.tape is not None:
                sync.tape.append(ReadStep(informer, key, stored))
        return stored

    def read_all(self, informer: AnyInformer, keys: Collection[str]) -> list[Stored]:
        """Return the states of several objects, as `read` does; those that exist."""
        states, tape = [], current_tape() if self.notes else None
        for key in keys:
            written = self._unseen_write(informer, key) if self._written else None
            stored = informer.cache.get(key) if written is None else written.stored
            if stored is not None:
                states.append(stored)
            if tape is not None:
                tape.append(ReadStep(informer, key, stored))
        return states

    def keys(self, informer: AnyInformer) -> tuple[str, ...]:
        """Return the keys of all cached objects, changed by the writes of this sync."""
        written, cached = self.written_keys(informer), informer.cache.keys()
        if not written:
            keys = tuple(cached)
        else:
            kept = (key for key in cached if key not in written)
            keys = (*kept, *(stored.key for stored in self.read_all(informer, written)))
        if self.notes and (tape := current_tape()) is not None:
            tape.append(KeysStep(informer, keys))
        return keys

    def query(self, informer: AnyInformer, index: str, value: str) -> list[str]:
        """Return the keys of the cached objects with *value* in an index, sorted."""
        keys = [stored.key for stored in informer.cache.by_index(index, value)]
        if self.notes and (tape := current_tape()) is not None:
            tape.append(QueryStep(informer, index, value, tuple(keys)))
        return keys

    def newest(self, informer: AnyInformer, key: str) -> Stored | None:
        """Return the object's newest state, valid or not, or the newer write of this sync's key."""
        written = self._unseen_write(informer, key)
        stored = informer.cache.newest(key) if written is None else written.stored
        if self.notes:
            sync = current_sync.get()
            if sync is not None and sync.tape is not None:
                sync.tape.append(TargetStep(informer, key, stored))
        return stored

    def written_keys(self, informer: AnyInformer) -> set[str]:
        """Return the keys that syncs of the current key wrote, and that may not be cached yet."""
        sync = current_sync.get()
        written = self._written.get(sync.key, {}) if sync is not None else {}
        return {key for writer, key in written if writer is informer}

    async def wait(self, key: str) -> None:
        """Wait until every cache includes the writes of *key*'s syncs.

        If a cache does not include a write in time, the object is read from the store; raises
        `StoreError` if that fails.
        """
        written = self._written.get(key, {})
        clock = asyncio.get_running_loop().time
        started = clock()
        deadline = started + self._timeout_s
        for (informer, name), unseen in list(written.items()):
            if not await self._wait_until_passed(informer, name, unseen, deadline):
                self._remember(key, informer, name, await _read(informer, name))
            self._prune(informer)
        self.waited_s += clock() - started

    async def _wait_until_passed(
        self, informer: AnyInformer, key: str, unseen: "_Unseen", deadline: float
    ) -> bool:
        """Wait for the cache; return False after the deadline, or if the store must be read.

        It must be read if it was replaced, or if a later write may have taken effect.
        """
        if unseen.incarnation != informer.cache.incarnation or not unseen.is_newest:
            return False
        try:
            async with asyncio.timeout_at(deadline):
                if unseen.written.stored is None:
                    await informer.cache.left_behind(key, unseen.written.revision)
                else:
                    await informer.cache.passed(unseen.written.revision)
        except TimeoutError:
            self.timeouts += 1
            return False
        return True

    def _remember(self, owner: str, informer: AnyInformer, key: str, written: Written) -> None:
        unseen = _Unseen(written, informer.cache.incarnation)
        self._written.setdefault(owner, {})[informer, key] = unseen
        self._order[informer].append((owner, key, unseen))

    def _prune(self, informer: AnyInformer) -> None:
        """Forget the oldest writes that the cache includes, or whose store was replaced."""
        order, cache = self._order[informer], informer.cache
        while order:
            owner, key, unseen = order[0]
            passed = _has_passed(cache, key, unseen.written)
            if not passed and unseen.incarnation == cache.incarnation:
                return
            order.popleft()
            writes = self._written.get(owner, {})
            if passed and writes.get((informer, key)) is unseen:
                del writes[informer, key]
                if not writes:
                    del self._written[owner]

    def _unseen_write(self, informer: AnyInformer, key: str) -> Written | None:
        sync = current_sync.get()
        if sync is None:
            return None
        unseen = self._written.get(sync.key, {}).get((informer, key))
        if unseen is None or _has_passed(informer.cache, key, unseen.written):
            return None
        return unseen.written


class _Write:
    """A write of a sync, whose result may become unknown."""

    __slots__ = ("_barrier", "_informer", "_key")

    def __init__(self, barrier: Barrier, informer: AnyInformer, key: str) -> None:
        self._barrier = barrier
        self._informer = informer
        self._key = key

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, StoreTimeoutError | asyncio.CancelledError):
            self._barrier.lost_answer(self._informer, self._key)


def _has_passed(cache: Cache[Any], key: str, written: Written) -> bool:
    """Return whether the cache includes the write, and no longer has what the write deleted."""
    if cache.revision < written.revision:
        return False
    return written.stored is not None or not cache.shows(key, written.revision)


async def _read(informer: AnyInformer, key: str) -> Written:
    try:
        stored = await informer.store.get(key)
    except StoreMissingError:
        if not informer.absent:
            raise
        return Written(0, None)  # the kind does not exist any more, nor do its objects
    except NotFoundError as error:
        cached = informer.cache.newest(key)
        return Written(error.deleted_at or (cached.revision if cached else 0), None)
    return Written(stored.revision, stored)


class _Step(msgspec.Struct, frozen=True, gc=False):
    """A write: its revision before (0 for none), and after (None for a deletion)."""

    base: int
    result: int | None

    @property
    def order(self) -> tuple[int, bool]:
        """The position among the writes of a key: a deletion follows its base revision."""
        return (self.base, True) if self.result is None else (self.result, False)


class _RunningWrites:
    """The writes of one key that have not ended, and the changes that are held back.

    Each write runs within `with`. After the last one, *ended* is called with the key.
    """

    def __init__(self, key: str, ended: Callable[[str], None]) -> None:
        self.held_back: list[Change[Any]] = []
        self._key = key
        self._ended = ended
        self._writers = 0

    def __enter__(self) -> None:
        self._writers += 1

    def __exit__(self, *_error: object) -> None:
        self._writers -= 1
        if self._writers == 0:
            self._ended(self._key)


class OwnWrites:
    """Forwards the changes of one store, each with the key whose sync made it, or None.

    If no change ever shows a write, the write was undone while the watch was broken, by a deletion
    or by a write of another sync. Then *undone* is called with the key whose sync wrote.
    """

    def __init__(
        self,
        forward: Callable[[Change[Any], str | None], None],
        undone: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._forward = forward
        self._undone = undone
        self._running: dict[str, _RunningWrites] = {}
        self._landed: dict[str, dict[_Step, str]] = {}  # unseen writes, with their keys

    def see(self, change: Change[Any]) -> None:
        """Forward a change, now or when the running writes of its key have ended."""
        running = self._running.get(change.key)
        if running is None:
            self._forward(change, self._writer(change))
        else:
            running.held_back.append(change)

    def writing(self, key: str) -> AbstractContextManager[None]:
        """Hold back changes of *key* until the write in the context has ended."""
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _RunningWrites(key, self._release)
        return running

    def landed(self, key: str, *, writer: str, base: int, result: int | None) -> None:
        """Record a write of *writer*'s sync, from revision *base* to *result*; see `_Step`."""
        self._landed.setdefault(key, {})[_Step(base, result)] = writer

    def listed(self) -> None:
        """Treat the writes that a complete list has not shown as undone.

        This includes a write that is newer than the list; its key is then synced once too often.
        """
        landed, self._landed = self._landed, {}
        for writer in {writer for steps in landed.values() for writer in steps.values()}:
            self._undone(writer)

    def _release(self, key: str) -> None:
        """Forward the changes of *key* that were held back."""
        for change in self._running.pop(key).held_back:
            self.see(change)

    def _writer(self, change: Change[Any]) -> str | None:
        landed = self._landed.pop(change.key, None)
        if landed is None:
            return None
        seen_step = _Step(
            0 if change.before is None else change.before.revision,
            None if change.after is None else change.after.revision,
        )
        later_steps = {
            step: writer for step, writer in landed.items() if step.order > seen_step.order
        }
        if later_steps:
            self._landed[change.key] = later_steps
        seen_writer = landed.get(seen_step)
        for writer in {writer for step, writer in landed.items() if step.order < seen_step.order}:
            if writer != seen_writer:
                self._undone(writer)
        return seen_writer
