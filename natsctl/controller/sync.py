"""Runs one sync of a primary: the wait for its own writes, the handler, and what follows."""

import asyncio
import threading
from asyncio import current_task
from collections.abc import Awaitable, Mapping
from sys import modules
from time import time
from types import CoroutineType
from typing import NoReturn

from natsctl.controller.controller import Controller
from natsctl.controller.evidence import Evidence
from natsctl.controller.reads import Reads
from natsctl.controller.secondaries import Secondaries
from natsctl.core.history import SyncHistory
from natsctl.core.loop import KeyQueue, skips_invalid
from natsctl.core.plan.record import because
from natsctl.core.sync import (
    Calls,
    Rest,
    Sync,
    awaited,
    current_sync,
    delay_of,
    failed_by,
    first_step,
    running,
)
from natsctl.core.workqueue import Operation, Place, Priority, Work
from natsctl.core.writes import Writes
from natsctl.errors import NotFoundError
from natsctl.model.plans import orphan_reason
from natsctl.telemetry.exceptions import ErrorClass, classify
from natsctl.telemetry.logger import log_context, set_log_context
from natsctl.telemetry.tracing import SDK, records_spans, sync_span

_MANUAL, _RETRY = Operation.MANUAL, Operation.RETRY  # Python looks up enum members slowly


