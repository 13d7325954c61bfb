"""The watchers of one resource kind: delivers changes to them, in order, and retries failed calls.

The changes of an object wait in a queue. One worker at a time delivers them: the first change to
every watcher in turn, then the next change. If a watcher fails, only its call is retried, and later
changes of the object are merged into the retry. So every watcher reaches the newest state of every
object, and never returns to an older state.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from natsctl.core.coordination.term import KeyFilter
from natsctl.core.environment import environment
from natsctl.core.history import HandlerFailures, SyncHistory
from natsctl.core.loop import SyncLoop
from natsctl.core.pauses import Pausing
from natsctl.core.record.document import Delivery
from natsctl.core.retry import Decision, Drop, Retry, RetryPolicy, Stop, backoff, decide_retry
from natsctl.core.sync import Calls, Sync
from natsctl.core.workqueue import Priority, WorkQueue
from natsctl.errors import RetryAfter, StoreError
from natsctl.model.pause import Pause
from natsctl.model.store import Change
from natsctl.slices import in_slices, retain
from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import get_logger, log_context
from natsctl.telemetry.tracing import sync_span
from natsctl.watchers.changes import ObjectChange, Source, merged, notify
from natsctl.watchers.opinionated import OpinionatedWatcher
from natsctl.watchers.watcher import ResourceWatcher, RetryDequeuePolicy

log = get_logger(__name__)

CHANGES_MAX = 100_000  # waiting one by one; above that, changes of one object are merged
EARLY_S = 0.001  # a timer may fire this much too early
BACKOFF_S, BACKOFF_MAX_S = 0.005, 1000.0  # for policies that set no delay


class Policies(msgspec.Struct):
    """The decisions after a failure."""

    error_handler: Callable[[Exception], None] | None
    retry: RetryPolicy
    dequeue: RetryDequeuePolicy | None


class Registration(msgspec.Struct, frozen=True, eq=False):
    """A watcher that was added; a watcher that was added twice has two registrations.

    `number` counts the watchers of the same class in the controller.
    """

    watcher: ResourceWatcher
    number: int = 1

    @property
    def name(self) -> str:
        """The name of the watcher, which is the same in every process of the controller."""
        return self.cls if self.number == 1 else f"{self.cls} {self.number}"

    @property
    def cls(self) -> str:
        return type(self.watcher).__name__

    @property
    def finalizer(self) -> str | None:
        return self.watcher.finalizer if isinstance(self.watcher, OpinionatedWatcher) else None


class WatcherRetry(msgspec.Struct):
    """The changes of an object that one watcher has not processed, because the first one failed.

    `due` is the time of the next call, by the event loop's clock.
    """

    registration: Registration
    changes: tuple[ObjectChange, ...]
    failures: int
    error: Exception
    due: float


class Pending:
    """The pending changes and retries of one object, which has had some since a loop time.

    A delivery without a failure sets the time again. A retry is of one watcher and one kind, whose
    parts share it.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        self.changes: deque[tuple[ObjectChange, tuple[Registration, ...]]] = deque()
        self.retries: dict[tuple[Registration, str], WatcherRetry] = {}


