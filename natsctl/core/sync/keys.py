"""Puts the keys of primaries on a sync loop's queue, each with the reason for its sync."""

import asyncio
from collections.abc import Callable, Collection, Hashable, Iterable
from enum import StrEnum
from typing import Any

from natsctl.core.cache.cache import Cache
from natsctl.core.cache.deletion_markers import deleted_keys
from natsctl.core.cache.state import is_read, read_state
from natsctl.core.coordination.assignment import NONE, OnlyKeys
from natsctl.core.objects.primary import Primary
from natsctl.core.queue.workqueue import Priority
from natsctl.core.sync.assigned_keys import KeyFilter
from natsctl.core.sync.loop import SyncLoop
from natsctl.errors import InvalidInputError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.pause import Pause
from natsctl.model.store import Change, Stored
from natsctl.slices import retain


class Operation(StrEnum):
    """The reason for a sync: for people and for its priority, never an input to the handler."""

    PUT = "put"
    DELETE = "delete"
    PURGE = "purge"
    SECONDARY = "secondary"
    RESYNC = "resync"
    RETRY = "retry"
    RESUME = "resume"
    MANUAL = "manual"

    @property
    def priority(self) -> Priority:
        """The priority of the sync."""
        return _PRIORITY.get(self, _USER)


# Python looks up the member of an enum slowly, and each change needs these
_PUT, _RETRY, _MANUAL = Operation.PUT, Operation.RETRY, Operation.MANUAL
_USER, _RESYNC = Priority.USER, Priority.RESYNC

_PRIORITY = {
    Operation.SECONDARY: Priority.SECONDARY,
    Operation.RETRY: Priority.RETRY,
    Operation.RESYNC: Priority.RESYNC,
}


class Reasons:
    """Remembers the strongest reason for the next sync of each key.

    A person's request is the strongest, then the most urgent reason, then the newest.
    """

    def __init__(self) -> None:
        self._now: dict[str, Operation] = {}
        self._later: dict[str, tuple[float, Operation]] = {}

    def add(self, key: str, operation: Operation, *, after: float = 0.0) -> None:
        """Note a reason that holds from *after* seconds from now."""
        if after > 0:
            due = asyncio.get_running_loop().time() + after
            known_due, _ = self._later.get(key, (due, operation))
            if due <= known_due:
                self._later[key] = (due, operation)
        elif key not in self._now or _rank_of_reason(operation) >= _rank_of_reason(self._now[key]):
            self._now[key] = operation

    async def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the reasons of keys that are not *wanted*, in slices."""
        await retain(self._now, wanted, lambda key: self._now.pop(key, None))
        await retain(self._later, wanted, lambda key: self._later.pop(key, None))

    def take(self, key: str) -> Operation:
        """Return the reason for a sync that begins now; without a reason, the sync is a retry."""
        if key in self._later:
            due, operation = self._later[key]
            if due <= asyncio.get_running_loop().time():
                del self._later[key]
                self.add(key, operation)
        return self._now.pop(key, _RETRY)


def _rank_of_reason(operation: Operation) -> tuple[bool, int]:
    return operation is _MANUAL, operation.priority


class KeyQueue:
    """Enqueues the keys of primaries on *loop*.

    A key that another process holds is neither enqueued nor remembered: the other process sees the
    same change. If this process gains the key later, it syncs the key then.
    """

    def __init__(self, loop: SyncLoop[str]) -> None:
        self.queue = loop.queue
        self.reasons = Reasons()
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
            self.reasons.add(key, operation, after=after)
            priority = operation.priority if priority is None else priority
            self.queue.add(key, after=after, priority=priority)

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
        """Enqueue the changed key unless only the status of its object changed."""
        key, loop = change.key, self._loop
        if self.paused_keys.concerns(change):
            self.paused_keys.observe(change)
        if not loop.holdings.has(key):
            return
        operation = _operation_for(change, primary)
        if operation is not None:
            self.reasons.add(key, operation)
            priority = _RESYNC if change.initial else _USER
            if self.queue.add(key, priority=priority) and loop.counters.answers:
                loop.counters.changed(key, self.queue.now())

    def enqueue_all(self, keys: Collection[str], wanted: KeyFilter = lambda _: True) -> None:
        """Sync the *wanted* keys after more urgent ones; see `Workqueue.feed`."""
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
        await self._keys.reasons.keep(holds)
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
    if not kind.plain and kind.generation(old) != kind.generation(new):
        return True
    return kind.differs(old, new)
