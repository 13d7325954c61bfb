"""Calls a sync handler for every key on a queue, while this process may sync the key."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from natsctl.core.coordination.term import (
    GuardedSteps,
    KeyFilter,
    Leadership,
    OwnKeys,
    ShareListener,
    every_key,
)
from natsctl.core.counters import SyncCounters
from natsctl.core.environment import environment
from natsctl.core.informer import Informer, OnChange, OnChanges, deleted_keys
from natsctl.core.pauses import Pausing
from natsctl.core.plan.record import PlanRecord
from natsctl.core.quarantine import ClaimedKey
from natsctl.core.readers import Primary
from natsctl.core.retry import Drop, RetryPolicy, always_retry
from natsctl.core.sync import Rest, failure_of, first_step, outlives, supervising
from natsctl.core.table import Table, Unread, is_read
from natsctl.core.task_group import together
from natsctl.core.workqueue import (
    SYNCED,
    Failed,
    Operation,
    Outcome,
    Priority,
    Synced,
    Work,
    WorkQueue,
)
from natsctl.errors import DECODE_ERRORS, InvalidInputError, QueueShutDownError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.pause import MARK, Pause
from natsctl.model.store import Change, Stored
from natsctl.slices import ITEMS_MAX, Slices
from natsctl.telemetry.logger import bind_sync, get_logger, log_context

log = get_logger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

SyncHandler = Callable[[str], Awaitable[float | None]]
"""Makes the world match the key's object; returns seconds until the next sync, or None."""


Start: TypeAlias = Callable[[Work[K]], "float | Rest[float | None] | None"]
"""Begins a sync of a claimed key; returns its result, or the rest of a sync that waits."""


