"""Runs one sync of a primary: the wait for its own writes, the handler, and the record."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NoReturn

from natsctl.controller.garbage.evidence import Evidence
from natsctl.controller.slots.reads import Reads
from natsctl.controller.slots.secondaries import Secondaries
from natsctl.core.objects.primary import Primary
from natsctl.core.objects.read_your_writes import Barrier
from natsctl.core.pausing.paused_keys import PausedKeys
from natsctl.core.planning.record import because
from natsctl.core.sync.calls import Calls, Unfinished, delay_of
from natsctl.core.sync.history import SyncHistory, SyncRun
from natsctl.core.sync.keys import skips_invalid
from natsctl.core.sync.loop import SyncHandler
from natsctl.core.sync.steps import Ended
from natsctl.core.workqueue import Operation, WorkQueue
from natsctl.errors import NotFoundError
from natsctl.model.garbage import orphan_reason
from natsctl.model.pause import pause_in
from natsctl.model.store import Stored
from natsctl.slices import retain
from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.logger import bind_operation, log_context
from natsctl.telemetry.tracing import records_spans, sync_span

_NOTHING = Ended[float | None](None)
_MANUAL = Operation.MANUAL  # Python looks up the member of an enum slowly

DeletionPolicy = Literal["delete", "orphan"]


class SyncRuns:
    """Syncs the keys of a controller, and removes the secondaries of deleted primaries.

    Args:
        handler: the user's sync handler.
        primary: the primaries.
        secondaries: the secondary slots.
        barrier: remembers the writes that the caches do not show yet.
        history: keeps the history of the syncs.
        reads: the dependencies of the keys.
        evidence: decides whether the bucket proves that a primary was deleted.
        policy: `delete` removes the secondaries of a deleted primary, `orphan` keeps them.
        paused: the paused keys.
        queue: the work queue, which counts failures.
        timeout_s: how long the handler may take; then it fails with `SyncTimeoutError`.
    """

    def __init__(
        self,
        handler: SyncHandler,
        primary: Primary[Any],
        secondaries: Secondaries,
        barrier: Barrier,
        history: SyncHistory,
        *,
        reads: Reads,
        evidence: Evidence,
        policy: DeletionPolicy,
        paused: PausedKeys,
        queue: WorkQueue[str],
        timeout_s: float,
    ) -> None:
        self._history = history
        self._tape = None if history.recorder is None else history.recorder.tape
        self._reads = reads.batches
        self._handler = handler
        self._primary = primary
        self._cache = primary.informer.cache
        self._secondaries = secondaries
        self._barrier = barrier
        self.evidence = evidence
        self._name = history.controller
        self._policy = policy
        self._paused = paused
        self._queue = queue
        self._calls = Calls(self._name, "sync_handler", limit_s=timeout_s, setting="sync_timeout_s")
        self._clock = asyncio.get_running_loop().time
        self._failed: dict[str, Stored] = {}  # the states for which a key failed permanently
        self._confirmed: dict[str, str] = {}  # incarnations of the bucket

    def confirm_missing(self, key: str) -> None:
        """Let the next sync of *key* remove the secondaries of this missing owner.

        A GC cycle has found that the owner is missing without a delete marker, in this incarnation
        of its bucket.
        """
        self._confirmed[key] = self._cache.incarnation

    async def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget the keys that are not *wanted*, in slices."""
        await retain(self._failed, wanted, lambda key: self._failed.pop(key, None))
        await self._history.keep_only(wanted)
        await retain(self._confirmed, wanted, lambda key: self._confirmed.pop(key, None))

    def sync(self, key: str, operation: Operation) -> Awaitable[float | None]:
        """Sync the key; return the seconds until its next sync, or None. Raises its failure.

        A key is skipped if its newest state is invalid, or if it failed permanently and has the
        same state, unless a person requests the sync.
        """
        bind_operation(operation)
        may_skip = self._failed or self._primary.skipped or self._cache.invalid
        if may_skip and self._skips(key, operation):
            return _NOTHING
        run = _SyncRun(
            key,
            operation is _MANUAL,
            operation=operation,
            started_s=time.time(),
            begun=self._clock(),
        )
        return self._traced(run) if records_spans() else self._sync(run)

    async def _traced(self, run: "_SyncRun") -> float | None:
        with sync_span(self._name, log_context):
            return await self._sync(run)

    def _sync(self, run: "_SyncRun") -> Awaitable[float | None]:
        """Call the handler at once, unless the sync waits for something first."""
        if self._confirmed:
            run.confirmed = self._confirmed.pop(run.key, None)
        if run.key in self._barrier.unseen:
            return self._record_failure_of(run, self._wait_and_call(run))
        run.begin()  # a `with` takes longer, and most syncs are short
        try:
            self._read(run, self._cache.get(run.key))
            if run.stored is None:
                return self._record_failure_of(run, self._call_for_deleted(run))
            value = self._call(run)
            if not isinstance(value, Unfinished):
                after_s = self._delay(run, value)
                self._record_success(run, after_s)
                return _NOTHING if after_s is None else Ended(after_s)
        except BaseException as error:  # noqa: BLE001 - raised again
            return self._record_failure_of(run, _raised(error))
        finally:
            run.end()
        return self._record_failure_of(run, self._finish(run, value))

    async def _record_failure_of(
        self, run: "_SyncRun", work: Awaitable[float | None]
    ) -> float | None:
        """Do the work as part of the sync, and record its failure."""
        with run:
            try:
                return await work
            except BaseException as error:
                await self._history.recall(run.key, error, self._queue, run.key)
                self._record_failure(run, error)
                raise

    async def _wait_and_call(self, run: "_SyncRun") -> float | None:
        """Sync a key whose writes the caches may lack, unless it is paused by then."""
        await self._barrier.wait(run.key)
        if self._paused.holds_back(run.key):
            return None
        self._read(run, self._barrier.read(self._primary.informer, run.key))
        return await self._call_for_deleted(run)

    async def _call_for_deleted(self, run: "_SyncRun") -> float | None:
        """Sync a key whose primary may not exist."""
        if run.stored is None and await self._was_paused(run):
            return None
        return await self._finish(run, self._call(run))

    def _read(self, run: "_SyncRun", stored: Stored | None) -> None:
        """Note the state of the primary, with which the sync begins."""
        run.stored = stored
        run.last = self._primary.deleted_states.get(run.key)

    def _call(self, run: "_SyncRun") -> "float | Unfinished[float | None] | None":
        """Call the handler; return its result, or the rest of a call that waits."""
        if self._tape is not None:
            run.tape = self._tape()
        self._reads.start(run.key)
        return self._calls.start(run.key, self._handler)

    async def _finish(
        self, run: "_SyncRun", value: "float | Unfinished[float | None] | None"
    ) -> float | None:
        """Wait for the handler, and write what follows from its success."""
        if isinstance(value, Unfinished):
            value = await value
        after_s = self._delay(run, value)
        if run.stored is None:
            await self._remove_secondaries(run)
        self._record_success(run, after_s)
        return after_s

    def _delay(self, run: "_SyncRun", value: float | None) -> float | None:
        """Return the seconds until the next sync, and end the reads of the handler."""
        after_s = None if value is None else delay_of(value, "sync_handler")
        self._reads.end(run.key)
        return after_s

    def _skips(self, key: str, operation: Operation) -> bool:
        if skips_invalid(self._primary, key):
            return True
        if not self._failed:
            return False
        failed = self._failed.get(key)
        if failed is None or operation is Operation.MANUAL:
            return False
        stored = self._cache.get(key)
        return stored is not None and not self._cache.kind.differs(failed.value, stored.value)

    async def _was_paused(self, run: "_SyncRun") -> bool:
        """Return whether a primary was deleted while it was paused and no process ran.

        The bucket's history shows that. A primary without secondaries needs no such check.
        """
        key, store = run.key, self._primary.informer.store
        if run.last is not None or self._cache.kind.plain or key in self._cache:
            return False
        if not list(self._secondaries.owned(key)):
            return False
        states = [state for state in await store.history(key) if isinstance(state, Stored)]
        pause = pause_in(states[-1].value) if states else None
        if pause is None or not self._paused.recover(key, pause):
            return False
        return self._paused.holds_back(key)

    async def _remove_secondaries(self, run: "_SyncRun") -> None:
        """Remove the secondaries of a primary that was deleted or confirmed as missing."""
        key = run.key
        if key in self._cache or self._policy != "delete":
            return
        owned = list(self._secondaries.owned(key))
        reason = await self._deletion(run) if owned else ""
        if reason:
            with because(reason):
                for secondary, stored in owned:
                    await secondary.delete_owned(key, stored)

    async def _deletion(self, run: "_SyncRun") -> str:
        """Return why the primary counts as deleted; empty if it does not."""
        try:
            await self._primary.informer.store.get(run.key)
        except NotFoundError as error:
            proven = error.deleted_at is not None and await self.evidence.proves(error.deleted_at)
            confirmed = run.confirmed == self._cache.incarnation and not self.evidence.held
            return orphan_reason(run.key, error.deleted_at) if proven or confirmed else ""
        return ""

    def _record_success(self, run: "_SyncRun", after_s: float | None) -> None:
        key = run.key
        if self._failed:
            self._failed.pop(key, None)
        if run.stored is None:
            self._paused.synced_deleted(key)
        if run.last is not None and self._primary.deleted_states.get(key) is run.last:
            del self._primary.deleted_states[key]
        failed = self._queue.failures(key) > 0
        self._history.succeeded(run, self._clock(), failed=failed, after_s=after_s)

    def _record_failure(self, run: "_SyncRun", error: BaseException) -> None:
        if run.key in self._reads:
            self._reads.abandon(run.key)  # the handler may not have done all its reads
        failures = self._queue.failures(run.key) + 1
        self._history.failed(run, error, self._clock(), failures=failures)
        if classify(error) is ErrorClass.PERMANENT and run.stored is not None:
            self._failed[run.key] = run.stored


class _SyncRun(SyncRun, kw_only=True):
    """A sync of a primary, which a GC cycle may have confirmed as missing."""

    confirmed: str | None = None  # the incarnation of the bucket that lacks the primary


async def _raised(error: BaseException) -> NoReturn:
    """Raise the error."""
    raise error
