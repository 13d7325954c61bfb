"""Calls a sync handler for every key on a queue, while this process may sync the key."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from natsctl.core.cache.informer import Informer, catch_up
from natsctl.core.cache.read_values import read_values, release_values
from natsctl.core.coordination.assignment import NONE, Assignment, HeldAssignments, KeptKeys
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.pausing.held_file import HeldSlot, held_file
from natsctl.core.pausing.long_syncs import LongSyncs
from natsctl.core.pausing.pausing import Pausing
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.core.queue.retry import Drop, RetryPolicy, always_retry
from natsctl.core.queue.workqueue import Held, Priority, Workqueue
from natsctl.core.sync.attempts import Attempts
from natsctl.core.sync.calls import Unfinished
from natsctl.core.sync.counters import SyncCounters
from natsctl.core.sync.follow_up import Failed, Outcome, Synced, settle
from natsctl.core.task_group import together
from natsctl.errors import QueueShutDownError
from natsctl.model.store import Change
from natsctl.slices import Slices
from natsctl.telemetry.logger import bind_sync, get_logger, log_context

log = get_logger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

SyncHandler = Callable[[str], Awaitable[float | None]]
"""Makes the world match the key's object; returns seconds until the next sync, or None."""


KeyFilter = Callable[[Hashable], bool]
"""Selects keys: returns whether a key is selected."""


class AssignmentListener(Protocol):
    """Enqueues the keys that this process gains, and forgets the keys that it loses."""

    async def lost(self, holds: KeyFilter) -> None:
        """Forget all keys for which *holds* is false: another process may sync them."""
        ...

    async def gained(self, gained: KeyFilter) -> None:
        """Enqueue every key for which *gained* is true, if it exists or left anything behind."""
        ...


