"""Calls a sync handler for every key on a queue, while this process may sync the key."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from natsctl.core.coordination.term import KeyFilter, OwnKeys, ShareListener, every_key
from natsctl.core.counters import SyncCounters
from natsctl.core.host import Host
from natsctl.core.informer import Informer, OnChange, OnChanges, deleted_keys
from natsctl.core.pauses import PausedKeys
from natsctl.core.plan.record import PlanRecord
from natsctl.core.quarantine import ClaimedKey
from natsctl.core.readers import Primary
from natsctl.core.retry import Drop, RetryPolicy, always_retry
from natsctl.core.sync import current_sync, failure_of, outlives, supervising
from natsctl.core.table import Table, Unread, is_read
from natsctl.core.task_group import Rest, first_of, first_step, together
from natsctl.core.workqueue import (
    SYNCED,
    Failed,
    Operation,
    Outcome,
    Place,
    Priority,
    Synced,
    Work,
    WorkQueue,
)
from natsctl.errors import DECODE_ERRORS, InvalidInputError, QueueShutDownError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.pause import MARK
from natsctl.model.store import Change, Stored
from natsctl.slices import ITEMS_MAX, Slices
from natsctl.telemetry.logger import bind_sync, get_logger, log_context

log = get_logger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

SyncHandler = Callable[[str], Awaitable[float | None]]
"""Makes the world match the key's object; returns seconds until the next sync, or None."""

Step: TypeAlias = float | Rest[float | None] | None
Start: TypeAlias = Callable[[Work[K]], Step]
"""Begins a sync of a claimed key; returns its result, or the rest of a sync that waits."""


