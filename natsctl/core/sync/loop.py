"""Calls a sync handler for every key on a queue, while this process may sync the key."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Generic, TypeVar, cast

from natsctl.core.cache.informer import Informer
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.pausing.held_file import HeldSlot, held_file
from natsctl.core.pausing.long_syncs import LongSyncs
from natsctl.core.pausing.pausing import Pausing
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.core.retry import Drop, RetryPolicy, always_retry
from natsctl.core.sync.assigned_keys import AssignedKeys, AssignmentListener
from natsctl.core.sync.attempts import Attempts
from natsctl.core.sync.calls import Unfinished
from natsctl.core.sync.cancellation import outlives, supervising
from natsctl.core.sync.counters import SyncCounters
from natsctl.core.task_group import together
from natsctl.core.workqueue import Failed, Outcome, Synced, Work, WorkQueue
from natsctl.errors import QueueShutDownError
from natsctl.model.store import Change
from natsctl.slices import Slices
from natsctl.telemetry.logger import bind_sync, get_logger, log_context

log = get_logger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

SyncHandler = Callable[[str], Awaitable[float | None]]
"""Makes the world match the key's object; returns seconds until the next sync, or None."""


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
        queue: WorkQueue[K] | None = None,
        retry: RetryPolicy = always_retry,
        pausing: Pausing | None = None,
        on_held_back: Callable[[K], Awaitable[float | None]] | None = None,
    ) -> None:
        self.queue = WorkQueue[K]() if queue is None else queue
        self.counters = SyncCounters()
        self._pausing = Pausing("") if pausing is None else pausing
        self.assigned = AssignedKeys(self.queue, self._pausing)
        self.holdings, self.paused = self.assigned.holdings, self.assigned.paused
        self._handler = handler
        self._on_held_back = on_held_back
        self._retry = retry
        self._subscriptions: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        self._leadership: Leadership | None = None
        self._long_syncs: LongSyncs | None = None  # records keys that are held for long
        self._plan: PlanRecord | None = None  # the plan that the syncs belong to

    @property
    def stopped(self) -> bool:
        """True while the whole controller is paused, so that no worker takes a key."""
        return self._pausing.whole is not None

    def watch(self, informer: Informer[T], on_change: Callable[[Change[T]], object]) -> None:
        """Call *on_change* for every change while the loop runs; it enqueues keys."""
        self._subscriptions.append(lambda: informer.subscribe(on_change))
        self.assigned.watch(informer)

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
            self._leadership = leadership = current_leadership.get()
            self._plan = current_plan.get()
            if self._plan is not None and not self._plan.continuous:
                self._retry = _never_retry
            await self.assigned.begin(leadership, listener)
            for subscription in self._subscriptions:
                await stack.enter_async_context(subscription())
            await self.assigned.synced()

            async def work() -> None:
                await ready()
                await self._run_workers(workers)

            if leadership is None:
                await work()
            else:
                await leadership.lead(partial(self.assigned.lead, work), self.queue.closed)

    async def _run_workers(self, workers: int) -> None:
        self.queue.answers = True
        try:
            await self._pausing.listed.wait()
            self.paused.check_records()
            await self._pausing.note_deaths(self.paused)
            await self._call_workers(workers)
        finally:
            self.queue.stop_answering()

    async def _call_workers(self, workers: int) -> None:
        with (
            held_file(self.paused.name, workers, self._pausing.process) as held,
            self._pausing.long_syncs(self.paused, self.queue, workers) as self._long_syncs,
        ):
            async with together() as group:
                with supervising():
                    for number in range(workers):
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
        shared = self.assigned.shared
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        context = log_context()
        while not worker.cancelling() or await outlives(worker):
            work = queue.take_nowait()
            if work is None and (work := await self._next()) is None:
                return
            key = work.key
            if shared and not self.holdings.has(key):
                queue.drop(key)
                queue.give_back(key)
                continue
            if (pausing.whole or pauses or quarantined) and await self._held_back(work):
                continue
            bind_sync(context, key, queue.failures)
            begun = clock()
            outcome = attempts.start(key)
            if waited := isinstance(outcome, Unfinished):
                outcome = await self._wait_for_end(key, outcome)
            if slot is not None:
                self._survived(slot, key)
            now = clock()
            counters.end(outcome, begun=begun, now=now, changed=work.changed)
            if self._plan is not None:
                _record(self._plan, key, outcome)
            queue.settle(key, outcome, retry)
            if shared and not self.holdings.has(key):
                await self.assigned.give_up(key)
            if waited or (queue.ready and slices.is_over()):
                await slices.pause()  # events of its writes arrive first

    async def _wait_for_end(self, key: K, rest: Unfinished[Outcome]) -> Outcome:
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
        if self.paused.quarantine.deaths:
            self.paused.quarantine.release(str(key))

    async def _next(self) -> Work[K] | None:
        """Wait for the next key; return None when the queue is shut down."""
        try:
            return await self.queue.take()
        except QueueShutDownError:
            return None

    async def _held_back(self, work: Work[K]) -> bool:
        """Give back the key if it or the whole controller is paused; return whether it is."""
        if self._pausing.whole is not None and self._plan is None:
            await self._wait_running(work.key)
        elif self.paused.holds_back(work.key):
            work.changed = None  # its change is not answered until the key is resumed
            await self._hold_back(work.key)
        else:
            return False
        return True

    async def _wait_running(self, key: K) -> None:
        """Give back the key, and wait until the controller is resumed or stopped."""
        self.queue.give_back(key, untouched=True)
        waits = (self._pausing.wait_running(), self.queue.closed())
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _hold_back(self, key: K) -> None:
        """Give back a paused key."""
        if self._plan is not None:
            self._plan.held_back(key, self.paused.reason(key))
        if self._on_held_back is None:
            self.queue.give_back(key)
        else:
            outcome = Attempts(self._on_held_back, self.queue, self._leadership).start(key)
            if isinstance(outcome, Unfinished):
                outcome = await outcome
            self.queue.settle(key, outcome, self._retry)


def _record(plan: PlanRecord, key: Hashable, outcome: Outcome) -> None:
    match outcome:
        case Synced(after):
            plan.synced(key, after)
        case Failed(error):
            plan.failed(key, error)


def _never_retry(_error: Exception, _failures: int) -> Drop:
    """Drop the key: the plan itself decides when a failed key is synced again."""
    return Drop()
