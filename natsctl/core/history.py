"""What is kept of a controller's syncs: the last ones, which keys fail, events and recordings.

A failure that lasts has the record `controllers.NAME.failing.KEY` in NATS. It outlives the process:
the next one knows at once which keys fail and since when, and you see them while no process runs.
Later processes read the events, to continue the count of a key's failures. A recording has all that
a sync has read and written.
"""

import asyncio
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from natsctl.core.compare_and_set import rewrite
from natsctl.core.environment import planning
from natsctl.core.record.document import Delivery
from natsctl.core.record.recordings import KeptSync, Recordings, frames_of
from natsctl.core.sync import Sync
from natsctl.core.tape import ReadStep, RecordedError, Step
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import (
    ConflictError,
    ExistsError,
    InvalidKeyError,
    NatsctlError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreTimeoutError,
)
from natsctl.model.bookkeeping import LastingFailure, failing_prefix, failure_in
from natsctl.model.manifests import Reference
from natsctl.model.reports import RECORDS_MAX, SyncRecord
from natsctl.model.store import EventType, Recorder, RemembersSyncs, Store, Stored, SyncNote
from natsctl.slices import retain
from natsctl.telemetry.exceptions import ErrorClass, classify, user_traceback
from natsctl.telemetry.hiding import Secrets, error_text, secrets_of, shortened
from natsctl.telemetry.logger import EventLogger, Repeats, get_logger

log = get_logger(__name__)

SETTLE_S = 5.0  # a failure that is over sooner leaves no record
PACE_S = 0.005  # between two records, so that writes of objects come first
RETRY_S = 5.0
CLOSE_S = 1.0  # how long a stop may take to write the last records
KEPT_MAX = 10_000  # records of a controller; further failures start over with the process
FAILING_MAX = 200_000  # failing keys that are known
ERROR_MAX = 500  # characters
TRACEBACK_S = 600.0  # an error that repeats is logged with a traceback once in this time
KEYS_MAX = 10_000
RECALLED_MAX = 200_000
PAST_S = 1.0  # how long a failed sync may wait for the events of earlier processes

REASON_SYNCED = "Synced"
REASON_EXISTS = "ErrResourceExists"
REASON_FAILED = "SyncFailed"


Facts: TypeAlias = tuple[str, float, float, int | None, str, int, int, int]
"""A sync as it's kept: the fields of a `SyncRecord`, with seconds since 1970 as its start.

A tuple takes a third of the time of a struct; a record is made of it when somebody looks at it.
"""


class FailingKey(msgspec.Struct, gc=False):
    """A key that fails: since when, and the last error.

    Attributes:
        sync: the last failed sync in this process; None if another process has failed.
        handler: whose failure it is.
    """

    failure: LastingFailure
    sync: Facts | None = None
    handler: str = ""