class SyncLoop(Generic[K]):
    """Calls one handler for every key on its queue, each key by one worker at a time.

    If this process shares its work with others (`Environment.leadership`), it syncs keys in its
    terms only. At the end of a term the syncs under way are cancelled. With a `ShareListener`, it
    syncs only its own keys (`own`): only these are put on the queue and stay there.

    Args:
        handler: syncs a key; it fails by raising.
        host: runs the loop; it has the pauses and the environment of the controller.
        queue: the keys to sync.
        retry: what follows a failure.
        on_held_back: called instead of the handler for a paused key, to report the pause.
    """

    divides = False  # whether several processes can share the keys, also without a listener

    def __init__(
        self,
        handler: Callable[[K], Awaitable[float | None]],
        host: Host,
        queue: WorkQueue[K],
        *,
        retry: RetryPolicy = always_retry,
        on_held_back: Callable[[K], Awaitable[float | None]] | None = None,
    ) -> None:
        self.queue, self._host, self._pausing = queue, host, host.pausing
        self.counters = SyncCounters()
        self.own = OwnKeys(self.queue.closed, lambda: self.paused.forget_unread())  # noqa: PLW0108 - set next
        self.paused = PausedKeys(self.queue, self._pausing, holds=lambda key: self.own.has(key))  # noqa: PLW0108 - it changes
        self._handler, self._on_held_back = handler, on_held_back
        self.start: Start[K] = self._start
        self._context = log_context()
        self._retry = retry
        self._subscriptions: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        self._listener: ShareListener | None = None
        self._plan: PlanRecord | None = None  # the plan that the syncs belong to

    def watch(
        self,
        informer: Informer[T],
        on_change: OnChange[T],
        on_changes: OnChanges[T] | None = None,
    ) -> None:
        """Call *on_change* for every change while the loop runs; it enqueues keys.

        Several changes may be passed to *on_changes* at once, see `Informer.add`.
        """
        self._subscriptions.append(lambda: informer.subscribe(on_change, on_changes))
        self.own.watch(informer)

    async def run(
        self,
        listener: ShareListener | None = None,
        *,
        workers: int,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Sync as many keys at once as there are *workers*, until the queue is shut down.

        The loop calls *ready* once every table is synced, and begins when *ready* returns; by
        default that's `Host.begin`. If this process shares its work, it calls *ready* in every
        term, and the tables then show all writes of the processes that held the keys before.
        Without a *listener*, this process holds every key in its terms, unless the loop `divides`.
        """
        async with AsyncExitStack() as stack:
            self._listener, self._plan = listener, self._host.environment.plan
            leadership = self.own.leadership = self._host.environment.leadership
            stack.enter_context(self.own.running(self if self.divides or listener else None))
            if self._plan is not None and not self._plan.continuous:
                self._retry = _never_retry
            for subscription in self._subscriptions:
                await stack.enter_async_context(subscription())
            await self.own.synced()

            async def work() -> None:
                await (ready or self._host.begin)()
                await self._run_workers(workers)

            if leadership is None:
                await work()
            else:
                await leadership.lead(partial(self.own.lead, work), self.queue.closed)

    async def lost(self, holds: KeyFilter) -> None:
        if self.own.leadership is not None and not self.own.leadership.mask:
            self.queue.feed_no_more()
        await self.queue.keep(holds)
        if self._listener is not None:
            await self._listener.lost(holds)

    async def gained(self, gained: KeyFilter) -> None:
        await self.paused.quarantine.find(shared=True)
        if self._listener is not None:
            await self._listener.gained(gained)

    async def _run_workers(self, workers: int) -> None:
        self.queue.answers = True
        try:
            await self._pausing.listed.wait()
            quarantine = self.paused.quarantine
            with self._pausing.claims.of_loop(quarantine.name, workers) as claims:
                await quarantine.find(shared=self.own.shared)
                self._context = log_context()
                async with together() as group:
                    with supervising():
                        for number in range(workers):
                            claim = claims[number] if claims else None
                            group.create_task(self._work(claim), name=f"worker {number}")
        finally:
            self.queue.stop_answering()

    async def _work(self, claim: ClaimedKey | None) -> None:  # noqa: C901, PLR0912, PLR0915 - one straight line
        """Sync keys one after the other; the *claim* notes the key in case the process dies."""
        queue, retry, counters, start = self.queue, self._retry, self.counters, self.start
        pausing, pauses, wary = self._pausing, self.paused.pauses, self._pausing.claims.wary
        own, shared, leadership = self.own, self.own.shared, self.own.leadership
        slices = Slices()
        clock, slice_ends, left = slices.clock, 0.0, 0
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        while not worker.cancelling() or await outlives(worker):
            work = queue.take_nowait()
            if work is None:
                try:
                    work = await queue.take()
                except QueueShutDownError:
                    return
                left = 0
            key, begin = work.key, start
            if leadership or pausing.whole or pauses or wary:
                gated = await self.gate(work, claim)
                if gated is None:
                    continue
                begin = gated
            if claim is not None and begin is start:
                claim.hold(str(key))
            if not left:
                slice_ends, left = slices.begin(), ITEMS_MAX
            left -= 1
            outcome: Outcome = SYNCED
            if leadership is not None:
                leadership.hold(key)  # its share is not given away before the sync has ended
            try:
                after_s = begin(work)
                if after_s is not None:
                    if type(after_s) is Rest:
                        left = -1  # it waits
                        if leadership is not None:
                            after_s.may_run = lambda: leadership.leads
                        after_s = await after_s
                    if after_s is not None:
                        outcome = Synced(cast("float", after_s))
            except BaseException as error:
                failure = failure_of(error, worker)
                if failure is None:
                    queue.give_back(key, untouched=True)  # the next worker syncs it
                    raise
                outcome = Failed(failure)
            finally:
                if leadership is not None:
                    leadership.release(key)
            if begin is start:
                if claim is not None:
                    claim.release()
                    if wary:  # the process has survived the sync
                        self.paused.quarantine.survived(str(key))
                counters.end(outcome, begun=work.at, now=queue.now(), changed=work.changed)
                if self._plan is None:
                    pass
                elif isinstance(outcome, Failed):
                    self._plan.failed(key, outcome.error)
                else:
                    self._plan.synced(key, outcome.after)
            queue.settle(key, outcome, retry)
            if shared and not own.has(key):
                queue.drop(key)
                await own.give_up(key)
            if left < 0 or (queue.ready and (not left or clock() >= slice_ends)):
                await asyncio.sleep(0)  # events of its writes arrive first
                left = 0

    def _start(self, work: Work[K]) -> Step:
        """Call the handler; return its result, or the rest of a sync that waits."""
        bind_sync(self._context, work.key, self.queue.failures(work.key) + 1)
        return first_step(self._handler(work.key))

    async def gate(self, work: Work[K], claim: ClaimedKey | None) -> Start[K] | None:  # noqa: C901 - one decision
        """Return what begins the sync; give back the key, and return None, if it may not be synced.

        Its share may belong to another process, the term may be over, the controller or the key may
        be paused, or the key may be quarantined. After a process has died, a key that may be synced
        waits until it's safe, see `Quarantine`.
        """
        current_sync.set(None)
        key, queue, begin = work.key, self.queue, self.start
        if not self.own.has(key):
            queue.drop(key)
            queue.give_back(key)
            return None
        if self._pausing.whole is not None and self._plan is None:
            queue.give_back(key, untouched=True)
            await first_of(self._pausing.running.wait(), queue.closed())
            return None
        if work.trouble is not None:
            work.trouble.held_back = False
        if self.paused.holds_back(key):
            work.changed = None  # it's not answered until the key is resumed
            if self._plan is not None:
                self._plan.held_back(key, self.paused.reason(key) or "")
            report = self._on_held_back
            if report is None:
                queue.give_back(key)
                return None
            begin = lambda work: first_step(report(work.key))  # noqa: E731 - a short function
        elif claim is not None and self._pausing.claims.wary:
            try:
                later_s = await self.paused.quarantine.admit(str(key), claim)
            except asyncio.CancelledError:
                queue.give_back(key, untouched=True)
                raise
            if later_s is not None:
                queue.offer(key, work.reason, priority=work.priority, after=later_s)
                queue.give_back(key)
                return None
            paused = self._pausing.whole is not None and self._plan is None
            if paused or not self.own.has(key) or self.paused.reason(key) is not None:
                claim.release()
                queue.give_back(key, untouched=True)  # the next worker sees to it
                return None
            work.at = queue.now()  # the sync begins only now
        if self.own.leadership is not None and not self.own.leadership.leads:
            queue.give_back(key, untouched=True)
            raise asyncio.CancelledError
        return begin


def _never_retry(_error: Exception, _failures: int) -> Drop:
    """Drop the key: the plan itself decides when a failed key is synced again."""
    return Drop()


_MANUAL = Operation.MANUAL  # Python looks up the member of an enum slowly
_PUT, _USER, _RESYNC = Operation.PUT, Priority.USER, Priority.RESYNC
_READY = Place.READY


class KeyLoop(SyncLoop[str]):
    """Syncs the keys of primaries, and enqueues them.

    A key that another process holds is neither enqueued nor remembered: the other process sees the
    same change. If this process gains the key later, it syncs the key then.
    """

    divides = True
    primary: Primary[Any]
    """The objects, as soon as their store is open."""

    def watch_primary(self) -> None:
        """Enqueue changed keys while the loop runs."""
        self.watch(
            self.primary.informer, lambda it: self.primaries_changed((it,)), self.primaries_changed
        )

    def count(self, table: Table[Any]) -> int:
        """Return how many of the cached keys this process syncs now.

        If it keeps only the values of its keys, these are counted, because a test of a million keys
        takes a second. While keys move, some of them may count twice or not at all.
        """
        if not table.divided:
            return self.own.count(table.keys())
        return len(table.read_keys()) if self.own.any else 0

    def enqueue(
        self,
        key: str,
        operation: Operation,
        *,
        priority: Priority | None = None,
        after: float = 0.0,
    ) -> None:
        """Sync the key *after* seconds from now, by default with the operation's priority."""
        if self.own.has(key):
            if operation is _MANUAL:
                self.paused.quarantine.release(key)
            self.queue.offer(key, operation, priority=priority, after=after)

    def request(self, key: str, operation: Operation, *, after: float = 0.0) -> None:
        """Enqueue a key that a caller names; raises `InvalidInputError` if the key is empty."""
        if not key:
            raise InvalidInputError("a key is needed: an empty one names no object")
        self.enqueue(key, operation, after=after)

    def resync(self, keys: Collection[str]) -> int:
        """Sync *keys* soon; without keys, sync every primary after more urgent keys.

        Returns how many keys are enqueued.
        """
        for key in keys:
            self.request(key, Operation.MANUAL)
        if keys:
            return self.own.count(keys)
        table = self.primary.informer.table
        self.enqueue_all(table.read_keys())  # of all keys that this process holds
        return self.count(table)

    def primaries_changed(self, changes: Sequence[Change[Any]]) -> None:  # noqa: C901, PLR0912 - one straight line
        """Enqueue each changed key unless only the status of its object changed.

        A key that was skipped because it was invalid is synced again, even if the object is back at
        its last valid state. The queue notes the last state of a deleted object.
        """
        primary, paused, has = self.primary, self.paused, self.own.has
        has_all, knows = has is every_key, bool(paused.pauses)
        works = self.queue.works
        kind = primary.kind
        desire, decoded = kind.desire, primary.informer.table.decoded
        offered: list[tuple[str, Operation]] = []
        for change in changes:
            key, before, after = change.key, change.before, change.after
            if after is None or knows or after.value.rfind(MARK) >= 0:  # `in` takes twice as long
                paused.observe(change)
            if not (has_all or has(key)):
                continue
            if after is None:
                if before is not None and is_read(before):
                    self.queue.note(key).last = before
                offered.append((key, Operation.PURGE if change.purged else Operation.DELETE))
                continue
            skipped = False
            if (work := works.get(key)) is not None:
                waits = work.changed is not None and work.priority is _USER
                if waits and work.place is _READY and work.reason is _PUT:
                    continue  # its sync answers this put too
                if (notes := work.trouble) is not None:
                    skipped = notes.skipped
                    if notes.last is not None:
                        primary.forget_last(key)
            if before is not None and not skipped and type(before) is not Unread:
                differs = False
                if desire is not None:
                    try:
                        old, obj = desire(before.value), decoded.get(key)
                        new = obj[1] if obj is not None and obj[0] is after else desire(after.value)
                        differs = (
                            old.spec != new.spec
                            or old.metadata.generation != new.metadata.generation
                        )
                    except DECODE_ERRORS:
                        pass
                if not differs and not _desired_changed(kind, before, after):
                    continue
            offered.append((key, _PUT))
        if offered:
            self.queue.offer_changed(offered, _RESYNC if changes[0].initial else _USER)

    def enqueue_all(self, keys: Collection[str], wanted: KeyFilter = lambda _: True) -> None:
        """Sync the *wanted* keys after more urgent ones; see `WorkQueue.feed`."""
        resync = Operation.RESYNC

        def add(key: str) -> None:
            if wanted(key):
                self.enqueue(key, resync)

        self.queue.feed(keys, add)

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue primaries that exist or were deleted; see `ShareListener`."""
        await super().gained(gained)
        table, store = self.primary.informer.table, self.primary.informer.store

        def is_gained(key: str) -> bool:
            stored = table.get(key)
            return stored is not None and is_read(stored) and gained(key)

        self.enqueue_all(table.read_keys(), is_gained)  # the values of gained keys are read
        if not isinstance(self.primary.kind, KubeKind):  # a cluster remembers no deletion
            noted = table.take_deleted()
            missing = await deleted_keys(store, gained) if noted is None else noted
            self.enqueue_all([key for key in missing if key not in table], gained)


def skips_invalid(primary: Primary[Any], key: str) -> bool:
    """Return whether the key is skipped because the newest state of its object is invalid.

    The next valid state enqueues the key again, even if it equals the last valid one.
    """
    if key in primary.informer.table.invalid:
        primary.queue.note(key).skipped = True
        return True
    noted = primary.queue.noted(key)
    if noted is not None and noted.skipped:
        noted.skipped = False
        primary.queue.tidy(key)
    return False


def _desired_changed(kind: Kind[Any], before: Stored, after: Stored) -> bool:
    """Return whether the desired state differs, or changed in between and was restored.

    In the second case only the generation differs, and a sync sets `observedGeneration`. A write
    by natsctl that changes the desired state changes the generation, which is compared first.
    """
    old, new = before.value, after.value
    if not kind.plain and kind.generation(old) != kind.generation(new):
        return True
    return kind.differs(old, new)
