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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from natsctl.core.coordination.term import KeyFilter
from natsctl.core.dependencies import Dependency, those
from natsctl.core.history import HandlerFailures
from natsctl.core.host import Host
from natsctl.core.informer import Informer, deleted_keys
from natsctl.core.loop import SyncLoop
from natsctl.core.record.document import Delivery
from natsctl.core.retry import Drop, Retry, RetryPolicy, Stop, backoff, decide_retry
from natsctl.core.sync import Calls, Sync, awaitable
from natsctl.core.workqueue import Priority, WorkQueue
from natsctl.errors import RetryAfter, StoreError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, Store, Stored
from natsctl.slices import in_slices, retain
from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import get_logger, log_context
from natsctl.telemetry.tracing import sync_span
from natsctl.watchers.watcher import (
    OpinionatedWatcher,
    RecallingWatcher,
    ResourceAction,
    ResourceWatcher,
    RetryDequeuePolicy,
    Snapshot,
)

log = get_logger(__name__)

CHANGES_MAX = 100_000  # waiting one by one; above that, changes of one object are merged
EARLY_S = 0.001  # a timer may fire this much too early
BACKOFF_S, BACKOFF_MAX_S = 0.005, 1000.0  # for policies that set no delay

Labels = str | Mapping[str, str]


class ObjectChange(msgspec.Struct, frozen=True):
    """A change of an object, with its state before and after.

    Both states are None for an object that was deleted before this process saw it.
    """

    key: str
    kind: Kind[Any]
    store: Store
    before: Stored | None
    after: Stored | None

    @property
    def action(self) -> ResourceAction:
        if self.after is None:
            return ResourceAction.DELETE
        return ResourceAction.CREATE if self.before is None else ResourceAction.UPDATE

    def snapshot(self, stored: Stored | None) -> Snapshot[Any] | None:
        return None if stored is None else Snapshot(self.kind, stored, self.store)

    @property
    def newest(self) -> Snapshot[Any] | None:
        return self.snapshot(self.after or self.before)

    def supersedes(self, other: "ObjectChange") -> bool:
        """Return whether this change has another action or desired state than *other*."""
        this, that = self.after or self.before, other.after or other.before
        if self.action is not other.action or this is None or that is None:
            return self.action is not other.action or this is not that
        return self.kind.differs(that.value, this.value)

    def since(self, last: "ObjectChange") -> "ObjectChange":
        """Return one update for two, from the older state unless both ends are then equal."""
        old, failed, new, differs = last.before, last.after, self.after, self.kind.differs
        if old is None or failed is None or new is None:
            return self
        reverted = differs(old.value, failed.value) and not differs(old.value, new.value)
        return msgspec.structs.replace(self, before=failed if reverted else old)

    async def notify(self, watcher: ResourceWatcher) -> None:
        old, new = self.snapshot(self.before), self.snapshot(self.after)
        if old is not None and new is not None:
            await awaitable(watcher.update, old, new)
        elif new is not None:
            await awaitable(watcher.add, new)
        elif old is not None:
            await awaitable(watcher.delete, old)
        elif isinstance(watcher, RecallingWatcher):
            await awaitable(watcher.missed, self.key, self.store)


Changes = tuple[ObjectChange, ...]


def merged(pending: Changes, change: ObjectChange) -> Changes:
    """Return the changes to deliver to a watcher that has processed none of *pending*.

    The result has at most two changes: a delete and the create of a new object. An update starts at
    a state with another desired state, if there is one. So a watcher that failed halfway also gets
    an update that reverts the object to its earlier state.
    """
    if not pending:
        return (change,)
    *earlier, last = pending
    match last.action, change.action:
        case ResourceAction.DELETE, ResourceAction.DELETE:
            return pending
        case ResourceAction.DELETE, _:
            return (last, msgspec.structs.replace(change, before=None))
        case _, ResourceAction.DELETE:
            deleted = msgspec.structs.replace(change, before=change.before or last.after)
            return tuple(earlier) or (deleted,)
        case ResourceAction.CREATE, _:
            return (*earlier, msgspec.structs.replace(change, before=None))
        case _:
            return (change.since(last),)


