"""Puts the keys of primaries on a sync loop's queue, each with the reason for its sync."""

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

from natsctl.core.cache.cache import Cache
from natsctl.core.cache.deletion_markers import deleted_keys
from natsctl.core.cache.state import is_read, read_state
from natsctl.core.coordination.assignment import NONE, OnlyKeys
from natsctl.core.objects.primary import Primary
from natsctl.core.sync.assigned_keys import KeyFilter
from natsctl.core.sync.loop import SyncLoop
from natsctl.core.workqueue import Operation, Priority
from natsctl.errors import InvalidInputError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.pause import Pause
from natsctl.model.store import Change, Stored

_MANUAL = Operation.MANUAL  # Python looks up the member of an enum slowly
_PUT, _USER, _RESYNC = Operation.PUT, Priority.USER, Priority.RESYNC


class KeyQueue:
    """Enqueues the keys of primaries on *loop*.

    A key that another process holds is neither enqueued nor remembered: the other process sees the
    same change. If this process gains the key later, it syncs the key then.
    """

    def __init__(self, loop: SyncLoop[str]) -> None:
        self.queue = loop.queue
        self._loop = loop
        self.paused_keys = loop.paused
        self.paused_keys.listen(self)

    def paused(self, key: str, pause: Pause) -> None:
        """See `PauseListener.paused`."""

    def resumed(self, key: str, pause: Pause, *, pending: bool) -> None:  # noqa: ARG002 - the protocol's signature
        """See `PauseListener.resumed`: syncs the key once if a sync was held back."""
        if pending:
            self.enqueue(key, Operation.RESUME)

    @property
    def stopped(self) -> bool:
        """True while the whole controller is paused."""
        return self._loop.stopped

    def holds(self, key: str) -> bool:
        """Return whether this process syncs the key now."""
        return self._loop.holdings.has(key)

    def count(self, cache: Cache[Any]) -> int:
        """Return how many of the cached keys this process syncs now.

        If it keeps only the values of its keys, these are counted, because a test of a million keys
        takes a second. While keys move, some of them may count twice or not at all.
        """
        holdings = self._loop.holdings
        if not cache.divided:
            return holdings.count(cache.keys())
        return 0 if holdings.newest is NONE else len(cache.read_keys())

    def hold_only(self, keys: Collection[str]) -> None:
        """Sync no other keys than these; call this before the loop runs."""
        self._loop.holdings.reset(OnlyKeys(keys))

    def keeps(self, key: str) -> bool:
        """Return whether this process needs the object of the key, see `AssignedKeys.keeps`."""
        return self._loop.assigned.keeps(key)

    def enqueue(
        self,
        key: str,
        operation: Operation,
        *,
        priority: Priority | None = None,
        after: float = 0.0,
    ) -> None:
        """Sync the key *after* seconds from now, by default with the operation's priority."""
        if self._loop.holdings.has(key):
            if operation is _MANUAL:
                self.paused_keys.quarantine.release(key)
            self.queue.offer(key, operation, priority=priority, after=after)

    def request(self, key: str, operation: Operation, *, after: float = 0.0) -> None:
        """Enqueue a key that a caller names; raises `InvalidInputError` if the key is empty."""
        if not key:
            raise InvalidInputError("a key is needed: an empty one names no object")
        self.enqueue(key, operation, after=after)

    def resync(self, primary: Primary[Any], keys: Iterable[str]) -> int:
        """Sync *keys* soon; without keys, sync every primary after more urgent keys.

        Returns how many keys are enqueued.
        """
        named = tuple(keys)
        for key in named:
            self.request(key, Operation.MANUAL)
        if named:
            return self._loop.holdings.count(named)
        cache = primary.informer.cache
        self.enqueue_all(cache.read_keys())  # of all keys that this process holds
        return self.count(cache)

    def primary_changed(self, primary: Primary[Any], change: Change[Any]) -> None:
        """Enqueue a changed key unless only the status of its object changed."""
        self.primaries_changed(primary, (change,))

    def primaries_changed(self, primary: Primary[Any], changes: Sequence[Change[Any]]) -> None:
        """Enqueue each changed key unless only the status of its object changed."""
        paused, has, answers_put = self.paused_keys, self._loop.holdings.has, self.queue.answers_put
        offered: list[tuple[str, Operation]] = []
        for change in changes:
            key = change.key
            if paused.concerns(change):
                paused.observe(change)
            if has(key) and not (change.after is not None and answers_put(key)):
                operation = _operation_for(change, primary)
                if operation is not None:
                    offered.append((key, operation))
        if offered:
            priority = _RESYNC if changes[0].initial else _USER
            self.queue.offer_changed(offered, priority)

    def enqueue_all(self, keys: Collection[str], wanted: KeyFilter = lambda _: True) -> None:
        """Sync the *wanted* keys after more urgent ones; see `WorkQueue.feed`."""
        resync = Operation.RESYNC

        def add(key: str) -> None:
            if wanted(key):
                self.enqueue(key, resync)

        self.queue.feed(keys, add)


class PrimaryListener:
    """Enqueues the keys of primaries that this process gains; an `AssignmentListener`."""

    def __init__(self, keys: KeyQueue, primary: Primary[Any]) -> None:
        self._keys = keys
        self._primary = primary

    async def lost(self, holds: KeyFilter) -> None:
        """See `AssignmentListener.lost`."""
        await self._primary.keep(holds)

    async def gained(self, gained: KeyFilter) -> None:
        """See `AssignmentListener.gained`: enqueues primaries that exist or were deleted."""
        cache, store = self._primary.informer.cache, self._primary.informer.store

        def is_gained(key: Hashable) -> bool:
            stored = cache.get(str(key))
            return stored is not None and is_read(stored) and gained(key)

        self._keys.enqueue_all(cache.read_keys(), is_gained)  # the values of gained keys are read
        if not isinstance(self._primary.kind, KubeKind):  # a cluster remembers no deletion
            noted = cache.take_deleted()
            missing = await deleted_keys(store, gained) if noted is None else noted
            self._keys.enqueue_all([key for key in missing if key not in cache], gained)


def skips_invalid(primary: Primary[Any], key: str) -> bool:
    """Return whether the key is skipped because the newest state of its object is invalid.

    The next valid state enqueues the key again, even if it equals the last valid one.
    """
    if key in primary.informer.cache.invalid:
        primary.skipped.add(key)
        return True
    primary.skipped.discard(key)
    return False


def _operation_for(change: Change[Any], primary: Primary[Any]) -> Operation | None:
    """Return the reason for which the changed key is synced, None if its desired state is equal.

    A key that was skipped because it was invalid is synced again, even if the object is back at
    its last valid state. `Primary.deleted_states` keeps the last state of a deleted object.
    """
    key, before, after = change.key, change.before, change.after
    if after is None:
        last = read_state(before)
        if last is not None:
            primary.deleted_states[key] = last
        return Operation.PURGE if change.purged else Operation.DELETE
    synced = None if key in primary.skipped else read_state(before)
    if synced is not None and not _desired_changed(change.kind, synced, after):
        return None
    primary.deleted_states.pop(key, None)
    return _PUT


def _desired_changed(kind: Kind[Any], before: Stored, after: Stored) -> bool:
    """Return whether the desired state differs, or changed in between and was restored.

    In the second case only the generation differs, and a sync sets `observedGeneration`. A write
    by natsctl that changes the desired state changes the generation, which is compared first.
    """
    old, new = before.value, after.value
    if kind.surely_differs(old, new):
        return True
    if not kind.plain and kind.generation(old) != kind.generation(new):
        return True
    return kind.differs(old, new)
