"""One visit to a key: from the wait for its last writes to the record of what came of it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal

from natsctl.core.barrier import Barrier, Sync
from natsctl.core.journal import Journal, SyncRecord
from natsctl.core.loop import SyncHandler
from natsctl.core.owners import Owner
from natsctl.core.reports import Reports
from natsctl.core.slots import Primary, Secondary
from natsctl.core.workqueue import Priority
from natsctl.errors import ConflictError, NotFoundError, PermanentError, RetryAfter
from natsctl.model.store import Stored

DeletionPolicy = Literal["delete", "orphan"]


class Operation(Enum):
    """Why a key is visited: for people and for priority, never an input to the handler."""

    PUT = "put"
    DELETE = "delete"
    PURGE = "purge"
    SECONDARY = "secondary"
    RESYNC = "resync"
    RETRY = "retry"
    MANUAL = "manual"

    @property
    def priority(self) -> Priority:
        """How urgent it is."""
        return _PRIORITY.get(self, Priority.USER)


_PRIORITY = {
    Operation.SECONDARY: Priority.SECONDARY,
    Operation.RETRY: Priority.RETRY,
    Operation.RESYNC: Priority.RESYNC,
}


class Visits:
    """Runs a controller's handler for one key at a time and removes what a gone key owned.

    Args:
        handler: the user's sync handler.
        primary: whose keys are visited.
        secondaries: what they own.
        barrier: what they wrote and no cache has shown yet.
        reports: who is told what came of it.
        policy: what becomes of what a gone primary owned.
        timeout_s: how long the handler may take; then it fails with `TimeoutError`.
    """

    def __init__(
        self,
        handler: SyncHandler,
        primary: Primary[Any],
        secondaries: Sequence[Secondary[Any]],
        barrier: Barrier,
        reports: Reports,
        *,
        policy: DeletionPolicy,
        timeout_s: float,
    ) -> None:
        self.journal = Journal()
        self.condemned: set[str] = set()  # owners that a sweep found gone for long enough
        self._handler = handler
        self._primary = primary
        self._cache = primary.informer.cache
        self._secondaries = secondaries
        self._barrier = barrier
        self._reports = reports
        self._policy = policy
        self._timeout_s = timeout_s
        self._failed: dict[str, Stored] = {}  # at which state a key failed for good

    async def visit(self, key: str, operation: Operation) -> float | None:
        """Sync *key* and return when to come back, as its handler says; failing is raising.

        Left alone are keys whose newest state is invalid, or failed for good and is still the
        same, unless a person asks.
        """
        if self._to_be_left_alone(key, operation):
            return None
        with self._barrier.syncing(key) as sync:
            begun = _Begun(operation, sync)
            try:
                await self._barrier.wait(key)
                async with asyncio.timeout(self._timeout_s):
                    after = await self._handler(key)
                await self._release(key)
            except BaseException as error:
                self._note_failure(key, begun, error)
                raise
            self._note_success(key, begun)
            return after

    def _to_be_left_alone(self, key: str, operation: Operation) -> bool:
        if key in self._cache.invalid:
            return True
        failed, stored = self._failed.get(key), self._cache.get(key)
        if failed is None or stored is None or operation is Operation.MANUAL:
            return False
        return not self._cache.kind.differs(failed.value, stored.value)

    async def _release(self, key: str) -> None:
        """Remove what a gone primary owned, where a marker or a sweep says that it is gone."""
        if key in self._cache:
            return
        if self._policy == "delete":
            owned = [(at, stored) for at in self._secondaries for stored in at.owned_stored(key)]
            if owned and await self._gone(key):
                for secondary, stored in owned:
                    await _delete(secondary, stored)
        self.condemned.discard(key)

    async def _gone(self, key: str) -> bool:
        try:
            await self._primary.informer.store.get(key)
        except NotFoundError as error:
            return error.deleted_at is not None or key in self.condemned
        return False

    def _note_success(self, key: str, begun: "_Begun") -> None:
        self._failed.pop(key, None)
        self._primary.gone.pop(key, None)
        self._reports.synced(key, begun.sync)
        self.journal.add(key, begun.record(self._cache.get(key), None))

    def _note_failure(self, key: str, begun: "_Begun", error: BaseException) -> None:
        stored = self._cache.get(key)
        self.journal.add(key, begun.record(stored, error))
        if isinstance(error, Exception) and not isinstance(error, RetryAfter):
            self._reports.failed(key, error)
        if isinstance(error, PermanentError) and stored is not None:
            self._failed[key] = stored


class _Begun:
    """A visit under way: why and since when."""

    def __init__(self, operation: Operation, sync: Sync) -> None:
        self.sync = sync
        self._operation = operation
        self._started = datetime.now(UTC)
        self._clock = asyncio.get_running_loop().time
        self._begun = self._clock()

    def record(self, stored: Stored | None, error: BaseException | None) -> SyncRecord:
        return SyncRecord(
            operation=self._operation.value,
            started=self._started.isoformat(timespec="milliseconds"),
            duration_s=round(self._clock() - self._begun, 6),
            revision=None if stored is None else stored.revision,
            error="" if error is None else f"{type(error).__name__}: {error}",
            created=self.sync.created,
            updated=self.sync.updated,
            deleted=self.sync.deleted,
        )


async def _delete(secondary: Secondary[Any], stored: Stored) -> None:
    """Delete the object unless it has meanwhile become another's."""
    owner: Owner | None = secondary.owner_of(stored)
    current: Stored | None = stored
    while current is not None and secondary.owner_of(current) == owner:
        try:
            await secondary.delete_stored(current)
        except ConflictError:
            current = await secondary.read_stored(stored.key)
        except NotFoundError:
            return
        else:
            return
