"""Remembers the last syncs of each key, for `natsctl explain` and `natsctl status`."""

from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final, TypeAlias

import msgspec

KEYS_MAX = 10_000
RECORDS_MAX = 5  # per key
FAILING_MAX = 200_000
ERROR: Final = 4  # the index of the error in `SyncFacts`


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


SyncFacts: TypeAlias = tuple[str, float, float, int | None, str, int, int, int]
"""The fields of a `SyncRecord`, which starts at these seconds since 1970.

A sync is kept as facts, because few of them are ever looked at.
"""


def record_of(facts: SyncFacts) -> SyncRecord:
    """Return the record with these facts."""
    operation, started_s, duration_s, revision, error, created, updated, deleted = facts
    started = datetime.fromtimestamp(started_s, UTC)
    return SyncRecord(operation, started, duration_s, revision, error, created, updated, deleted)


class Journal:
    """Remembers the last `RECORDS_MAX` syncs of the `KEYS_MAX` keys that were synced last.

    It also remembers the last sync of the `FAILING_MAX` keys whose last sync failed last.
    """

    def __init__(self) -> None:
        self.syncs = 0
        self.failures = 0
        self._syncs: OrderedDict[str, tuple[SyncFacts, ...]] = OrderedDict()
        self._failing: OrderedDict[str, SyncFacts] = OrderedDict()

    def add(self, key: str, sync: SyncFacts) -> None:
        """Record a sync."""
        self.syncs += 1
        if self._failing:
            self._failing.pop(key, None)
        if sync[ERROR]:
            self._add_failure(key, sync)
        before = self._syncs.pop(key, ())
        self._syncs[key] = (*before[1 - RECORDS_MAX :], sync)
        if len(self._syncs) > KEYS_MAX:
            self._syncs.popitem(last=False)

    def _add_failure(self, key: str, sync: SyncFacts) -> None:
        self.failures += 1
        self._failing[key] = sync
        if len(self._failing) > FAILING_MAX:
            self._failing.popitem(last=False)

    def last_syncs(self, key: str) -> list[SyncRecord]:
        """Return the recorded syncs of the key, oldest first."""
        syncs = self._syncs.get(key)
        if syncs is None:
            failed = self._failing.get(key)
            syncs = () if failed is None else (failed,)
        return [record_of(sync) for sync in syncs]

    def failing(self) -> dict[str, str]:
        """Return the error of each failing key."""
        return {key: sync[ERROR] for key, sync in self._failing.items()}