class SyncRuns:
    """Syncs the keys of a controller, and removes the secondaries of deleted primaries."""

    def __init__(
        self,
        controller: Controller,
        keys: KeyQueue,
        secondaries: Secondaries,
        writes: Writes,
        history: SyncHistory,
        *,
        reads: Reads,
        evidence: Evidence,
    ) -> None:
        self._tape = None if history.recorder is None else history.recorder.tape
        self.history, self._reads, self._writes = history, reads, writes
        self._handler, self._policy = controller.sync_handler, controller.deletion_policy
        self._primary, self._table = keys.primary, keys.primary.informer.table
        self._secondaries, self._evidence = secondaries, evidence
        self._name = controller.name
        self._paused, self._queue, self._failures = (
            keys.paused_keys,
            keys.queue,
            keys.queue.failures,
        )
        limit_s, setting = controller.sync_timeout_s, "sync_timeout_s"
        self._calls = Calls(self._name, "sync_handler", limit_s=limit_s, setting=setting)
        self._clock = asyncio.get_running_loop().time
        self._thread = threading.get_ident()
        self._outer: Mapping[str, object] | None = None  # the log context of the workers

    async def sync(self, key: str) -> float | None:
        """Sync the key now, outside the loop, because a person requests it; raises its failure."""
        step = self.start(
            Work(
                *(key, Place.CLAIMED, self._clock(), Priority.USER, _MANUAL),
                trouble=self._queue.noted(key),
            )
        )
        return await step if isinstance(step, Rest) else step

    def start(  # noqa: C901 - one straight line: a call per step takes longer than most syncs
        self, work: Work[str]
    ) -> float | Rest[float | None] | None:
        """Sync a claimed key; return the seconds until its next sync, or the rest of a sync.

        A key is skipped if its newest state is invalid, or if it failed permanently and has the
        same state, unless a person requests the sync. Raises the failure of the sync.
        """
        key, operation, notes = work.key, work.reason or _RETRY, work.trouble
        if (notes is not None or self._table.invalid) and self._skips(key, operation):
            return None
        outer, table = self._outer, self._table
        if outer is None:
            outer = self._outer = log_context()
        stored = table.get(key)
        last = None if notes is None else notes.last
        sync = Sync(
            key, self._name, operation, time(), work.at, stored, last, table, outer, self._failures
        )
        set_log_context(sync)
        if SDK in modules and records_spans():
            return first_step(self._traced(sync))
        if stored is None or key in self._writes.unseen:
            return first_step(self._recorded(sync, self._wait_and_call(sync)))
        if self._tape is not None:
            sync.tape = self._tape()
        token, rest, after_s = current_sync.set(sync), None, None
        sync.thread = self._thread
        running[sync] = None
        try:
            handled = self._handler(key)
            if type(handled) is not CoroutineType:
                handled = awaited(handled, self._handler)
            sync.work = handled
            future = handled.send(None)
            rest = self._finish(sync, self._calls.finish(sync, Rest(handled, future)))
        except StopIteration as end:
            after_s = end.value
        except BaseException as error:  # noqa: BLE001 - recorded, and raised again
            sync.end_call()
            rest = _raised(failed_by(error, current_task()))
        current_sync.reset(token)
        if rest is not None:
            return first_step(self._recorded(sync, rest))
        sync.over = True
        del running[sync]
        if after_s is not None:
            return first_step(self._recorded(sync, self._end(sync, after_s)))
        if sync.read is not None or key in self._reads.dependents:
            self._reads.end(sync)
        failed = notes is not None and notes.failures > 0
        if notes is not None:
            self._note_success(sync)
        self.history.succeeded(sync, self._clock(), failed=failed)
        return None

    async def _traced(self, sync: Sync) -> float | None:
        with sync_span(self._name, log_context):
            return await self._recorded(sync, self._wait_and_call(sync))

    async def _recorded(self, sync: Sync, work: Awaitable[float | None]) -> float | None:
        """Do the work as part of the sync, and record its failure."""
        with sync:
            try:
                return await work
            except BaseException as error:
                await self.history.recall(sync.key, error, self._queue, sync.key)
                failures = self._failures(sync.key) + 1
                self.history.failed(sync, error, self._clock(), failures=failures)
                if classify(error) is ErrorClass.PERMANENT and sync.stored is not None:
                    self._queue.note(sync.key).failed = sync.stored
                raise

    async def _wait_and_call(self, sync: Sync) -> float | None:
        """Sync a key whose writes the tables may lack, or that may not exist.

        The key may be paused by the end of the wait.
        """
        key = sync.key
        if key in self._writes.unseen:
            await self._writes.wait(key)
            if self._paused.holds_back(key):
                return None
            sync.stored = self._writes.read(self._primary.informer, key)
            noted = self._queue.noted(key)
            sync.last = None if noted is None else noted.last
        if (noted := self._queue.noted(key)) is not None:
            sync.missing, noted.missing = noted.missing or None, ""
        if sync.stored is None and await self._was_paused(sync):
            return None
        if self._tape is not None:
            sync.tape = self._tape()
        return await self._end(sync, await self._calls.call(key, self._handler))

    async def _finish(self, sync: Sync, work: Awaitable[float | None]) -> float | None:
        """Wait for the handler, and write what follows from its success."""
        return await self._end(sync, await work)

    async def _end(self, sync: Sync, value: float | None) -> float | None:
        after_s = None if value is None else delay_of(value, "sync_handler")
        self._reads.end(sync)
        if sync.stored is None:
            await self._remove_secondaries(sync)
        self._note_success(sync)
        failed = self._failures(sync.key) > 0
        self.history.succeeded(sync, self._clock(), failed=failed, after_s=after_s)
        return after_s

    def _skips(self, key: str, operation: Operation) -> bool:
        if skips_invalid(self._primary, key):
            return True
        noted = self._queue.noted(key)
        failed = None if noted is None else noted.failed
        if failed is None or operation is Operation.MANUAL:
            return False
        stored = self._table.get(key)
        return stored is not None and not self._table.kind.differs(failed.value, stored.value)

    async def _was_paused(self, sync: Sync) -> bool:
        """Return whether a primary was deleted while it was paused and no process ran.

        The bucket's history shows that. A primary without secondaries needs no such check.
        """
        key, table = sync.key, self._table
        if sync.last is not None or table.kind.plain or key in table:
            return False
        if not list(self._secondaries.owned(key)):
            return False
        await self._paused.recall(key, self._primary.informer.store)
        return self._paused.holds_back(key)

    async def _remove_secondaries(self, sync: Sync) -> None:
        """Remove the secondaries of a primary that was deleted or confirmed as missing."""
        key, reason = sync.key, ""
        if key in self._table or self._policy != "delete":
            return
        owned = list(self._secondaries.owned(key))
        if not owned:
            return
        try:
            await self._primary.informer.store.get(key)
        except NotFoundError as error:
            at, evidence = error.deleted_at, self._evidence
            proven = at is not None and await evidence.proves(at)
            if proven or (sync.missing == self._table.incarnation and not evidence.held):
                reason = orphan_reason(key, at)
        if reason:
            with because(reason):
                for secondary, stored in owned:
                    await secondary.delete_owned(key, stored)

    def _note_success(self, sync: Sync) -> None:
        noted = self._queue.noted(sync.key)
        if noted is not None:
            noted.failed = None
            if noted.last is sync.last:
                noted.last = None
            self._queue.tidy(sync.key)


async def _raised(error: BaseException) -> NoReturn:
    """Raise the error."""
    raise error
