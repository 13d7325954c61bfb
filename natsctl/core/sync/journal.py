"""Remembers the last syncs of each key, for `natsctl explain` and `natsctl status`."""

from collections import OrderedDict
from datetime import UTC, datetime

import msgspec

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
    a sync succeeds: one that only asks for a delay does not end that.

    The keys are in two tables. When the one in use is full, it replaces the other one: that takes
    less time for each sync than a single table in the order of the syncs.
    """

    def __init__(self) -> None:
        self.syncs = 0
        self.failures = 0
        self._newer: dict[str, tuple[SyncFacts, ...]] = {}
        self._older: dict[str, tuple[SyncFacts, ...]] = {}
        self._failing: OrderedDict[str, SyncFacts] = OrderedDict()

    def add(self, key: str, sync: SyncFacts, *, delayed: bool = False) -> None:
        """Record a sync; *delayed* if it raised `RetryAfter`."""
        self.syncs += 1
        if self._failing and not delayed:
            self._failing.pop(key, None)
        if sync.error:
            self._add_failure(key, sync)
        newer = self._newer
        before = newer.get(key) or self._older.pop(key, None)
        if before is not None:
            newer[key] = (*before[1 - RECORDS_MAX :], sync)
        else:
            newer[key] = (sync,)
        if len(newer) >= KEYS_MAX:
            self._older, self._newer = newer, {}

    def _add_failure(self, key: str, sync: SyncFacts) -> None:
        self.failures += 1
        self._failing[key] = sync
        if len(self._failing) > FAILING_MAX:
            self._failing.popitem(last=False)

    def last_syncs(self, key: str) -> list[SyncRecord]:
        """Return the recorded syncs of the key, oldest first."""
        syncs = self._newer.get(key) or self._older.get(key)
        if syncs is None:
            failed = self._failing.get(key)
            syncs = () if failed is None else (failed,)
        return [sync.record() for sync in syncs]

    def failing(self) -> dict[str, str]:
        """Return the error of each failing key."""
        return {key: sync.error for key, sync in self._failing.items()}