class SyncLoop(Generic[K]):
    """Calls one handler for every key on its queue, each key by one worker at a time.

    If this process shares its work with others (`Environment.leadership`), it syncs keys in its
    terms only. At the end of a term the syncs under way are cancelled. With a `ShareListener`, it
    syncs only its own keys (`own`): only these are put on the queue and stay there.

    Args:
        handler: syncs a key; it fails by raising.
        queue: the keys to sync.
        retry: what follows a failure.
        pausing: the pauses of the controller; by default only annotations pause keys.
        on_held_back: called instead of the handler for a paused key, to report the pause.
    """

    def __init__(
        self,
        handler: Callable[[K], Awaitable[float | None]],
        *,
        queue: WorkQueue[K] | None = None,
        retry: RetryPolicy = always_retry,
        pausing: Pausing | None = None,
        on_held_back: Callable[[K], Awaitable[float | None]] | None = None,
    ) -> None:
        self.queue = WorkQueue[K]() if queue is None else queue
        self.counters = SyncCounters()
        self._pausing = Pausing("") if pausing is None else pausing
        self.own = OwnKeys(self.queue.closed, self._released)
        self.paused = self._pausing.keys(self.queue, self._has)
        self._handler = handler
        self.start: Start[K] = self._start
        self._context = log_context()
        self._on_held_back = on_held_back
        self._retry = retry
        self._subscriptions: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        self._listener: ShareListener | None = None
        self._plan: PlanRecord | None = None  # the plan that the syncs belong to

    def _has(self, key: str) -> bool:
        return self.own.has(key)  # it changes

    def _released(self) -> None:
        self.paused.forget_unread()

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
        ready: Callable[[], Awaitable[None]],
        listener: ShareListener | None = None,
        *,
        workers: int = 1,
    ) -> None:
        """Sync as many keys at once as there are *workers*, until the queue is shut down.

        The loop calls *ready* once every table is synced, and begins when *ready* returns. If this
        process shares its work, it calls *ready* in every term, and the tables then show all writes
        of the processes that held the keys before. Without a *listener*, this process holds every
        key in its terms.
        """
        async with AsyncExitStack() as stack:
            self._listener, self._plan = listener, environment().plan
            leadership = self.own.leadership = environment().leadership
            stack.enter_context(self.own.running(None if listener is None else self))
            if self._plan is not None and not self._plan.continuous:
                self._retry = _never_retry
            for subscription in self._subscriptions:
                await stack.enter_async_context(subscription())
            await self.own.synced()

            async def work() -> None:
                await ready()
                await self._run_workers(workers)

            if leadership is None:
                await work()
            else:
                await leadership.lead(partial(self.own.lead, work), self.queue.closed)

    async def lost(self, holds: KeyFilter) -> None:
        """Forget the keys that this process doesn't sync any more; see `ShareListener`."""
        if self.own.leadership is not None and not self.own.leadership.mask:
            self.queue.feed_no_more()
        await self.queue.keep(holds)
        if self._listener is not None:
            await self._listener.lost(holds)

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue the keys that this process syncs now; see `ShareListener`."""
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

    async def _work(self, claim: ClaimedKey | None) -> None:  # noqa: C901, PLR0912 - one straight line
        """Sync keys one after the other; the *claim* notes the key in case the process dies."""
        queue, retry, counters = self.queue, self._retry, self.counters
        pausing, pauses = self._pausing, self.paused.pauses
        quarantined, wary = self.paused.quarantine.quarantined, pausing.claims.wary
        own, shared, leadership = self.own, self.own.shared, self.own.leadership
        start = self.start if leadership is None else partial(self._in_term, leadership, self.start)
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
            key = work.key
            if (shared or pausing.whole or pauses or quarantined or wary) and await self._held_back(
                work, claim
            ):
                continue
            if claim is not None:
                claim.hold(str(key))
            if not left:
                slice_ends, left = slices.begin(), ITEMS_MAX
            left -= 1
            outcome: Outcome = SYNCED
            try:
                after_s = start(work)
                if after_s is not None:
                    if type(after_s) is Rest:
                        left = -1  # it waits
                        after_s = await after_s
                    if after_s is not None:
                        outcome = Synced(cast("float", after_s))
            except BaseException as error:  # noqa: BLE001 - raised again, unless it is the handler's
                outcome = self._failed(key, error, worker)
            if claim is not None:
                self._survived(claim, key)
            counters.end(outcome, begun=work.at, now=queue.now(), changed=work.changed)
            if self._plan is not None:
                _record(self._plan, key, outcome)
            queue.settle(key, outcome, retry)
            if shared and not own.has(key):
                queue.drop(key)
                await own.give_up(key)
            if left < 0 or (queue.ready and (not left or clock() >= slice_ends)):
                await asyncio.sleep(0)  # events of its writes arrive first
                left = 0

    def _start(self, work: Work[K]) -> float | Rest[float | None] | None:
        """Call the handler; return its result, or the rest of a sync that waits."""
        bind_sync(self._context, work.key, self.queue.failures(work.key) + 1)
        return first_step(self._handler(work.key))

    @staticmethod
    def _in_term(
        leadership: Leadership, start: "Start[K]", work: Work[K]
    ) -> float | Rest[float | None] | None:
        """Sync the key while the term lasts; it is not given away before the sync has ended."""
        if not leadership.leads:
            raise asyncio.CancelledError
        leadership.hold(work.key)
        try:
            step = start(work)
        except BaseException:
            leadership.release(work.key)
            raise
        if isinstance(step, Rest):
            return first_step(_rest_of_term(leadership, work.key, step))
        leadership.release(work.key)
        return step

    def _failed(self, key: K, error: BaseException, worker: "asyncio.Task[None] | None") -> Failed:
        """Return the failure of the handler; raise the error if the worker was cancelled."""
        failure = failure_of(error, worker)
        if failure is None:
            self.queue.give_back(key, untouched=True)  # the next worker syncs it
            raise error
        return Failed(failure)

    def _survived(self, claim: ClaimedKey, key: K) -> None:
        """Note that the process has survived a sync of the key."""
        claim.release()
        if self._pausing.claims.wary:
            self.paused.quarantine.survived(str(key))

    def may_sync(self, key: K) -> str | None:
        """Return why the key may not be synced now, None if it may; the one decision about it.

        Its share may belong to another process, the controller or the key may be paused, or the key
        may be quarantined.
        """
        if not self.own.has(key):
            return "another process may sync it"
        if self._pausing.whole is not None and self._plan is None:
            return f"the controller is paused {self._pausing.whole}"
        return self.paused.reason(key)

    async def _held_back(self, work: Work[K], claim: ClaimedKey | None) -> bool:
        """Give back the key if it may not be synced now; return whether it may not.

        After a process has died, a key that may be synced waits until it's safe, see `Quarantine`.
        """
        key, queue = work.key, self.queue
        if not self.own.has(key):
            queue.drop(key)
            queue.give_back(key)
        elif self._pausing.whole is not None and self._plan is None:
            queue.give_back(key, untouched=True)
            waits = (self._pausing.wait_running(), queue.closed())
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        elif self.paused.holds_back(key):
            await self._hold_back(work)
        elif claim is None or not self._pausing.claims.wary:
            return False
        else:
            try:
                later_s = await self.paused.quarantine.admit(str(key), claim)
            except asyncio.CancelledError:
                queue.give_back(key, untouched=True)
                raise
            if later_s is not None:
                queue.offer(key, work.reason, priority=work.priority, after=later_s)
                queue.give_back(key)
            elif self.may_sync(key) is None:
                work.at = queue.now()  # the sync begins only now
                return False
            else:
                claim.release()
                queue.give_back(key, untouched=True)  # the next worker sees to it
        return True

    async def _hold_back(self, work: Work[K]) -> None:
        """Give back a paused key; its change is not answered until the key is resumed."""
        key, work.changed = work.key, None
        if self._plan is not None:
            self._plan.held_back(key, self.paused.reason(key) or "")
        report = self._on_held_back
        if report is None:
            self.queue.give_back(key)
            return
        try:
            start: Start[K] = lambda _: first_step(report(key))  # noqa: E731 - a short function
            term = self.own.leadership
            after_s = start(work) if term is None else self._in_term(term, start, work)
            if isinstance(after_s, Rest):
                after_s = await after_s
            outcome: Outcome = SYNCED if after_s is None else Synced(after_s)
        except BaseException as error:  # noqa: BLE001 - raised again, unless it is the handler's
            outcome = self._failed(key, error, asyncio.current_task())
        self.queue.settle(key, outcome, self._retry)


async def _rest_of_term(
    leadership: Leadership, key: Hashable, rest: Rest[float | None]
) -> float | None:
    """Do the rest of a sync step by step while the term lasts; the key is not given away."""
    try:
        return await GuardedSteps(rest, lambda: leadership.leads)
    finally:
        leadership.release(key)


def _record(plan: PlanRecord, key: Hashable, outcome: Outcome) -> None:
    match outcome:
        case Synced(after):
            plan.synced(key, after)
        case Failed(error):
            plan.failed(key, error)


def _never_retry(_error: Exception, _failures: int) -> Drop:
    """Drop the key: the plan itself decides when a failed key is synced again."""
    return Drop()


_MANUAL = Operation.MANUAL  # Python looks up the member of an enum slowly
_PUT, _USER, _RESYNC = Operation.PUT, Priority.USER, Priority.RESYNC


class KeyQueue:
    """Enqueues the keys of primaries on *loop*; a `ShareListener`.

    A key that another process holds is neither enqueued nor remembered: the other process sees the
    same change. If this process gains the key later, it syncs the key then.
    """

    primary: Primary[Any]
    """The objects, as soon as their store is open."""

    def __init__(self, loop: SyncLoop[str]) -> None:
        self.queue = loop.queue
        self.loop = loop
        self.paused_keys = loop.paused
        self.paused_keys.listen(self._resumed)

    def watch(self) -> None:
        """Enqueue changed keys while the loop runs."""
        self.loop.watch(
            self.primary.informer, lambda it: self.primaries_changed((it,)), self.primaries_changed
        )

    def _resumed(self, key: str, _pause: Pause, pending: bool) -> None:  # noqa: FBT001 - see `OnResumed`
        """Sync a resumed key once if a sync was held back."""
        if pending:
            self.enqueue(key, Operation.RESUME)

    def count(self, table: Table[Any]) -> int:
        """Return how many of the cached keys this process syncs now.

        If it keeps only the values of its keys, these are counted, because a test of a million keys
        takes a second. While keys move, some of them may count twice or not at all.
        """
        if not table.divided:
            return self.loop.own.count(table.keys())
        return len(table.read_keys()) if self.loop.own.any else 0

    def enqueue(
        self,
        key: str,
        operation: Operation,
        *,
        priority: Priority | None = None,
        after: float = 0.0,
    ) -> None:
        """Sync the key *after* seconds from now, by default with the operation's priority."""
        if self.loop.own.has(key):
            if operation is _MANUAL:
                self.paused_keys.quarantine.release(key)
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
            return self.loop.own.count(keys)
        table = self.primary.informer.table
        self.enqueue_all(table.read_keys())  # of all keys that this process holds
        return self.count(table)

    def primaries_changed(self, changes: Sequence[Change[Any]]) -> None:  # noqa: C901, PLR0912 - one straight line
        """Enqueue each changed key unless only the status of its object changed.

        A key that was skipped because it was invalid is synced again, even if the object is back at
        its last valid state. The queue notes the last state of a deleted object.
        """
        primary, paused, has = self.primary, self.paused_keys, self.loop.own.has
        has_all, knows = has is every_key, bool(paused.pauses or paused.quarantine.deaths)
        known, noted = self.queue.works, self.queue.noted
        kind = primary.kind
        desire, decoded = kind.desire, primary.informer.table.decoded
        offered: list[tuple[str, Operation]] = []
        for change in changes:
            key, before, after = change.key, change.before, change.after
            if (
                after is None or knows or after.value.rfind(MARK) >= 0  # `in` takes twice as long
            ) and paused.concerns(change):
                paused.observe(change)
            if not (has_all or has(key)):
                continue
            if after is None:
                if before is not None and is_read(before):
                    self.queue.note(key).last = before
                offered.append((key, Operation.PURGE if change.purged else Operation.DELETE))
                continue
            skipped = False
            if key in known:
                if self.queue.answers_put(key):
                    continue
                if (notes := noted(key)) is not None:
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

    async def lost(self, holds: KeyFilter) -> None:
        """Do nothing: the queue has forgotten the keys already."""

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue primaries that exist or were deleted."""
        table, store = self.primary.informer.table, self.primary.informer.store

        def is_gained(key: Hashable) -> bool:
            stored = table.get(str(key))
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
