"""Remembers the last syncs of each key, for `natsctl explain` and `natsctl status`."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from natsctl.core.pausing.failing_records import FailingRecords, LastingFailure

KEYS_MAX = 10_000
RECORDS_MAX = 5  # per key
FAILING_MAX = 200_000


class SyncRecord(msgspec.Struct, frozen=True, gc=False):
    """One sync of a key.

    Attributes:
        operation: the reason for the sync.
        started: the time of its start.
        duration_s: its duration.
        revision: the revision of the object; None if the object did not exist.
        error: the error; empty if the sync succeeded or asked for a delay.
        created: how many secondaries it created.
        updated: how many secondaries it updated.
        deleted: how many secondaries it deleted.
    """

    operation: str
    started: datetime
    duration_s: float
    revision: int | None
    error: str
    created: int
    updated: int
    deleted: int


class SyncFacts(msgspec.Struct, frozen=True, gc=False):
    """A sync as it is kept: a `SyncRecord` is made of it only if somebody looks at it.

    `started_s` is the time of its start in seconds since 1970.
    """

    operation: str
    started_s: float
    duration_s: float
    revision: int | None = None
    error: str = ""
    created: int = 0
    updated: int = 0
    deleted: int = 0

    def record(self) -> SyncRecord:
        """Return the record of the sync."""
        return SyncRecord(
            self.operation,
            datetime.fromtimestamp(self.started_s, UTC),
            self.duration_s,
            self.revision,
            self.error,
            self.created,
            self.updated,
            self.deleted,
        )


class Journal:
    """Remembers the last `RECORDS_MAX` syncs of at least the `KEYS_MAX` keys that were synced last.

    It also remembers the failed sync of the `FAILING_MAX` keys that failed last. A key fails until
    a sync succeeds: one that only asks for a delay does not end that. A key that failed in an
    earlier process fails since then, as its record says.

    The keys are in two tables. When the one in use is full, it replaces the other one: that takes
    less time for each sync than a single table in the order of the syncs.
    """

    def __init__(self, records: FailingRecords | None = None) -> None:
        self.syncs = 0
        self.failures = 0
        self._newer: dict[str, tuple[SyncFacts, ...]] = {}
        self._older: dict[str, tuple[SyncFacts, ...]] = {}
        self._failing: OrderedDict[str, _Failing] = OrderedDict()
        self._records = FailingRecords("") if records is None else records
        self._recorded = self._records.recorded

    def add(self, key: str, sync: SyncFacts, *, delayed: bool = False, handler: str = "") -> None:
        """Record a sync; *delayed* if it raised `RetryAfter` or was cancelled.

        If several handlers get the key, a success ends only a failure of the same *handler*.
        """
        self.syncs += 1
        if sync.error and not delayed:
            self._add_failure(key, sync, handler)
        elif (self._failing or self._recorded) and not delayed:
            self._recovered(key, handler)
        newer = self._newer
        before = newer.get(key) or self._older.pop(key, None)
        if before is not None:
            newer[key] = (*before[1 - RECORDS_MAX :], sync)
        else:
            newer[key] = (sync,)
        if len(newer) >= KEYS_MAX:
            self._older, self._newer = newer, {}

    def _add_failure(self, key: str, sync: SyncFacts, handler: str) -> None:
        self.failures += 1
        before = self._failing.pop(key, None) or self._recorded.get(key)
        since_s = sync.started_s if before is None else before.since_s
        self._failing[key] = _Failing(since_s, sync, handler)
        self._records.failed(key, LastingFailure(since_s, sync.error))
        if len(self._failing) > FAILING_MAX:
            self._failing.popitem(last=False)

    def _recovered(self, key: str, handler: str) -> None:
        failing = self._failing.get(key)
        if failing is None or failing.handler == handler:
            self._failing.pop(key, None)
            self._records.over(key)

    def last_syncs(self, key: str) -> list[SyncRecord]:
        """Return the recorded syncs of the key, oldest first."""
        syncs = self._newer.get(key) or self._older.get(key)
        if syncs is None:
            failed = self._failing.get(key)
            syncs = () if failed is None else (failed.sync,)
        return [sync.record() for sync in syncs]

    def failing(self) -> dict[str, str]:
        """Return the error of each failing key."""
        return {key: failure.error for key, failure in self.known_failures().items()}

    def known_failures(
        self, has: Callable[[str], bool] = lambda _: True
    ) -> dict[str, LastingFailure]:
        """Return the failure of each failing key that this process *has*.

        These include the keys that failed in an earlier process and that this one hasn't synced.
        """
        own = self._failing.items()
        failing = {
            key: LastingFailure(known.since_s, known.sync.error) for key, known in own if has(key)
        }
        for key, failure in self._recorded.items():
            if key not in failing and has(key):
                failing[key] = failure
        return failing

    def failing_since(self, key: str) -> datetime | None:
        """Return since when the key fails; None if it does not."""
        failing = self._failing.get(key) or self._recorded.get(key)
        return None if failing is None else datetime.fromtimestamp(failing.since_s, UTC)

    def forget_missing(self, exists: Callable[[str], bool]) -> None:
        """Forget the failures of earlier processes for keys without an object."""
        self._records.keep_only(lambda key: key in self._failing or exists(key))


class _Failing(msgspec.Struct, frozen=True, gc=False):
    """A key that failed in this process: since when, its last sync, and whose failure it is."""

    since_s: float
    sync: SyncFacts
    handler: str
