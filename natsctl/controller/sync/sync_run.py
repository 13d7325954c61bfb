"""One visit to a key: from the wait for its last writes to the record of what came of it."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal

from natsctl.controller.garbage.evidence import Evidence
from natsctl.controller.slots.owned import Owned
from natsctl.controller.slots.secondaries import Secondaries
from natsctl.controller.sync.events import SyncReports
from natsctl.core.objects.primary import Primary
from natsctl.core.objects.read_your_writes import Barrier, Sync
from natsctl.core.sync.calls import Calls
from natsctl.core.sync.journal import Journal, SyncRecord
from natsctl.core.sync.keys import Operation, skips_invalid
from natsctl.core.sync.loop import SyncHandler
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Stored
from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.hiding import error_text
from natsctl.telemetry.logger import bind_log_context, log_context
from natsctl.telemetry.tracing import sync_span

DeletionPolicy = Literal["delete", "orphan"]


class SyncRuns:
    """Runs a controller's handler for one key at a time and removes what a gone key owned.

    Args:
        handler: the user's sync handler.
        primary: whose keys are visited.
        secondaries: what they own.
        barrier: what they wrote and no cache has shown yet.
        reports: who is told what came of it.
        evidence: whether the bucket proves that a primary was deleted.
        policy: what becomes of what a gone primary owned.
        timeout_s: how long the handler may take; then it fails with `SyncTimeoutError`.
    """

    def __init__(
        self,
        handler: SyncHandler,
        primary: Primary[Any],
        secondaries: Secondaries,
        barrier: Barrier,
        reports: SyncReports,
        *,
        journal: Journal,
        evidence: Evidence,
        policy: DeletionPolicy,
        timeout_s: float,
    ) -> None:
        self._journal = journal
        self._handler = handler
        self._primary = primary
        self._cache = primary.informer.cache
        self._secondaries = secondaries
        self._barrier = barrier
        self.evidence = evidence
        self._reports = reports
        self._name = reports.controller
        self._policy = policy
        self._calls = Calls(self._name, "sync_handler", limit_s=timeout_s, setting="sync_timeout_s")
        self._clock = asyncio.get_running_loop().time
        self._failed: dict[str, Stored] = {}  # at which state a key failed for good
        self._condemned: dict[str, str] = {}  # gone owners, and the incarnation they are gone from
        self._claimed: dict[str, Sequence[tuple[Owned[Any], Stored]]] = {}  # what they left

    def condemn(self, key: str, claimed: Sequence[tuple[Owned[Any], Stored]] = ()) -> None:
        """Take a sweep's word, for the next visit of *key*, that this owner was purged.

        *claimed* objects carry no labels, and were the owner's.
        """
        self._condemned[key] = self._cache.incarnation
        self._claimed[key] = claimed

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forget what is known of keys that are not *wanted* here any more."""
        self._failed = {key: at for key, at in self._failed.items() if wanted(key)}
        self._condemned = {key: at for key, at in self._condemned.items() if wanted(key)}
        self._claimed = {key: at for key, at in self._claimed.items() if wanted(key)}

    async def sync(self, key: str, operation: Operation) -> float | None:
        """Sync *key* and return when to come back, as its handler says; failing is raising.

        Left alone are keys whose newest state is invalid, or failed for good and is still the
        same, unless a person asks.
        """
        bind_log_context(operation=operation)
        if self._to_be_left_alone(key, operation):
            return None
        condemned = self._condemned.pop(key, None)
        with (
            sync_span(self._name, log_context),
            _SyncRun(key, operation, condemned, self._clock) as run,
        ):
            try:
                if self._barrier.awaits(key):
                    await self._barrier.wait(key)
                run.stored = self._barrier.read(self._primary.informer, key)
                run.last = self._primary.gone.get(key)
                after = await self._calls.delay(key, self._handler, key)
                if run.stored is None:
                    await self._release(run)
                else:
                    await self._mark(key)
            except BaseException as error:
                self._note_failure(run, error)
                raise
            self._note_success(run)
            return after

    def _to_be_left_alone(self, key: str, operation: Operation) -> bool:
        if skips_invalid(self._primary, key):
            return True
        failed = self._failed.get(key)
        if failed is None or operation is Operation.MANUAL:
            return False
        stored = self._cache.get(key)
        return stored is not None and not self._cache.kind.differs(failed.value, stored.value)

    async def _release(self, run: "_SyncRun") -> None:
        """Remove what a gone primary owned, where a marker or a sweep says that it is gone."""
        key = run.key
        if key in self._cache or self._policy != "delete":
            return
        owned = list(self._secondaries.owned(key))
        owned += self._claimed.pop(key, ())
        if owned and await self._gone(run):
            for secondary, stored in owned:
                await secondary.delete_owned(key, stored)

    async def _mark(self, key: str) -> None:
        """Assign what the primary owns to this installation if it carries none, once."""
        for secondary in self._secondaries:
            for stored in secondary.unmarked(key):
                with suppress(ConflictError):  # it changed: its owner is synced again
                    await secondary.mark(stored)

    async def _gone(self, run: "_SyncRun") -> bool:
        try:
            await self._primary.informer.store.get(run.key)
        except NotFoundError as error:
            if error.deleted_at is not None and await self.evidence.proves(error.deleted_at):
                return True
            return run.condemned == self._cache.incarnation and not self.evidence.held
        return False

    def _note_success(self, run: "_SyncRun") -> None:
        key = run.key
        self._failed.pop(key, None)
        if run.last is not None and self._primary.gone.get(key) is run.last:
            del self._primary.gone[key]
        self._reports.synced(key, run)
        self._journal.add(key, run.record(None))

    def _note_failure(self, run: "_SyncRun", error: BaseException) -> None:
        found = classify(error)
        if found is ErrorClass.DELAY:
            self._journal.add(run.key, run.record(None))
            return
        self._journal.add(run.key, run.record(error))
        if isinstance(error, Exception):
            self._reports.failed(run.key, error)
        if found is ErrorClass.PERMANENT and run.stored is not None:
            self._failed[run.key] = run.stored


class _SyncRun(Sync):
    """A sync under way: why, since when and of what."""

    __slots__ = ("_begun", "_clock", "_operation", "_started", "condemned", "last", "stored")

    def __init__(
        self,
        key: str,
        operation: Operation,
        condemned: str | None,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(key)
        self.manual = operation is Operation.MANUAL
        self.condemned = condemned  # the incarnation from which a sweep found the key gone
        self.stored: Stored | None = None  # what the handler was called for
        self.last: Stored | None = None  # what it was before it went
        self._operation = operation
        self._started = datetime.now(UTC)
        self._clock = clock
        self._begun = clock()

    def record(self, error: BaseException | None) -> SyncRecord:
        return SyncRecord(
            operation=self._operation,
            started=self._started,
            duration_s=self._clock() - self._begun,
            revision=None if self.stored is None else self.stored.revision,
            error="" if error is None else error_text(error),
            created=self.created,
            updated=self.updated,
            deleted=self.deleted,
        )