class ResourceKind:
    """The sources of one resource kind and its watchers, in the order of their registration."""

    def __init__(
        self, name: str, policies: Policies, *, history: SyncHistory, pausing: Pausing
    ) -> None:
        self.name = name
        self.sources: list[Source] = []
        self.registrations: tuple[Registration, ...] = ()
        self.queue = WorkQueue[str]()
        self.failure: Exception | None = None  # the error that ended the deliveries
        self._policies = policies
        self._history = history
        self._pausing = pausing
        self._pending: dict[str, Pending] = {}  # in the order of their `since`
        self._retrying: dict[str, Pending] = {}  # those with retries
        self._change_count = 0
        self._loop: SyncLoop[str] | None = None
        self._only: Collection[str] | None = None
        self._calls: Calls
        self._logged = HandlerFailures(log, logging.WARNING)

    @property
    def finalizers(self) -> set[str]:
        return {added.finalizer for added in self.registrations if added.finalizer is not None}

    def loop(self, controller: str, *, timeout_s: float) -> SyncLoop[str]:
        """Return the loop that calls the watchers, with a time limit of *timeout_s* for each call.

        The loop ends if a policy returns `Stop` or raises; `failure` is then the error.
        """
        self._calls = Calls(
            controller, "the watcher", limit_s=timeout_s, call_name="the call", setting="timeout_s"
        )
        self._loop = loop = SyncLoop(
            self._sync,
            queue=self.queue,
            retry=lambda _error, _failures: Stop(),
            pausing=self._pausing,
        )
        loop.paused.listen(self._resumed)
        loop.paused.follow([source.informer for source in self.sources])
        if self._only is not None:
            loop.own.only(self._only)
        for source in self.sources:
            self._watch(loop, source)
        return loop

    def _watch(self, loop: SyncLoop[str], source: Source) -> None:
        def changed(change: Change[Any]) -> None:
            """Deliver the change, unless the object only moved to another source of its kind."""
            if loop.paused.concerns(change):
                loop.paused.observe(change)
            selected = source.change(change)
            if selected is None:
                return
            if selected.after is None and any(
                other.has(selected.key)
                for other in self.sources
                if other is not source and other.kind.name == source.kind.name
            ):
                return
            self.add(selected, priority=Priority.RESYNC if change.initial else Priority.USER)

        loop.watch(source.informer, changed)

    def _resumed(self, key: str, _pause: Pause, pending: bool) -> None:  # noqa: FBT001 - see `OnResumed`
        if pending and self.holds(key):
            self.queue.offer(key)

    def add(
        self,
        change: ObjectChange,
        *,
        priority: Priority,
        to: tuple[Registration, ...] | None = None,
    ) -> None:
        """Deliver *change* to all watchers, or only to these, if this process holds the object."""
        targets = self.registrations if to is None else to
        if not targets or not self.holds(change.key):
            return
        pending = self._pending.get(change.key)
        if pending is None:
            pending = self._pending[change.key] = Pending(self.queue.now())
        replaced: tuple[ObjectChange, ...] = ()
        if self._change_count >= CHANGES_MAX and pending.changes:
            last, last_targets = pending.changes[-1]
            if last_targets == targets and last.kind.name == change.kind.name:
                pending.changes.pop()
                replaced = (last,)
        added = merged(replaced, change)
        pending.changes.extend((following, targets) for following in added)
        self._change_count += len(added) - len(replaced)
        self.queue.offer(change.key, priority=priority)

    def add_existing(self, registration: Registration) -> None:
        for source in self.sources:
            for change in source.creates():
                self.add(change, priority=Priority.RESYNC, to=(registration,))

    def resync(self, key: str, *, priority: Priority) -> None:
        """Call the watchers with the object as at a start; make retries of failed calls instead."""
        if self._loop is not None and priority is Priority.USER:
            self._loop.paused.quarantine.release(key)  # a person named the object
        pending = self._pending.get(key)
        retries = [] if pending is None else list(pending.retries.values())
        self._hasten(key, retries, priority)
        retrying = {retry.registration for retry in retries}
        others = tuple(watcher for watcher in self.registrations if watcher not in retrying)
        for source in self.sources:
            for change in source.creates(key):
                self.add(change, priority=priority, to=others)

    def resync_all(self) -> int:
        """Resync every object, a few at a time; return how many there are."""

        def add(key: str) -> None:
            if self.holds(key):
                self.resync(key, priority=Priority.RESYNC)

        for source in self.sources:
            self.queue.feed(source.informer.table.keys(), add)
        return self.count()

    def hasten_retries(self) -> None:
        """Retry at once the calls that failed because of a store, which may be available again."""
        for key, pending in self._retrying.items():
            failed = [one for one in pending.retries.values() if isinstance(one.error, StoreError)]
            self._hasten(key, failed, Priority.RETRY)

    def _hasten(self, key: str, retries: Collection[WatcherRetry], priority: Priority) -> None:
        for retry in retries:
            retry.failures, retry.due = 0, _now()
            self.queue.offer(key, priority=priority)

    # ---- the objects of this process

    def hold_only(self, keys: Collection[str]) -> None:
        self._only = keys

    def holds(self, key: str) -> bool:
        return self._loop is None or self._loop.own.has(key)

    def count(self) -> int:
        """Return of how many existing objects this process delivers the changes."""
        tables = [source.informer.table.keys() for source in self.sources]
        return sum(map(len if self._loop is None else self._loop.own.count, tables))

    async def lost(self, holds: KeyFilter) -> None:
        def drop(key: str) -> None:
            pending = self._pending.pop(key, None)
            self._retrying.pop(key, None)
            self._change_count -= 0 if pending is None else len(pending.changes)

        await retain(self._pending, holds, drop)

    async def gained(self, gained: KeyFilter) -> None:
        """See `ShareListener.gained`; each object is delivered in its newest state."""

        def add(change: ObjectChange) -> None:
            if gained(change.key):
                self.add(change, priority=Priority.RESYNC)

        for source in self.sources:
            await in_slices(source.creates(), add)
        for source in self.sources:
            await in_slices(await source.deletes(gained), add)

    # ---- what waits

    def failed(self, key: str) -> int:
        """Return the most failures in a row of a watcher on the object."""
        pending = self._pending.get(key)
        retries = () if pending is None else pending.retries.values()
        return max((retry.failures for retry in retries), default=0)

    @property
    def unanswered(self) -> int:
        """The number of objects with changes that a watcher must process."""
        return len(self._pending)

    @property
    def oldest_unanswered_s(self) -> float | None:
        """For how many seconds one of these objects has had such changes; None without objects."""
        oldest = next(iter(self._pending.values()), None)
        return None if oldest is None else _now() - oldest.since

    def failures(self) -> dict[str, str]:
        return {
            key: error_text(retry.error)
            for key, pending in self._retrying.items()
            for retry in pending.retries.values()
        }

    # ---- deliveries

    async def _sync(self, key: str) -> None:
        """Deliver the object's oldest change; if there is none, make the retries that are due."""
        pending = self._pending.get(key)
        if pending is None:
            return
        try:
            if pending.changes:
                await self._deliver_next(pending)
            else:
                await self._make_retries(pending)
        except Exception as error:
            self.failure = error
            raise
        if self._pending.get(key) is pending:  # and no other process holds the object now
            self._enqueue_next(key, pending)

    def _enqueue_next(self, key: str, pending: Pending) -> None:
        if not pending.retries:
            self._retrying.pop(key, None)
        if pending.changes:
            if not pending.retries:
                pending.since = _now()
                self._pending[key] = self._pending.pop(key)
            self.queue.offer(key)
        elif not pending.retries:
            del self._pending[key]
        elif (due := min(retry.due for retry in pending.retries.values())) < math.inf:
            self.queue.offer(key, after=max(due - _now(), EARLY_S), priority=Priority.RETRY)

    async def _make_retries(self, pending: Pending) -> None:
        for retry_key, retry in list(pending.retries.items()):
            if retry.registration not in self.registrations:
                del pending.retries[retry_key]
            elif retry.due <= _now() + EARLY_S:
                await self._call(pending, retry.registration, retry.changes, retry.failures)

    async def _deliver_next(self, pending: Pending) -> None:
        change, targets = pending.changes.popleft()
        self._change_count -= 1
        for registration in targets:
            if registration in self.registrations:
                await self._deliver(pending, registration, change)

    async def _deliver(
        self, pending: Pending, registration: Registration, change: ObjectChange
    ) -> None:
        """Deliver the change to one watcher, or merge it into the watcher's pending retry."""
        retry = pending.retries.get((registration, change.kind.name))
        if retry is None:
            await self._call(pending, registration, (change,), 0)
            return
        if self._drops(retry, change):
            await self._call(pending, registration, merged(retry.changes[1:], change), 0)
            return
        changes = merged(retry.changes, change)
        if changes[0].supersedes(retry.changes[0]):
            await self._call(pending, registration, changes, retry.failures)
        else:
            retry.changes = changes

    def _drops(self, retry: WatcherRetry, change: ObjectChange) -> bool:
        dequeue, failed = self._policies.dequeue, retry.changes[0]
        if dequeue is None:
            return True
        new_object, retry_object = change.new or change.old, failed.new or failed.old
        if new_object is None or retry_object is None:
            return False
        return dequeue(change.action, new_object, failed.action, retry_object, retry.error)

    async def _call(
        self,
        pending: Pending,
        registration: Registration,
        changes: tuple[ObjectChange, ...],
        failures: int,
    ) -> None:
        """Call one watcher for each change until a call fails, and keep the rest for a retry."""
        pending.retries.pop((registration, changes[0].kind.name), None)
        while changes:
            retry = await self._call_once(registration, changes, failures)
            if retry is not None:
                key = changes[0].key
                pending.retries[registration, changes[0].kind.name] = retry
                if self._pending.get(key) is pending:  # and no other process holds the object now
                    self._retrying[key] = pending
                return
            changes, failures = changes[1:], 0

    async def _call_once(
        self, registration: Registration, changes: tuple[ObjectChange, ...], failures: int
    ) -> WatcherRetry | None:
        """Call the watcher with the first change; return the retry of a call that fails."""
        change, watcher = changes[0], registration.watcher
        run = self._begin_run(registration, change)

        def facts() -> Mapping[str, object]:
            action, name = change.action.value.lower(), registration.cls
            return {**log_context(), "operation": action, "watcher": name}

        with sync_span(self.name, facts) as span:
            try:
                with run:
                    await self._calls.call(change.key, lambda _: notify(watcher, change))
            except asyncio.CancelledError as error:
                self._history.failed(run, error, _now(), failures=failures)
                raise
            except Exception as error:  # noqa: BLE001 - every exception is the watcher's failure
                failed = classify(error).failed
                if failed:
                    span.fail(error)
                if not failures:
                    # an earlier process may have recorded failures, and may have given up
                    past = await self._history.past_failures(change.key, error, registration.name)
                    if past and isinstance(self._decide(error, past + 1), Retry):
                        failures = past
                self._history.failed(run, error, _now(), failures=failures + 1, log_failure=False)
                delay_s = self._delay_s(change, registration, error, failures + 1)
                if delay_s is None:
                    return None
                due = _now() + delay_s
                return WatcherRetry(registration, changes, failures + failed, error, due)
        run.count_writes()
        self._history.succeeded(run, _now(), failed=failures > 0)
        return None

    def _begin_run(self, registration: Registration, change: ObjectChange) -> Sync:
        before, after, name = change.before, change.after, registration.name
        return self._history.begin(
            change.key,
            change.action.value.lower(),
            after or before,
            handler=name,
            delivery=Delivery(self.name, name, before, after, change.kind),
        )

    def _decide(self, error: Exception, failures: int) -> Decision:
        return decide_retry(self._policies.retry, error, failures)

    def _delay_s(
        self, change: ObjectChange, registration: Registration, error: Exception, failures: int
    ) -> float | None:
        """Report a failed call; return the seconds until its retry, None if it's dropped.

        A call that failed because of a store is never dropped; it waits until the store is back.
        Raises *error* if the retry policy stops the controller.
        """
        if isinstance(error, RetryAfter):
            return error.delay_s
        plan = environment().plan
        if plan is not None and not plan.continuous:
            plan.dropped(change.key, error)
            return None
        self._logged.failed(
            "a watcher failed",
            error,
            failures,
            kind=self.name,
            key=change.key,
            watcher=registration.cls,
            action=change.action.value.lower(),
        )
        if self._policies.error_handler is not None:
            try:
                self._policies.error_handler(error)
            except (Exception, SystemExit):
                log.exception("the error handler failed", kind=self.name)
        if classify(error) is ErrorClass.PERMANENT:
            return None
        match self._decide(error, failures):
            case Retry(None):
                return backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
            case Retry(after):
                return after
            case Drop():
                return math.inf if isinstance(error, StoreError) else None
            case Stop():
                raise error

    async def deliver(
        self, controller: str, registration: Registration, change: ObjectChange
    ) -> None:
        """Call one watcher with the change now, outside of the loop; raises its failure."""
        with self._begin_run(registration, change):
            calls = Calls(controller, "the watcher")
            await calls.call(change.key, lambda _: notify(registration.watcher, change))


def _now() -> float:
    return asyncio.get_running_loop().time()