class Source:
    """The objects of one kind, or those that a label selector matches.

    A cluster applies the selector on the server; for a bucket, the source applies it. If an
    object's labels no longer match, the source reports a delete.
    """

    informer: Informer[Any]  # set when the controller opens its stores

    def __init__(self, kind: Kind[Any], labels: Labels | None) -> None:
        selector = Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
        if selector.requirements:
            kind.require_metadata()
        self.part: Dependency[Any] = those(kind, selector)
        self.kind = self.part.kind

    def has(self, key: str) -> bool:
        return self.part.selects(self.informer.table.get(key))

    def change(self, change: Change[Any]) -> ObjectChange | None:
        """Return the change of a selected object, or None if the change is of another object."""
        before = change.before if self.part.selects(change.before) else None
        after = change.after if self.part.selects(change.after) else None
        if before is None and after is None and (change.before or change.after):
            return None
        return self._change(change.key, before, after)

    def creates(self, *keys: str) -> Iterator[ObjectChange]:
        """Yield a create for each selected object with these keys, or for all.

        Other tasks may run in between.
        """
        for key in keys or self.informer.table.keys():
            stored = self.informer.table.get(key)
            if self.part.selects(stored):
                yield self._change(key, None, stored)

    async def deletes(self, gained: Callable[[str], bool]) -> list[ObjectChange]:
        """Return a delete for each *gained* key with a delete marker, which a cluster hasn't."""
        if isinstance(self.kind, KubeKind):
            return []
        keys = await deleted_keys(self.informer.store, gained)
        return [self._change(key, None, None) for key in keys if key not in self.informer.table]

    def _change(self, key: str, before: Stored | None, after: Stored | None) -> ObjectChange:
        return ObjectChange(key, self.kind, self.informer.store, before, after)


class Policies(msgspec.Struct):
    """The decisions after a failure, and the time limit of calls."""

    error_handler: Callable[[Exception], None] | None
    retry: RetryPolicy
    dequeue: RetryDequeuePolicy | None
    calls: Calls


class Registration(msgspec.Struct, frozen=True, eq=False):
    """A watcher that was added; a watcher that was added twice has two registrations.

    `number` counts the watchers of the same class in the controller. So the name is the same in
    every process.
    """

    watcher: ResourceWatcher
    number: int = 1

    @property
    def name(self) -> str:
        return self.cls if self.number == 1 else f"{self.cls} {self.number}"

    @property
    def cls(self) -> str:
        return type(self.watcher).__name__

    @property
    def finalizer(self) -> str | None:
        return self.watcher.finalizer if isinstance(self.watcher, OpinionatedWatcher) else None


class WatcherRetry(msgspec.Struct):
    """The changes of an object that one watcher has not processed, because the first one failed.

    `due` is the loop time of the next call.
    """

    registration: Registration
    changes: Changes
    failures: int
    error: Exception
    due: float


class Pending(msgspec.Struct, eq=False):
    """The pending changes and retries of one object, which has had some since a loop time.

    A delivery without a failure sets the time again. A retry is of one watcher and one kind, whose
    parts share it.
    """

    since: float
    changes: deque[tuple[ObjectChange, tuple[Registration, ...]]] = msgspec.field(
        default_factory=deque
    )
    retries: dict[tuple[Registration, str], WatcherRetry] = {}