class SyncLoop(Generic[K]):
    """Calls one handler for every key on its queue, each key by one worker at a time.

    If this process shares its work with others (`current_leadership`), it syncs keys in its terms
    only. At the end of a term the syncs under way are cancelled. With an `AssignmentListener`, it
    syncs only the keys that it holds (`holdings`): only these are put on the queue and stay there.

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
        queue: Workqueue[K] | None = None,
        retry: RetryPolicy = always_retry,
        pausing: Pausing | None = None,
        on_held_back: Callable[[K], Awaitable[float | None]] | None = None,
    ) -> None:
        self.queue = Workqueue[K]() if queue is None else queue
        self.counters = SyncCounters[K]()
        self.holdings = HeldAssignments()  # the keys that may be put on the queue now
        self._pausing = Pausing("") if pausing is None else pausing
        self.paused = self._pausing.keys(self._holds)
        self._handler = handler
        self._on_held_back = on_held_back
        self._retry = retry
        self._subscriptions: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        self._informers: list[Informer[Any]] = []
        self._partial: list[Informer[Any]] = []  # those that do not keep every value
        self._leadership: Leadership | None = None
        self._listener: AssignmentListener | None = None
        self._moved = asyncio.Event()  # the assignment changed, or a key was lost while it was held
        self._kept = KeptKeys()
        self._workers = 1
        self._long_syncs: LongSyncs | None = None  # records keys that are held for long
        self._plan: PlanRecord | None = None  # the plan that the syncs belong to

    @property
    def stopped(self) -> bool:
        """True while the whole controller is paused, so that no worker takes a key."""
        return self._pausing.whole is not None

    def watch(self, informer: Informer[T], on_change: Callable[[Change[T]], object]) -> None:
        """Call *on_change* for every change while the loop runs; it enqueues keys."""
        self._subscriptions.append(lambda: informer.subscribe(on_change))
        self._informers.append(informer)
        if informer.cache.partial:
            self._partial.append(informer)

    async def run(
        self,
        ready: Callable[[], Awaitable[None]],
        listener: AssignmentListener | None = None,
        *,
        workers: int = 1,
    ) -> None:
        """Sync as many keys at once as there are *workers*, until the queue is shut down.

        The loop calls *ready* once every cache is synced, and begins when *ready* returns. If this
        process shares its work, it calls *ready* in every term, and the caches then show all writes
        of the processes that held the keys before. Without a *listener*, this process holds every
        key in its terms.
        """
        async with AsyncExitStack() as stack:
            self._leadership, self._listener = current_leadership.get(), listener
            self._workers = workers
            self._plan = current_plan.get()
            if self._plan is not None and not self._plan.continuous:
                self._retry = _never_retry
            if self._leadership is not None and listener is not None:
                await self._hold_nothing()
                self._kept = KeptKeys(self._leadership.before_terms)
            for subscription in self._subscriptions:
                await stack.enter_async_context(subscription())
            for informer in self._informers:
                await informer.cache.synced.wait()
            if self._leadership is None:
                await ready()
                await self._run_workers()
            else:
                term = partial(self._term, self._leadership, ready)
                await self._leadership.lead(term, self.queue.closed)

    async def _term(self, leadership: Leadership, ready: Callable[[], Awaitable[None]]) -> None:
        if self._listener is None:
            await catch_up(self._informers)
            await ready()
            await self._run_workers()
            return
        try:
            with leadership.moving(self._move):
                await self._sync_assigned(ready, self._listener)
        finally:
            await self._hold_nothing()
            self._kept.ended(leadership.expected)

    async def _sync_assigned(
        self, ready: Callable[[], Awaitable[None]], listener: AssignmentListener
    ) -> None:
        """Sync the keys that this process holds, while the assignment changes."""
        async with together() as group:
            reads = [
                group.create_task(self._read_all(informer, listener), name="read of all values")
                for informer in self._partial
            ]
            settled = asyncio.Event()
            follow = self._follow_assignment(listener, settled)
            following = group.create_task(follow, name="assignment")
            await settled.wait()
            await ready()
            await self._run_workers()
            for task in (following, *reads):
                task.cancel()

    async def _follow_assignment(
        self, listener: AssignmentListener, settled: asyncio.Event
    ) -> None:
        """Pass keys that are gained or lost to the listener; set *settled* when the first are held.

        A key is held only after the caches show what other processes wrote for it. Changes before
        that do not enqueue the key, so the listener enqueues all keys that are gained.
        """
        while True:
            newest = self.holdings.newest
            await catch_up(self._informers)
            lacks = self._kept.lacks(newest)
            for informer in self._partial:
                if lacks:
                    await read_values(informer, self._kept_in(newest))
                if newest is self.holdings.newest and not informer.cache.wants_all.is_set():
                    informer.cache.settle_kept(settled=True)
            self._kept.read(newest if newest is self.holdings.newest else None)
            gained = self.holdings.settle(newest)
            settled.set()
            if gained is not None:
                self.paused.check_records()
                await self._pausing.note_deaths(self.paused)
                await listener.gained(gained)
            await self._release_values(newest)
            while self.holdings.settled:
                await self._moved.wait()
                self._moved.clear()
                await self._forget_lost()
            await self._forget_lost()  # the assignment may have changed while keys were enqueued

    async def _release_values(self, assignment: Assignment) -> None:
        """Forget the values of keys that this process does not need any more."""
        if self._kept.exceeds(assignment):
            for informer in self._partial:
                await release_values(informer)
            if assignment is self.holdings.newest:
                self._kept.released(assignment)
            self.paused.forget_unread()

    def _kept_in(self, assignment: Assignment) -> KeyFilter:
        return lambda key: assignment.has(key) and self.keeps(key)

    async def _read_all(self, informer: Informer[Any], listener: AssignmentListener) -> None:
        """Read every value once somebody reads objects of other processes.

        A function that maps a change to keys may have failed until then, so all keys are enqueued.
        """
        await informer.cache.wants_all.wait()
        log.info("keeping the values of all objects", kind=informer.cache.kind.name)
        await read_values(informer, lambda _: True)
        await listener.gained(self.holdings.has)

    def keeps(self, key: Hashable) -> bool:
        """Return whether this process needs the object of the key: it has the key, or may get it.

        A process that shares its keys needs no other objects.
        """
        leadership = self._leadership or current_leadership.get()
        if leadership is None or leadership.expected is None:
            return True
        may_have = self._leadership is not None and self.holdings.may_have(key)
        return may_have or leadership.expects(key)

    async def _hold_nothing(self) -> None:
        for informer in self._partial:
            informer.cache.settle_kept(settled=False)
        self.holdings.reset(NONE)
        self.queue.feed_no_more()
        await self._forget_lost()

    async def _forget_lost(self) -> None:
        """Forget the keys that this process does not hold any more.

        Other keys may be lost while this runs, so each key is compared with the present holdings.
        """
        await self.queue.keep(self._holds)
        await self.counters.keep(self._holds)
        await self.paused.keep(self._holds)
        if self._listener is not None:
            await self._listener.lost(self._holds)

    def _holds(self, key: Hashable) -> bool:
        return self.holdings.has(key)

    def _move(self, assignment: Assignment) -> None:
        for informer in self._partial:
            informer.cache.settle_kept(settled=False)
        self._kept.moved(assignment, older_held=self.holdings.moved(assignment))
        self._moved.set()

    async def _run_workers(self) -> None:
        await self._pausing.listed.wait()
        self.paused.check_records()
        await self._pausing.note_deaths(self.paused)
        with (
            self.counters.answering(),
            held_file(self.paused.name, self._workers, self._pausing.process) as held,
            self._pausing.long_syncs(self.paused, self.queue, self._workers) as self._long_syncs,
        ):
            async with together() as group:
                for number in range(self._workers):
                    slot = None if held is None else held.slot(number)
                    group.create_task(self._work(slot), name=f"worker {number}")

    async def _work(self, slot: HeldSlot | None) -> None:
        """Sync keys one after the other; the *slot* notes the key in case the process dies."""
        with nullcontext() if slot is None else slot:
            attempts = Attempts(self._handler, self.queue, self._leadership, slot)
            await self._sync_keys(attempts, slot)

    async def _sync_keys(self, attempts: Attempts[K], slot: HeldSlot | None) -> None:
        queue, counters, retry = self.queue, self.counters, self._retry
        pausing, pauses = self._pausing, self.paused.pauses
        quarantined = self.paused.quarantine.quarantined
        clock = asyncio.get_running_loop().time
        slices = Slices()
        assigned = self._leadership is not None and self._listener is not None
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        context = log_context()
        while not worker.cancelling():
            key = queue.get_nowait()
            if key is None and (key := await self._next()) is None:
                return
            if assigned and not self.holdings.has(key):
                queue.drop(key)
                queue.done(key)
                continue
            if (pausing.whole or pauses or quarantined) and await self._held_back(key):
                continue
            bind_sync(context, key, queue.failures)
            begun, changed = clock(), counters.begin(key)
            outcome = attempts.start(key)
            if isinstance(outcome, Unfinished):
                outcome = await self._waited(key, outcome)
            if slot is not None:
                self._survived(slot, key)
            now = clock()
            counters.end(key, outcome, begun=begun, now=now, changed=changed)
            if self._plan is not None:
                _record(self._plan, key, outcome)
            settle(queue, key, outcome, retry)
            if assigned and not self.holdings.has(key):
                await self._give_up(key)
            if slices.over or slices.waited:
                await slices.pause()  # events of its writes arrive first
        raise asyncio.CancelledError  # the handler swallowed the cancellation

    async def _waited(self, key: K, rest: Unfinished[Outcome]) -> Outcome:
        """Wait until the sync has ended, and record the key if that takes long."""
        if self._long_syncs is None:
            return await rest
        self._long_syncs.wait()
        try:
            return await rest
        finally:
            self._long_syncs.end(str(key))

    def _survived(self, slot: HeldSlot, key: K) -> None:
        """Note that the process has survived a sync of the key."""
        slot.release()
        quarantine = self.paused.quarantine
        if quarantine.deaths and str(key) in quarantine.deaths:
            quarantine.release(str(key))

    async def _next(self) -> K | None:
        """Wait for the next key; return None when the queue is shut down."""
        try:
            return await self.queue.get()
        except QueueShutDownError:
            return None

    async def _held_back(self, key: K) -> bool:
        """Give back the key if it or the whole controller is paused; return whether it is."""
        if self._pausing.whole is not None and self._plan is None:
            await self._wait_running(key)
        elif self.paused.holds_back(key):
            await self._hold_back(key)
        else:
            return False
        return True

    async def _wait_running(self, key: K) -> None:
        """Give back the key, and wait until the controller is resumed or stopped."""
        held = self.queue.place(key)
        priority = held.priority if isinstance(held, Held) else Priority.USER
        self.queue.add(key, priority=priority)
        self.queue.done(key)
        waits = (self._pausing.wait_running(), self.queue.closed())
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _hold_back(self, key: K) -> None:
        """Give back a paused key; its change is not answered until the key is resumed."""
        self.counters.begin(key)
        if self._on_held_back is None:
            self.queue.done(key)
        else:
            outcome = Attempts(self._on_held_back, self.queue, self._leadership).start(key)
            if isinstance(outcome, Unfinished):
                outcome = await outcome
            settle(self.queue, key, outcome, self._retry)

    async def _give_up(self, key: K) -> None:
        """Forget a key that was lost during its sync, and may have been enqueued since."""
        self.queue.drop(key)
        self._moved.set()
        for informer in self._partial:
            await informer.release(tuple(informer.cache.of_primary(str(key))))
        self.paused.forget_unread()


def _record(plan: PlanRecord, key: Hashable, outcome: Outcome) -> None:
    match outcome:
        case Synced(after):
            plan.synced(key, after)
        case Failed(error):
            plan.failed(key, error)


def _never_retry(_error: Exception, _failures: int) -> Drop:
    """Drop the key: the plan itself decides when a failed key is synced again."""
    return Drop()