class FailingKeys:
    """The keys of one controller that fail, in this process or by their records.

    A key fails until a sync of it succeeds. At most `FAILING_MAX` keys are known, those that failed
    last. A record is only written or deleted after this process has synced its key, or if the
    object is gone.
    """

    def __init__(self, controller: str) -> None:
        self.prefix = failing_prefix(controller)
        self.follows = False  # whether there is a store for the records
        self.keys: dict[str, FailingKey] = {}  # to look at
        self._records: dict[str, Stored] = {}  # as the watch shows them, or as written
        self._unwritten: dict[str, float] = {}  # and the loop time at which each is written
        self._wake = asyncio.Event()

    def known(self, has: Callable[[str], bool] = lambda _: True) -> dict[str, LastingFailure]:
        """Return the failure of each failing key that this process *has*, synced here or not."""
        return {key: state.failure for key, state in self.keys.items() if has(key)}

    def failed(self, key: str, sync: Facts, handler: str = "") -> None:
        before = self.keys.pop(key, None)
        since_s = sync[1] if before is None else before.failure.since_s
        self.keys[key] = FailingKey(LastingFailure(since_s, sync[4]), sync, handler)  # the newest
        if len(self.keys) > FAILING_MAX:
            oldest = next(iter(self.keys))
            del self.keys[oldest]
            self._unwritten.pop(oldest, None)
        if self.follows and (key in self._unwritten or len(self._unwritten) < KEPT_MAX):
            self._unwritten.setdefault(key, asyncio.get_running_loop().time() + SETTLE_S)
            self._wake.set()

    def recovered(self, key: str, handler: str) -> None:
        """Note that a sync succeeded: the key doesn't fail, unless another handler has failed."""
        state = self.keys.get(key)
        if state is not None and (state.sync is None or state.handler == handler):
            self._over(key)

    def keep_only(self, exists: Callable[[str], bool]) -> None:
        """Forget the failures of earlier processes for keys that nothing will sync."""
        for key, state in list(self.keys.items()):
            if state.sync is None and not exists(key):
                self._over(key)

    async def keep(self, holds: Callable[[str], bool]) -> None:
        """Forget failures without a record for keys that another process syncs now."""
        await retain(self.keys, holds, self._leave)

    def _leave(self, key: str) -> None:
        self._unwritten.pop(key, None)
        if key not in self._records:
            self.keys.pop(key, None)

    def _over(self, key: str) -> None:
        self.keys.pop(key, None)
        self._unwritten.pop(key, None)
        if key in self._records and self.follows:
            self._unwritten[key] = 0.0
            self._wake.set()

    def observe(self, key: str, stored: Stored | None, *, held: bool) -> None:
        """Note the record of a key as the watch shows it; None if it was deleted.

        Unless this process *held* the key, another one knows better what became of it.
        """
        state, known = self.keys.get(key), self._records.get(key)
        follows = state is not None and (state.sync is None or not held)
        failure = None if stored is None else failure_in(stored.value)
        if stored is None or failure is None:
            self._records.pop(key, None)
            if follows:
                self._over(key)
        elif known is None or known.revision < stored.revision:
            self._records[key] = stored
            if state is None and key not in self._unwritten:  # else it has to be deleted
                self.keys[key] = FailingKey(failure)
            elif state is not None and follows:
                state.failure = failure

    async def write(self, store: Store) -> None:
        """Write the records that have to change, each once it is settled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                first = min(self._unwritten.values(), default=0.0)
                await asyncio.sleep(max(0.0, first - loop.time()))
                if not await self._try_write(store, until=loop.time()):
                    await asyncio.sleep(RETRY_S)
                if self._unwritten:
                    self._wake.set()
        except PermissionDeniedError as error:
            self.follows = False
            self._unwritten.clear()
            log.warning("cannot record which keys fail: a restart forgets since when", error=error)

    async def close(self, store: Store) -> None:
        """Write all that `write` has left when it was cancelled, for a second at most."""
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._try_write(store, until=math.inf)

    async def _try_write(self, store: Store, *, until: float) -> bool:
        """Write the records that are due; return False if the store did not accept one."""
        for key, due in list(self._unwritten.items()):
            if due > until or key not in self._unwritten:
                continue
            state = self.keys.get(key)
            try:
                await self._write_one(store, key)
            except PermissionDeniedError:
                raise
            except (NotFoundError, ConflictError, InvalidKeyError):
                pass  # another process wrote it, or no record can have this name
            except StoreError as error:
                log.debug("cannot record a failing key", key=key, error=error)
                return False
            if state is None:
                self._records.pop(key, None)
            if key not in self._unwritten:
                self._over(key)  # it recovered during the write
            elif self.keys.get(key) is state:
                del self._unwritten[key]
            if until < math.inf:
                await asyncio.sleep(PACE_S)
        return True

    async def _write_one(self, store: Store, key: str) -> None:
        name, state, seen = self.prefix + key, self.keys.get(key), self._records.get(key)
        if state is None:
            await store.delete(name)
            return
        failure = LastingFailure(state.failure.since_s, shortened(state.failure.error, ERROR_MAX))
        if seen is None and len(self._records) >= KEPT_MAX:
            return
        if seen is not None and failure_in(seen.value) == failure:
            return

        def change(current: Stored | None) -> bytes:
            known = None if current is None else failure_in(current.value)
            since_s = failure.since_s if known is None else min(known.since_s, failure.since_s)
            return msgspec.json.encode(LastingFailure(since_s, failure.error))

        self._records[key] = (await rewrite(store, name, change, seen=seen)).stored


class HandlerFailures:
    """Logs the failures of one controller's handlers.

    An unexpected error is logged with a traceback, from the first frame outside of natsctl, once in
    `TRACEBACK_S` seconds for all keys together. Errors of the same type that are raised at the same
    line count as the same error. Expected errors are logged without a traceback, and delays are not
    logged.
    """

    def __init__(self, logger: EventLogger, level: int = logging.ERROR) -> None:
        self._logger, self._level = logger, level
        self._traced = Repeats(lambda: asyncio.get_running_loop().time(), TRACEBACK_S)

    def failed(self, event: str, error: BaseException, failures: int, /, **fields: object) -> None:
        """Log the *event* of a failure with its *fields*; it's number *failures* in a row."""
        error_class, trace = classify(error), None
        if not error_class.failed:
            return
        if error_class is ErrorClass.UNEXPECTED:
            frame = next(reversed(list(traceback.walk_tb(error.__traceback__))), None)
            line = None if frame is None else (frame[0].f_code.co_filename, frame[1])
            if self._traced.due(f"{type(error)} {line}"):
                trace = (type(error), error, user_traceback(error))
        repeats = {"failures": failures} if failures > 1 else {}
        logged: dict[str, Any] = {**fields, **repeats, "error": error_text(error)}
        with Secrets(secrets_of(error)):  # the traceback is written meanwhile
            self._logger.log(self._level, event, exc_info=trace, **logged)


