"""Keeps the history of a controller's syncs: in the journal, as events, and as recordings.

The journal has the last syncs of this process. Events are read by later processes, which continue
the count of a key's failures. A recording has all that a sync has read and written.
"""

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from natsctl.core.objects.sync import Sync
from natsctl.core.objects.tape import CacheRead, Note, RecordedError
from natsctl.core.pausing.failing_records import FailingRecords
from natsctl.core.planning.record import planning
from natsctl.core.recording.recordings import (
    Delivery,
    KeptSync,
    SyncRecorder,
    frames_of,
)
from natsctl.core.sync.failures import HandlerFailures
from natsctl.core.sync.journal import Journal, SyncFacts
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import ExistsError, NatsctlError, StoreTimeoutError
from natsctl.model.manifests import Reference
from natsctl.model.recorder import EventType, Recorder, RemembersSyncs, SyncNote
from natsctl.model.store import Stored
from natsctl.slices import retain
from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

K = TypeVar("K", bound=Hashable)

RECALLED_MAX = 200_000
PAST_S = 1.0  # how long a failed sync may wait for the events of earlier processes

REASON_SYNCED = "Synced"
REASON_EXISTS = "ErrResourceExists"
REASON_FAILED = "SyncFailed"
MESSAGE_CREATED = '"%s" synced successfully (created)'
MESSAGE_UPDATED = '"%s" synced successfully (updated)'
MESSAGE_DELETED = '"%s" synced successfully (deleted)'
MESSAGE_RECOVERED = '"%s" synced successfully (after failures)'


Around = Callable[[str, Sequence[Note]], Iterable[CacheRead]]
"""Returns further objects for the recording of a key, from the notes of its sync."""


class SyncHistory:
    """The history of one controller's syncs.

    `recorders` record the events, and `recorder` keeps recordings; both are set once the
    controller runs. A controller that reports its syncs to people by other events sets `reported`:
    the events of this history are then recorded only where they can be read again.

    Args:
        controller: the name of the controller.
        failed: the log line of a failed sync.
        records: keeps which keys fail beyond the process; None keeps it only here.
    """

    def __init__(
        self,
        controller: str,
        *,
        failed: str = "sync failed",
        records: FailingRecords | None = None,
    ) -> None:
        self.controller = controller
        self.journal = Journal(records)
        self.recorders: Sequence[Recorder] = ()
        self.recorder: SyncRecorder | None = None
        self.regarding: Callable[[str], Sequence[Reference]] = lambda _: ()
        self.around: Around = lambda _key, _notes: ()
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
    ) -> None:
        """Record an event about the key and all that it owns; dropped without a recorder."""
        regarding = self.regarding(key)
        for recorder in self.recorders:
            recorder.event(key, type, reason, message, regarding)

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
            operation=operation,
            started_s=time.time(),
            begun=asyncio.get_running_loop().time(),
            handler=handler,
            stored=stored,
            last=last,
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
        if self._failures.counts:
            self._failures.succeeded(key)
        if failed or run.created or run.updated or run.deleted:
            text = run.named(_message(run) % key)
            note = _note(run, now)
            self._sync_event(
                key, EventType.NORMAL, REASON_SYNCED, text, note, regarding=run.touched
            )
        self.journal.add(key, _facts(run, now), handler=run.handler)
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
        if delayed:
            self.journal.add(key, _facts(run, now), delayed=True)
            return
        cancelled = not isinstance(error, Exception)  # which says nothing about the key
        self.journal.add(key, _facts(run, now, text), delayed=cancelled, handler=run.handler)
        if not isinstance(error, Exception):
            return
        if log_failure:
            fields = {"controller": self.controller, "key": key}
            self._failures.failed(key, self._failed, error, **fields)
        reason = REASON_EXISTS if isinstance(error, ExistsError) else REASON_FAILED
        note = _note(run, now, failures)
        self._sync_event(key, EventType.WARNING, reason, text, note)

    async def recall(
        self, key: str, error: BaseException, queue: WorkQueue[K], entry: K, handler: str = ""
    ) -> None:
        """Continue the count of failures that an earlier process recorded.

        *entry* is what *queue* has for the key.
        """
        if not queue.failures(entry):
            failures = await self.past_failures(key, error, handler)
            if failures:
                queue.recall(entry, failures)

    async def past_failures(self, key: str, error: BaseException, handler: str = "") -> int:
        """Return the failures in a row that an earlier process recorded, before *error*.

        Returns 0 if none is known, and at every further call for the key and the handler.
        """
        if (key, handler) in self._recalled or not _counts(error):
            return 0
        if len(self._recalled) >= RECALLED_MAX:
            self._recalled.clear()
        self._recalled.add((key, handler))
        for recorder in self.recorders:
            if isinstance(recorder, RemembersSyncs):
                with suppress(NatsctlError, TimeoutError):
                    async with asyncio.timeout(PAST_S):
                        return await recorder.past_failures(key, handler)
        return 0

    async def keep_only(self, wanted: Callable[[str], bool]) -> None:
        """Forget the keys that are not *wanted*, in slices."""
        await retain(self._recalled, lambda name: wanted(name[0]), self._recalled.discard)

    def _sync_event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        note: SyncNote,
        *,
        regarding: Sequence[Reference] | None = None,
    ) -> None:
        if regarding is None:
            regarding = self.regarding(key)
        for recorder in self.recorders:
            if not self.reported or isinstance(recorder, RemembersSyncs):
                recorder.event(key, type, reason, message, regarding, sync=note)

    def _keep_recording(
        self,
        run: Sync,
        recorder: SyncRecorder,
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
        notes = tuple(tape) if isinstance(tape, list) else ()
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
                notes=notes,
                around=tuple(self.around(run.key, notes)),
            )
        )


def _facts(run: Sync, now: float, error: str = "") -> SyncFacts:
    """Return what the journal keeps of a sync that ends *now*."""
    stored = run.stored
    return SyncFacts(
        run.operation,
        run.started_s,
        now - run.begun,
        None if stored is None else stored.revision,
        error,
        run.created,
        run.updated,
        run.deleted,
    )


def _note(run: Sync, now: float, failures: int = 0) -> SyncNote:
    """Return what an event has of a sync that ends *now*."""
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


def _message(run: Sync) -> str:
    if run.created:
        return MESSAGE_CREATED
    if run.updated:
        return MESSAGE_UPDATED
    if run.deleted:
        return MESSAGE_DELETED
    return MESSAGE_RECOVERED


def _counts(error: BaseException) -> bool:
    """Return whether earlier failures matter, and the events of these can be read."""
    return classify(error).failed and not isinstance(error, StoreTimeoutError)
