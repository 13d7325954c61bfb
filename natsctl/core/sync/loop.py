"""Calls a sync handler for every key on a queue, while this process may sync the key."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Generic, TypeAlias, TypeVar, cast

from natsctl.core.cache.informer import Informer, OnChange, OnChanges
from natsctl.core.coordination.term import Leadership, current_leadership
from natsctl.core.coordination.term_guard import GuardedSteps
from natsctl.core.pausing.claims import ClaimedKey
from natsctl.core.pausing.pausing import Pausing
from natsctl.core.planning.record import PlanRecord, current_plan
from natsctl.core.retry import Drop, RetryPolicy, always_retry
from natsctl.core.sync.assigned_keys import AssignedKeys, AssignmentListener
from natsctl.core.sync.calls import failure_of
from natsctl.core.sync.cancellation import outlives, supervising
from natsctl.core.sync.counters import SyncCounters
from natsctl.core.sync.steps import Rest, first_step
from natsctl.core.task_group import together
from natsctl.core.workqueue import SYNCED, Failed, Outcome, Synced, Work, WorkQueue
from natsctl.errors import QueueShutDownError
from natsctl.slices import Slices
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
        self.start: Start[K] = self._start
        self._context = log_context()
        self._on_held_back = on_held_back
        self._retry = retry
        self._subscriptions: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        self._leadership: Leadership | None = None
        self._plan: PlanRecord | None = None  # the plan that the syncs belong to

    @property
    def stopped(self) -> bool:
        """True while the whole controller is paused, so that no worker takes a key."""
        return self._pausing.whole is not None

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
            with self._pausing.claims.of_loop(self.paused.name, workers) as claims:
                await self._pausing.note_deaths(self.paused, shared=self.assigned.shared)
                self._context = log_context()
                async with together() as group:
                    with supervising():
                        for number in range(workers):
                            claim = claims[number] if claims else None
                            group.create_task(self._work(claim), name=f"worker {number}")
        finally:
            self.queue.stop_answering()

    async def _work(self, claim: ClaimedKey | None) -> None:
        """Sync keys one after the other; the *claim* notes the key in case the process dies."""
        with nullcontext() if claim is None else claim:
            await self._sync_keys(claim)

    async def _sync_keys(self, claim: ClaimedKey | None) -> None:  # noqa: C901 - one straight line
        queue, retry, counters = self.queue, self._retry, self.counters
        pausing, pauses = self._pausing, self.paused.pauses
        quarantined, wary = self.paused.quarantine.quarantined, pausing.claims.wary
        shared, leadership = self.assigned.shared, self._leadership
        start = self.start if leadership is None else partial(self._in_term, leadership, self.start)
        slices, clock = Slices(), asyncio.get_running_loop().time
        worker = cast("asyncio.Task[None]", asyncio.current_task())
        while not worker.cancelling() or await outlives(worker):
            work = queue.take_nowait()
            if work is None and (work := await self._next()) is None:
                return
            key = work.key
            if shared and not self.holdings.has(key):
                queue.drop(key)
                queue.give_back(key)
                continue
            if (pausing.whole or pauses or quarantined or wary) and await self._held_back(
                work, claim
            ):
                continue
            if claim is not None:
                claim.hold(str(key))
            begun, waited = clock(), False
            try:
                after_s = start(work)
                if type(after_s) is Rest:
                    waited = True
                    after_s = await after_s
                outcome: Outcome = SYNCED if after_s is None else Synced(cast("float", after_s))
            except BaseException as error:  # noqa: BLE001 - raised again, unless it is the handler's
                outcome = self._failed(key, error, worker)
            if claim is not None:
                self._survived(claim, key)
            counters.end(outcome, begun=begun, now=clock(), changed=work.changed)
            if self._plan is not None:
                _record(self._plan, key, outcome)
            queue.settle(key, outcome, retry)
            if shared and not self.holdings.has(key):
                await self.assigned.give_up(key)
            if waited or (queue.ready and slices.is_over()):
                await slices.pause()  # events of its writes arrive first

    def _start(self, work: Work[K]) -> float | Rest[float | None] | None:
        """Call the handler; return its result, or the rest of a sync that waits."""
        bind_sync(self._context, work.key, self.queue.failures)
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
            self._pausing.survived(self.paused, str(key), self.queue)

    async def _next(self) -> Work[K] | None:
        """Wait for the next key; return None when the queue is shut down."""
        try:
            return await self.queue.take()
        except QueueShutDownError:
            return None

    async def _held_back(self, work: Work[K], claim: ClaimedKey | None) -> bool:
        """Give back the key if it may not be synced now; return whether it may not."""
        if self._pausing.whole is not None and self._plan is None:
            await self._wait_running(work.key)
        elif self.paused.holds_back(work.key):
            await self._hold_back(work)
        elif claim is not None and self._pausing.claims.wary:
            return not await self._admitted(work, claim)
        else:
            return False
        return True

    async def _admitted(self, work: Work[K], claim: ClaimedKey) -> bool:
        """Wait until the key may be synced, after a process has died; if not, give it back."""
        key = work.key
        try:
            later_s = await self._pausing.admit(self.paused, str(key), claim, self.queue)
        except asyncio.CancelledError:
            self.queue.give_back(key, untouched=True)
            raise
        if later_s is not None:
            self.queue.offer(key, work.reason, priority=work.priority, after=later_s)
            self.queue.give_back(key)
            return False
        lost = self.assigned.shared and not self.holdings.has(key)
        if lost or self._pausing.whole or self.paused.reason(key):
            claim.release()
            self.queue.give_back(key, untouched=True)
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

    async def _hold_back(self, work: Work[K]) -> None:
        """Give back a paused key; its change is not answered until the key is resumed."""
        key, work.changed = work.key, None
        if self._plan is not None:
            self._plan.held_back(key, self.paused.reason(key))
        report = self._on_held_back
        if report is None:
            self.queue.give_back(key)
            return
        try:
            start: Start[K] = lambda _: first_step(report(key))  # noqa: E731 - a short function
            term = self._leadership
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