class ResourceKind:
    """The sources of one resource kind and its watchers, in the order of their registration.

    The *loop* calls the watchers. It ends if a policy returns `Stop` or raises; `failure` is then
    the error.
    """

    def __init__(self, name: str, host: Host, policies: Policies) -> None:
        self.name, self._host, self._policies = name, host, policies
        self.sources: list[Source] = []
        self.registrations: tuple[Registration, ...] = ()
        self.queue = WorkQueue[str]()
        self.loop = SyncLoop(self._sync, host, self.queue, retry=lambda *_: Stop())
        self.failure: Exception | None = None
        self.pending: dict[str, Pending] = {}  # the objects with any, in the order of their `since`
        self._retrying: dict[str, Pending] = {}  # those with retries
        self._change_count = 0
        self._logged = HandlerFailures(log, logging.WARNING)

    @property
    def finalizers(self) -> set[str]:
        return {added.finalizer for added in self.registrations if added.finalizer is not None}

    async def run(self, workers: int) -> None:
        self.loop.paused.follow([source.informer for source in self.sources])
        for source in self.sources:
            self.loop.watch(source.informer, partial(self._changed, source))
        await self.loop.run(self, workers=workers)

    # ---- what changes

    def _changed(self, source: Source, change: Change[Any]) -> None:
        """Deliver the change, unless the object only moved to another source of its kind."""
        self.loop.paused.observe(change)
        selected, name = source.change(change), source.kind.name
        if selected is None:
            return
        others = (it for it in self.sources if it is not source and it.kind.name == name)
        if selected.after is not None or not any(other.has(change.key) for other in others):
            self.add(selected, Priority.RESYNC if change.initial else Priority.USER)

    def add(
        self, change: ObjectChange, priority: Priority, to: tuple[Registration, ...] | None = None
    ) -> None:
        """Deliver *change* to all watchers, or only to these, if this process holds the object."""
        targets = self.registrations if to is None else to
        if not targets or not self.holds(change.key):
            return
        pending = self.pending.get(change.key)
        if pending is None:
            pending = self.pending[change.key] = Pending(self.queue.now())
        replaced: Changes = ()
        if self._change_count >= CHANGES_MAX and pending.changes:
            last, last_targets = pending.changes[-1]
            if last_targets == targets and last.kind.name == change.kind.name:
                pending.changes.pop()
                replaced = (last,)
        added = merged(replaced, change)
        pending.changes.extend((following, targets) for following in added)
        self._change_count += len(added) - len(replaced)
        self.queue.offer(change.key, priority=priority)

    def add_existing(
        self, to: tuple[Registration, ...], *keys: str, priority: Priority = Priority.RESYNC
    ) -> None:
        """Deliver objects with these keys, or all, as created."""
        for source in self.sources:
            for change in source.creates(*keys):
                self.add(change, priority, to=to)

    def resync(self, key: str, priority: Priority) -> None:
        """Call the watchers with the object as at a start; make retries of failed calls instead."""
        if priority is Priority.USER:
            self.loop.paused.quarantine.release(key)  # a person named the object
        retries = self._retries(key)
        self._hasten(key, retries, priority)
        retrying = {retry.registration for retry in retries}
        others = tuple(watcher for watcher in self.registrations if watcher not in retrying)
        self.add_existing(others, key, priority=priority)

    def resync_all(self) -> int:
        """Resync every object, a few at a time; return how many there are."""
        for source in self.sources:
            self.queue.feed(
                source.informer.table.keys(),
                lambda key: self.resync(key, Priority.RESYNC) if self.holds(key) else None,
            )
        return self.count()

    def hasten_retries(self) -> None:
        """Retry at once the calls that failed because of a store, which may be available again."""
        for key in self._retrying:
            failed = [retry for retry in self._retries(key) if isinstance(retry.error, StoreError)]
            self._hasten(key, failed, Priority.RETRY)

    def _hasten(self, key: str, retries: Iterable[WatcherRetry], priority: Priority) -> None:
        for retry in retries:
            retry.failures, retry.due = 0, _now()
            self.queue.offer(key, priority=priority)

    # ---- the objects of this process

    def holds(self, key: str) -> bool:
        return self.loop.has(key)

    def count(self) -> int:
        return sum(self.loop.count(source.informer.table) for source in self.sources)

    async def lost(self, holds: KeyFilter) -> None:
        def drop(key: str) -> None:
            pending = self.pending.pop(key, None)
            self._retrying.pop(key, None)
            self._change_count -= 0 if pending is None else len(pending.changes)

        await retain(self.pending, holds, drop)

    async def gained(self, gained: KeyFilter) -> None:
        """See `ShareListener.gained`; each object is delivered in its newest state."""

        def add(change: ObjectChange) -> None:
            if gained(change.key):
                self.add(change, Priority.RESYNC)

        for source in self.sources:
            await in_slices(source.creates(), add)
        for source in self.sources:
            await in_slices(await source.deletes(gained), add)

    # ---- what waits

    def failed(self, key: str) -> int:
        return max((retry.failures for retry in self._retries(key)), default=0)

    @property
    def oldest_unanswered_s(self) -> float | None:
        """For how many seconds an object has had pending changes; None without objects."""
        oldest = next(iter(self.pending.values()), None)
        return None if oldest is None else _now() - oldest.since

    def failures(self) -> dict[str, str]:
        retries = ((key, retry) for key in self._retrying for retry in self._retries(key))
        return {key: error_text(retry.error) for key, retry in retries}

    def _retries(self, key: str) -> Collection[WatcherRetry]:
        pending = self._retrying.get(key)
        return () if pending is None else [*pending.retries.values()]

    # ---- deliveries

    async def _sync(self, key: str) -> None:
        pending = self.pending.get(key)
        if pending is None:
            return
        try:
            if pending.changes:
                change, targets = pending.changes.popleft()
                self._change_count -= 1
                for registration in targets:
                    if registration in self.registrations:
                        await self._deliver(pending, registration, change)
            else:
                for place, retry in list(pending.retries.items()):
                    if retry.registration not in self.registrations:
                        del pending.retries[place]
                    elif retry.due <= _now() + EARLY_S:
                        await self._call(pending, retry.registration, retry.changes, retry.failures)
        except Exception as error:
            self.failure = error
            raise
        if self.pending.get(key) is pending:  # and no other process holds the object now
            self._enqueue_next(key, pending)

    def _enqueue_next(self, key: str, pending: Pending) -> None:
        if not pending.retries:
            self._retrying.pop(key, None)
        if pending.changes:
            if not pending.retries:
                pending.since = _now()
                self.pending[key] = self.pending.pop(key)
            self.queue.offer(key)
        elif not pending.retries:
            del self.pending[key]
        elif (due := min(retry.due for retry in pending.retries.values())) < math.inf:
            self.queue.offer(key, after=max(due - _now(), EARLY_S), priority=Priority.RETRY)

    async def _deliver(
        self, pending: Pending, registration: Registration, change: ObjectChange
    ) -> None:
        retry = pending.retries.get((registration, change.kind.name))
        if retry is None:
            await self._call(pending, registration, (change,), 0)
        elif self._drops(retry, change):
            await self._call(pending, registration, merged(retry.changes[1:], change), 0)
        else:
            changes = merged(retry.changes, change)
            if changes[0].supersedes(retry.changes[0]):
                await self._call(pending, registration, changes, retry.failures)
            else:
                retry.changes = changes

    def _drops(self, retry: WatcherRetry, change: ObjectChange) -> bool:
        """Return whether the change takes the place of the one that failed."""
        dequeue, failed = self._policies.dequeue, retry.changes[0]
        if dequeue is None:
            return True
        new, old = change.newest, failed.newest
        if new is None or old is None:
            return False
        return dequeue(change.action, new, failed.action, old, retry.error)

    async def _call(
        self, pending: Pending, registration: Registration, changes: Changes, failures: int
    ) -> None:
        """Call one watcher for each change until a call fails, and keep the rest for a retry."""
        key, place = changes[0].key, (registration, changes[0].kind.name)
        pending.retries.pop(place, None)
        while changes:
            retry = await self._call_once(registration, changes, failures)
            if retry is not None:
                pending.retries[place] = retry
                if self.pending.get(key) is pending:  # and no other process holds the object now
                    self._retrying[key] = pending
                return
            changes, failures = changes[1:], 0

    async def _call_once(
        self, registration: Registration, changes: Changes, failures: int
    ) -> WatcherRetry | None:
        """Call the watcher with the first change; return the retry of a call that fails."""
        change, history = changes[0], self._host.history
        run = self._begin_run(registration, change)

        def facts() -> Mapping[str, object]:
            return {**log_context(), "operation": run.operation, "watcher": registration.cls}

        with sync_span(self.name, facts) as span:
            try:
                with run:
                    await self._notify(registration, change)
            except asyncio.CancelledError as error:
                history.failed(run, error, _now(), failures=failures)
                raise
            except Exception as error:  # noqa: BLE001 - every exception is the watcher's failure
                failed = classify(error).failed
                if failed:
                    span.fail(error)
                if not failures:
                    # an earlier process may have recorded failures, and may have given up
                    past = await history.past_failures(change.key, error, registration.name)
                    decided = decide_retry(self._policies.retry, error, past + 1) if past else None
                    if isinstance(decided, Retry):
                        failures = past
                history.failed(run, error, _now(), failures=failures + 1, log_failure=False)
                delay_s = self._delay_s(change, registration, error, failures + 1)
                if delay_s is None:
                    return None
                due = _now() + delay_s
                return WatcherRetry(registration, changes, failures + failed, error, due)
        run.count_writes()
        history.succeeded(run, _now(), failed=failures > 0)
        return None

    def _begin_run(self, registration: Registration, change: ObjectChange) -> Sync:
        before, after, name = change.before, change.after, registration.name
        delivery = Delivery(self.name, name, before, after, change.kind)
        operation, begin = change.action.value.lower(), self._host.history.begin
        return begin(change.key, operation, after or before, handler=name, delivery=delivery)

    def _delay_s(
        self, change: ObjectChange, registration: Registration, error: Exception, failures: int
    ) -> float | None:
        """Report a failed call; return the seconds until its retry, None if it's dropped.

        A call that failed because of a store is never dropped; it waits until the store is back.
        Raises *error* if the retry policy stops the controller.
        """
        if isinstance(error, RetryAfter):
            return error.delay_s
        plan = self._host.environment.plan
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
        match decide_retry(self._policies.retry, error, failures):
            case Retry(None):
                return backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
            case Retry(after):
                return after
            case Drop():
                return math.inf if isinstance(error, StoreError) else None
            case Stop():
                raise error

    async def deliver(self, registration: Registration, change: ObjectChange) -> None:
        """Call one watcher with the change now, outside of the loop; raises its failure."""
        with self._begin_run(registration, change):
            await self._notify(registration, change)

    async def _notify(self, registration: Registration, change: ObjectChange) -> None:
        await self._policies.calls.call(change.key, lambda _: change.notify(registration.watcher))


def _now() -> float:
    return asyncio.get_running_loop().time()
