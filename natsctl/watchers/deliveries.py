"""Delivers changes to the watchers of one resource kind, in order, and retries failed calls.

The changes of an object wait in a queue. One worker at a time delivers them: the first change to
every watcher in turn, then the next change. If a watcher fails, only its call is retried, and later
changes of the object are merged into the retry. So every watcher reaches the newest state of every
object, and never returns to an older state.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from natsctl.core.history import SyncHistory
from natsctl.core.loop import SyncLoop
from natsctl.core.pauses import Pausing
from natsctl.core.recording.document import Delivery
from natsctl.core.retry import Stop
from natsctl.core.sync import Calls, Sync
from natsctl.core.workqueue import Priority, WorkQueue
from natsctl.errors import StoppedError, StoreError
from natsctl.model.pause import Pause
from natsctl.model.store import Change
from natsctl.slices import retain
from natsctl.telemetry.classification import classify
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import log_context
from natsctl.telemetry.tracing import sync_span
from natsctl.watchers.failed_calls import FailedCalls, Policies, Registration
from natsctl.watchers.merged_changes import ObjectChange, merged, notify
from natsctl.watchers.pending import FailedCall, Pending, PendingRetry
from natsctl.watchers.watcher import ResourceWatcher

CHANGES_MAX = 100_000
EARLY_S = 0.001  # a timer may fire this much too early


class Deliveries:
    """The watchers of one resource kind, in the order of their registration.

    If more than *changes_max* changes are pending, those of one object are merged.
    """

    def __init__(
        self,
        resource_kind: str,
        policies: Policies,
        *,
        history: SyncHistory,
        pausing: Pausing,
        changes_max: int = CHANGES_MAX,
    ) -> None:
        self.resource_kind = resource_kind
        self.registrations: tuple[Registration, ...] = ()
        self.queue = WorkQueue[str]()
        self.failure: Exception | None = None  # the error that ended the deliveries
        self._history = history
        self._pausing = pausing
        self._changes_max = changes_max
        self._pending: dict[str, Pending] = {}  # in the order of their `since`
        self._retrying: dict[str, Pending] = {}  # those with retries
        self._change_count = 0
        self._loop: SyncLoop[str] | None = None
        self._only: Collection[str] | None = None
        self._calls: Calls
        self._failed_calls = FailedCalls(resource_kind, policies)

    def loop(self, controller: str, *, timeout_s: float) -> SyncLoop[str]:
        """Return the loop that calls the watchers, with a time limit of *timeout_s* for each call.

        The loop ends if a policy returns `Stop` or raises; `failure` is then the error.
        """
        self._calls = Calls(
            controller, "the watcher", limit_s=timeout_s, call_name="the call", setting="timeout_s"
        )
        self._loop = SyncLoop(
            self._sync,
            queue=self.queue,
            retry=lambda _error, _failures: Stop(),
            pausing=self._pausing,
        )
        self._loop.paused.listen(self._resumed)
        if self._only is not None:
            self._loop.own.only(self._only)
        return self._loop

    def observe(self, change: Change[Any]) -> None:
        """Pause or resume the deliveries of the changed object, as its annotation demands."""
        if self._loop is not None and self._loop.paused.concerns(change):
            self._loop.paused.observe(change)

    def _resumed(self, key: str, _pause: Pause, pending: bool) -> None:  # noqa: FBT001 - see `OnResumed`
        """Deliver the changes that waited."""
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
        if self._change_count >= self._changes_max and pending.changes:
            last, last_targets = pending.changes[-1]
            if last_targets == targets and last.kind.name == change.kind.name:
                pending.changes.pop()
                replaced = (last,)
        added = merged(replaced, change)
        pending.changes.extend((following, targets) for following in added)
        self._change_count += len(added) - len(replaced)
        self.queue.offer(change.key, priority=priority)

    def resync(self, key: str, changes: Sequence[ObjectChange], *, priority: Priority) -> None:
        """Retry failed calls for the object at once, and deliver *changes* to other watchers."""
        if self._loop is not None and priority is Priority.USER:
            self._loop.paused.quarantine.release(key)  # a person named the object
        pending = self._pending.get(key)
        retries = [] if pending is None else list(pending.retries.values())
        if pending is not None and retries:
            self._hasten(key, pending, priority, lambda _: True)
        retrying = {retry.registration for retry in retries}
        without_retry = tuple(watcher for watcher in self.registrations if watcher not in retrying)
        for change in changes:
            self.add(change, priority=priority, to=without_retry)

    def hold_only(self, keys: Collection[str]) -> None:
        """Deliver changes of no other objects than these."""
        self._only = keys

    def holds(self, key: str) -> bool:
        """Return whether this process delivers changes of the object."""
        return self._loop is None or self._loop.own.has(key)

    def count(self, keys: Collection[str]) -> int:
        """Return how many of the objects this process delivers the changes of."""
        return len(keys) if self._loop is None else self._loop.own.count(keys)

    async def keep(self, holds: Callable[[str], bool]) -> None:
        """Drop the pending changes and retries of objects that this process does not hold."""

        def drop(key: str) -> None:
            pending = self._pending.pop(key, None)
            self._retrying.pop(key, None)
            self._change_count -= 0 if pending is None else len(pending.changes)

        await retain(self._pending, holds, drop)

    def hasten_retries(self) -> None:
        """Retry at once the calls that failed because of a store, which may be available again."""
        for key, pending in self._retrying.items():
            self._hasten(key, pending, Priority.RETRY, lambda error: isinstance(error, StoreError))

    def _hasten(
        self, key: str, pending: Pending, priority: Priority, selects: Callable[[Exception], bool]
    ) -> None:
        for retry_key, retry in pending.retries.items():
            if selects(retry.error):
                pending.retries[retry_key] = msgspec.structs.replace(retry, failures=0, due=_now())
                self.queue.offer(key, priority=priority)

    def failed(self, key: str) -> int:
        """Return the most failures in a row of a watcher on the object."""
        pending = self._pending.get(key)
        if pending is None:
            return 0
        return max((retry.failures for retry in pending.retries.values()), default=0)

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
        """Return the errors of pending retries, by key."""
        return {
            key: error_text(retry.error)
            for key, pending in self._retrying.items()
            for retry in pending.retries.values()
        }

    async def _sync(self, key: str) -> float | None:
        try:
            await self._deliver_next(key)
        except Exception as error:
            self.failure = error
            raise
        return None

    async def _deliver_next(self, key: str) -> None:
        """Deliver the object's oldest change; if there is none, make the retries that are due."""
        pending = self._pending.get(key)
        if pending is None:
            return
        if pending.changes:
            change, targets = pending.changes.popleft()
            self._change_count -= 1
            for number, registration in enumerate(targets, 1):
                if registration in self.registrations:
                    try:
                        await self._deliver(pending, registration, change)
                    except asyncio.CancelledError:  # the other watchers get the change later
                        if self._pending.get(key) is pending:
                            pending.changes.appendleft((change, targets[number:]))
                            self._change_count += 1
                        raise
        else:
            for retry_key, retry in list(pending.retries.items()):
                if retry.registration not in self.registrations:
                    del pending.retries[retry_key]
                elif retry.due <= _now() + EARLY_S:
                    await self._call(pending, retry.registration, retry.changes, retry.failures)
        self._enqueue_next(key, pending)

    def _enqueue_next(self, key: str, pending: Pending) -> None:
        if self._pending.get(key) is not pending:
            return  # another process holds the object now
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

    async def _deliver(
        self, pending: Pending, registration: Registration, change: ObjectChange
    ) -> None:
        """Deliver the change to one watcher, or merge it into the watcher's pending retry."""
        retry = pending.retries.get((registration, change.kind.name))
        if retry is None:
            await self._call(pending, registration, (change,), 0)
            return
        if self._failed_calls.drops(retry.changes[0], retry.error, change):
            await self._call(pending, registration, merged(retry.changes[1:], change), 0)
            return
        changes = merged(retry.changes, change)
        if changes[0].supersedes(retry.changes[0]):
            await self._call(pending, registration, changes, retry.failures)
        else:
            self._retry_later(pending, msgspec.structs.replace(retry, changes=changes))

    async def _call(
        self,
        pending: Pending,
        registration: Registration,
        changes: tuple[ObjectChange, ...],
        failures: int,
    ) -> None:
        """Call one watcher for each change until a call fails, and keep the rest for a retry."""
        retry_key = registration, changes[0].kind.name
        pending.retries.pop(retry_key, None)
        while changes:
            try:
                failed = await self._call_once(registration, changes[0], failures)
            except asyncio.CancelledError:
                cancelled = StoppedError("the call was cancelled")
                self._retry_later(
                    pending, PendingRetry(registration, changes, failures, cancelled, _now())
                )
                raise
            if failed is not None and failed.delay_s is not None:
                due = _now() + failed.delay_s
                self._retry_later(
                    pending, PendingRetry(registration, changes, failed.failures, failed.error, due)
                )
                return
            changes, failures = changes[1:], 0

    def _retry_later(self, pending: Pending, retry: PendingRetry) -> None:
        """Keep a retry, unless another process holds the object now."""
        change = retry.changes[0]
        pending.retries[retry.registration, change.kind.name] = retry
        if self._pending.get(change.key) is pending:
            self._retrying[change.key] = pending

    async def _call_once(
        self, registration: Registration, change: ObjectChange, failures: int
    ) -> FailedCall | None:
        """Call the watcher with the change; return its failure, None if it succeeds."""
        watcher, run = registration.watcher, self._begin_run(registration, change)
        with sync_span(self.resource_kind, partial(_span_facts, change, watcher)) as span:
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
                    failures = await self._past_failures(registration, change, error)
                self._history.failed(run, error, _now(), failures=failures + 1, log_failure=False)
                delay_s = self._failed_calls.delay(change, registration, error, failures + 1)
                return FailedCall(error, failures + failed, delay_s)
        self._failed_calls.succeeded(change, registration)
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
            delivery=Delivery(self.resource_kind, name, before, after, change.kind),
        )

    async def _past_failures(
        self, registration: Registration, change: ObjectChange, error: Exception
    ) -> int:
        """Return the failures that an earlier process recorded; 0 if it has given up."""
        past = await self._history.past_failures(change.key, error, registration.name)
        return past if past and self._failed_calls.retries(error, past + 1) else 0

    async def deliver(
        self, controller: str, registration: Registration, change: ObjectChange
    ) -> None:
        """Call one watcher with the change now, outside of the loop; raises its failure."""
        with self._begin_run(registration, change):
            calls = Calls(controller, "the watcher")
            await calls.call(change.key, lambda _: notify(registration.watcher, change))


def _span_facts(change: ObjectChange, watcher: ResourceWatcher) -> Mapping[str, object]:
    """Return the attributes of a call's span."""
    return {
        **log_context(),
        "operation": change.action.value.lower(),
        "watcher": type(watcher).__name__,
    }


def _now() -> float:
    return asyncio.get_running_loop().time()
