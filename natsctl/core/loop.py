"""Calls a sync handler for every key on a queue, while this process may sync the key."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast

from natsctl.core.coordination.term import KeyFilter, Leadership, every_key, keys_in
from natsctl.core.counters import SyncCounters
from natsctl.core.host import Host
from natsctl.core.informer import (
    Informer,
    OnChange,
    OnChanges,
    catch_up,
    deleted_keys,
    read_values,
)
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


class ShareListener(Protocol):
    """Enqueues the keys that this process gains, and forgets the keys that it loses."""

    async def lost(self, holds: KeyFilter) -> None:
        """Forget all keys for which *holds* is false: another process may sync them."""
        ...

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue every key for which *gained* is true, if it exists or left anything behind."""
        ...


class SyncLoop(Generic[K]):
    """Calls one handler for every key on its queue, each key by one worker at a time.

    If this process shares its work with others (`Environment.leadership`), it syncs keys in its
    terms only. At the end of a term the syncs under way are cancelled. With a `ShareListener`, it
    syncs only its own keys (`has`): only these are put on the queue and stay there.

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
        self.has: KeyFilter = every_key
        """Returns whether this process may sync a key; an attribute: every change calls it."""
        self.paused = PausedKeys(self.queue, self._pausing, holds=lambda key: self.has(key))  # noqa: PLW0108 - it changes
        self._handler, self._on_held_back = handler, on_held_back
        self.start: Start[K] = self._start
        self._context = log_context()
        self._retry = retry
        self._subscriptions: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        self._informers: list[Informer[Any]] = []
        self._plan: PlanRecord | None = None  # the plan that the syncs belong to
        self._leadership: Leadership | None = None
        self._shared = False  # whether the keys are those of the shares of this process
        self._listener: ShareListener | None = None
        self._ready = 0  # the shares whose keys are synced
        self._left = 0  # those that left since the tables began to catch up
        self._kept = 0  # those of which values may be kept
        self._moved = asyncio.Event()

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
        self._informers.append(informer)

    def hold_only(self, keys: Collection[K]) -> None:
        """Sync no other keys than these; call this before the loop runs."""
        self.has = frozenset(keys).__contains__

    def count(self, table: Table[Any]) -> int:
        """Return how many of the cached keys this process syncs now.

        If it keeps only the values of its keys, these are counted, because a test of a million keys
        takes a second. While keys move, some of them may count twice or not at all.
        """
        if table.divided:
            return len(table.read_keys()) if self._ready or not self._shared else 0
        keys = table.keys()
        return len(keys) if self.has is every_key else sum(map(self.has, keys))

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
        term. With a *listener*, or if the loop `divides`, it then holds the keys of its shares, and
        the tables show all writes of the processes that held them before; else it holds every key.
        """
        self._listener, self._plan = listener, self._host.environment.plan
        leadership = self._leadership = self._host.environment.leadership
        if self._plan is not None and not self._plan.continuous:
            self._retry = _never_retry

        async def work() -> None:
            await (ready or self._host.begin)()
            await self._run_workers(workers)

        async with AsyncExitStack() as stack:
            if leadership is not None and (self.divides or listener is not None):
                self._shared, self._kept = True, leadership.kept
                stack.enter_context(leadership.moving(self._move))
            for subscription in self._subscriptions:
                await stack.enter_async_context(subscription())
            for informer in self._informers:
                await informer.table.synced.wait()
            if leadership is None:
                await work()
            else:
                lead = partial(self._lead, leadership, work) if self._shared else work
                await leadership.lead(lead, self.queue.closed)

    async def _lead(self, leadership: Leadership, work: Callable[[], Awaitable[None]]) -> None:
        """Do the *work* of a term, once the tables show the writes of earlier processes."""
        settled, divided = asyncio.Event(), [it for it in self._informers if it.table.partial]
        try:
            async with together() as group:
                helpers = [
                    group.create_task(self._follow(leadership, divided, settled), name="shares"),
                    *(group.create_task(self._keep_all(it), name="all values") for it in divided),
                ]
                await settled.wait()
                await work()
                for task in helpers:
                    task.cancel()
        finally:
            self._take(0)
            await self._lost()

    async def _follow(
        self, leadership: Leadership, divided: Sequence[Informer[Any]], settled: asyncio.Event
    ) -> None:
        """Take the shares that come, and forget those that go.

        A share is taken when the tables show what its last owner wrote, and its values have been
        read. Until then, changes of its keys enqueue nothing, so all of them are enqueued.
        """
        while True:
            self._moved.clear()
            await self._lost()
            come, self._left = leadership.mask & ~self._ready, 0
            if come:
                await first_of(catch_up(self._informers), self.queue.closed())
                for informer in divided:
                    await read_values(informer, leadership.keeps)
                come &= ~self._left
            self._take(self._ready | come)
            settled.set()
            if come:
                await self._gained(keys_in(come, leadership.count))
            if leadership.mask and self._kept & ~leadership.mask:  # else the term is over
                self._kept = leadership.mask | leadership.busy
                for informer in divided:
                    await informer.release()
                self.paused.forget_unread()
            await self._moved.wait()

    async def _keep_all(self, informer: Informer[Any]) -> None:
        """Read every value once somebody reads objects of other processes.

        A function that maps a change to keys may have failed until then, so all keys are enqueued.
        """
        await informer.table.wants_all.wait()
        log.info("keeping the values of all objects", kind=informer.table.kind.name)
        await read_values(informer, every_key)
        await self._gained(self.has)

    def _move(self, mask: int) -> None:
        """Drop the shares that leave at once; `_follow` takes those that come."""
        self._take(self._ready & mask)
        self._left |= ~mask
        self._kept |= mask
        self._moved.set()

    def _take(self, mask: int) -> None:
        count = 1 if self._leadership is None else self._leadership.count
        self._ready, self.has = mask, keys_in(mask, count)

    async def _lost(self) -> None:
        leadership = self._leadership
        if leadership is not None and leadership.mask:
            self.paused.quarantine.keep(keys_in(leadership.mask, leadership.count))
        elif leadership is not None:
            self.queue.feed_no_more()
        await self.queue.keep(self.has)
        await self._host.history.keep(self.has)
        if self._listener is not None:
            await self._listener.lost(self.has)

    async def _gained(self, gained: KeyFilter) -> None:
        await self.paused.quarantine.find(shared=True)
        if self._listener is not None:
            await self._listener.gained(gained)

    async def _give_up(self, key: K) -> None:
        """Forget what is known of a key that was lost during its sync."""
        self.queue.drop(key)
        self._moved.set()
        for informer in self._informers:
            if informer.table.partial:
                await informer.release(tuple(informer.table.of_primary(str(key))))
        self.paused.forget_unread()

    async def _run_workers(self, workers: int) -> None:
        self.queue.answers = True
        try:
            await self._pausing.listed.wait()
            quarantine = self.paused.quarantine
            with self._pausing.claims.of_loop(quarantine.name, workers) as claims:
                await quarantine.find(shared=self._shared)
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
        shared, leadership = self._shared, self._leadership
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
            if left:
                left -= 1
            elif queue.ready:  # a single key needs no slice, which costs a turn of the event loop
                slice_ends, left = slices.begin(), ITEMS_MAX
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
                    self._put_back(key, claim)
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
            if shared and not self.has(key):
                await self._give_up(key)
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
        if not self.has(key):
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
                self._put_back(key, claim)
                raise
            if later_s is not None:
                queue.offer(key, work.reason, priority=work.priority, after=later_s)
                queue.give_back(key)
                return None
            paused = self._pausing.whole is not None and self._plan is None
            if paused or not self.has(key) or self.paused.reason(key) is not None:
                self._put_back(key, claim)
                return None
            work.at = queue.now()  # the sync begins only now
        if self._leadership is not None and not self._leadership.leads:
            self._put_back(key, claim)
            raise asyncio.CancelledError
        return begin

    def _put_back(self, key: K, claim: ClaimedKey | None) -> None:
        """Give back a key without a sync: the next worker sees to it."""
        if claim is not None:
            claim.release()
            self.paused.quarantine.ended(str(key))
        self.queue.give_back(key, untouched=True)


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

    def enqueue(
        self,
        key: str,
        operation: Operation,
        *,
        priority: Priority | None = None,
        after: float = 0.0,
    ) -> None:
        """Sync the key *after* seconds from now, by default with the operation's priority."""
        if self.has(key):
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
            return sum(map(self.has, keys))
        table = self.primary.informer.table
        self.enqueue_all(table.read_keys())  # of all keys that this process holds
        return self.count(table)

    def primaries_changed(self, changes: Sequence[Change[Any]]) -> None:  # noqa: C901, PLR0912 - one straight line
        """Enqueue each changed key unless only the status of its object changed.

        A key that was skipped because it was invalid is synced again, even if the object is back at
        its last valid state. The queue notes the last state of a deleted object.
        """
        primary, paused, has = self.primary, self.paused, self.has
        has_all, pauses, works = has is every_key, paused.pauses, self.queue.works
        kind = primary.kind
        desire, decoded = kind.desire, primary.informer.table.decoded
        offered: list[tuple[str, Operation]] = []
        for change in changes:
            key, before, after = change.key, change.before, change.after
            if after is None or pauses or after.value.rfind(MARK) >= 0:  # `in` takes twice as long
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
                fell_back = after.revision < before.revision  # and what a sync wrote is gone
                if not (differs or fell_back or _desired_changed(kind, before, after)):
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

    async def _gained(self, gained: KeyFilter) -> None:
        """Enqueue primaries that exist or were deleted; see `ShareListener`."""
        await super()._gained(gained)
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