Around = Callable[[str, Sequence[Step]], Iterable[ReadStep]]
"""Returns further objects for the recording of a key, from the steps of its sync."""


class SyncHistory:
    """The history of one controller's syncs.

    It remembers the last `RECORDS_MAX` syncs of at least the `KEYS_MAX` keys that were synced last,
    in two tables. When the one in use is full, it replaces the other one: that takes less time for
    each sync than a single table in the order of the syncs. The last sync of a key that fails is
    remembered with its failure. A key fails until a sync succeeds: one that only asks for a delay
    does not end that.

    `recorders` record the events, and `recorder` keeps recordings; both are set once the
    controller runs. A controller that reports its syncs to people by other events sets `reported`:
    the events of this history are then recorded only where they can be read again. *failed* is the
    log line of a failed sync.
    """

    def __init__(self, controller: str, failing: FailingKeys, failed: str) -> None:
        self.controller, self.failing = controller, failing
        self.syncs = self.failures = 0
        self._newer: dict[str, tuple[Facts, ...]] = {}
        self._older: dict[str, tuple[Facts, ...]] = {}
        self.recorders: Sequence[Recorder] = ()
        self.recorder: Recordings | None = None
        self.regarding: Callable[[str], Sequence[Reference]] = lambda _: ()
        self.around: Around = lambda _key, _steps: ()
        self.reported = False
        self._failed = failed
        self._failures = HandlerFailures(log)
        self._recalled: set[tuple[str, str]] = set()  # whose earlier failures are known

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        *,
        note: SyncNote | None = None,
        regarding: Sequence[Reference] | None = None,
    ) -> None:
        """Record an event about the key and all that it owns, or the objects *regarding*.

        It's dropped without a recorder. An event with a *note* is about a sync, see `reported`.
        """
        if regarding is None:
            regarding = self.regarding(key)
        for recorder in self.recorders:
            if note is None or not self.reported or isinstance(recorder, RemembersSyncs):
                recorder.event(key, type, reason, message, regarding, sync=note)

    def begin(
        self,
        key: str,
        operation: str,
        stored: Stored | None,
        *,
        last: Stored | None = None,
        handler: str = "",
        delivery: Delivery | None = None,
    ) -> Sync:
        """Return a new sync, whose reads and calls are noted within `with run:`."""
        return Sync(
            key,
            self.controller,
            operation,
            started_s=time.time(),
            begun=asyncio.get_running_loop().time(),
            stored=stored,
            last=last,
            handler=handler,
            delivery=delivery,
            tape=None if self.recorder is None else self.recorder.tape(),
        )

    def succeeded(
        self, run: Sync, now: float, *, failed: bool, after_s: float | None = None
    ) -> None:
        """Keep a successful sync; *failed* if the one before has failed.

        An event is recorded if the sync wrote anything, or if the one before has failed.
        """
        key = run.key
        known = self.failing.keys.get(key)
        failed = failed or (known is not None and known.sync is None)  # in another process
        if failed or run.created or run.updated or run.deleted:
            wrote = "created" if run.created else "updated" if run.updated else "deleted"
            did = wrote if run.created or run.updated or run.deleted else "after failures"
            text = run.named(f'"{key}" synced successfully ({did})')
            note, touched = self._note(run, now), run.touched
            self.event(key, EventType.NORMAL, REASON_SYNCED, text, note=note, regarding=touched)
        self._add(run, now)
        recorder = self.recorder
        if recorder is not None and recorder.successes and recorder.wants(self.controller, key):
            self._keep_recording(run, recorder, now, after_s=after_s)

    def failed(
        self,
        run: Sync,
        error: BaseException,
        now: float,
        *,
        failures: int,
        log_failure: bool = True,
    ) -> None:
        """Keep a failed sync, which is the number *failures* in a row.

        The failure is logged unless the caller logs it; see `HandlerFailures`.
        """
        key, recorder = run.key, self.recorder
        text = run.named(error_text(error))  # before the tape with the secrets in it is taken
        delayed = classify(error) is ErrorClass.DELAY
        kept = recorder is not None and (not delayed or recorder.wants(self.controller, key))
        if recorder is not None and kept and isinstance(error, Exception):
            self._keep_recording(run, recorder, now, error, failures=failures)
        if delayed or not isinstance(error, Exception):  # cancelled, which says nothing about it
            text = "" if delayed else text
            self._add(run, now, text, delayed=True)
            return
        self._add(run, now, text)
        if log_failure:
            fields = {"controller": self.controller, "key": key}
            self._failures.failed(self._failed, error, failures, **fields)
        reason = REASON_EXISTS if isinstance(error, ExistsError) else REASON_FAILED
        note = self._note(run, now, failures)
        self.event(key, EventType.WARNING, reason, text, note=note)

    def _note(self, run: Sync, now: float, failures: int = 0) -> SyncNote:
        return SyncNote(
            operation=run.operation,
            started=run.started,
            duration_s=now - run.begun,
            revision=None if run.stored is None else run.stored.revision,
            created=run.created,
            updated=run.updated,
            deleted=run.deleted,
            failures=failures,
            handler=run.handler,
        )

    def _add(self, run: Sync, now: float, error: str = "", *, delayed: bool = False) -> None:
        """Record a sync; *delayed* if it raised `RetryAfter` or was cancelled.

        If several handlers get the key, a success ends only a failure of the same *handler*.
        """
        self.syncs += 1
        key, revision = run.key, None if run.stored is None else run.stored.revision
        wrote = run.created, run.updated, run.deleted
        sync: Facts = (run.operation, run.started_s, now - run.begun, revision, error, *wrote)
        if error and not delayed:
            self.failures += 1
            self.failing.failed(key, sync, run.handler)
        elif self.failing.keys and not delayed:
            self.failing.recovered(key, run.handler)
        newer = self._newer
        before = newer.get(key) or self._older.pop(key, None)
        if before is not None:
            newer[key] = (*before[1 - RECORDS_MAX :], sync)
        else:
            newer[key] = (sync,)
        if len(newer) >= KEYS_MAX:
            self._older, self._newer = newer, {}

    def last_syncs(self, key: str) -> list[SyncRecord]:
        syncs = self._newer.get(key) or self._older.get(key)
        if syncs is None:
            failed = self.failing.keys.get(key)
            syncs = () if failed is None or failed.sync is None else (failed.sync,)
        return [SyncRecord(it[0], datetime.fromtimestamp(it[1], UTC), *it[2:]) for it in syncs]

    def failing_since(self, key: str) -> datetime | None:
        """Return since when the key fails; None if it does not."""
        state = self.failing.keys.get(key)
        return None if state is None else datetime.fromtimestamp(state.failure.since_s, UTC)

    async def recall(self, key: str, error: BaseException, queue: WorkQueue[str]) -> None:
        """Continue the count of the key's failures in *queue* that an earlier process recorded."""
        if not queue.failures(key):
            failures = await self.past_failures(key, error)
            if failures:
                queue.note(key).failures = failures

    async def past_failures(self, key: str, error: BaseException, handler: str = "") -> int:
        """Return the failures in a row that an earlier process recorded, before *error*.

        Returns 0 if none is known, if the key isn't known to fail, because a success need not be
        recorded, and at every further call for the key and the handler while this process holds
        the key.
        """
        unknown = isinstance(error, StoreTimeoutError)  # the events can't be read either
        if (key, handler) in self._recalled or not classify(error).failed or unknown:
            return 0
        if len(self._recalled) >= RECALLED_MAX:
            self._recalled.clear()
        self._recalled.add((key, handler))
        if key not in self.failing.keys:
            return 0
        for recorder in self.recorders:
            if isinstance(recorder, RemembersSyncs):
                with suppress(NatsctlError, TimeoutError):
                    async with asyncio.timeout(PAST_S):
                        return await recorder.past_failures(key, handler)
        return 0

    async def keep(self, holds: Callable[[str], bool]) -> None:
        """Recall the failures of other keys again once they come back from another process."""
        await retain(self._recalled, lambda known: holds(known[0]), self._recalled.discard)
        await self.failing.keep(holds)

    def _keep_recording(
        self,
        run: Sync,
        recorder: Recordings,
        now: float,
        error: Exception | None = None,
        *,
        failures: int = 0,
        after_s: float | None = None,
    ) -> None:
        """Keep the recording of the sync, once."""
        tape, run.tape = run.tape, None
        if tape is None:
            return
        steps = tuple(tape)
        recorder.keep(
            KeptSync(
                controller=self.controller,
                key=run.key,
                operation=run.operation,
                started=run.started,
                duration_s=now - run.begun,
                stored=run.stored,
                last=run.last,
                delivery=run.delivery,
                failures=max(0, failures - 1),
                planning=planning(),
                error=None if error is None else RecordedError.of(error),
                frames=() if error is None else frames_of(error.__traceback__),
                after_s=after_s,
                steps=steps,
                around=tuple(self.around(run.key, steps)),
            )
        )
