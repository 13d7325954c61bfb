"""What came of the last syncs of each key, for people who ask why."""

from collections import OrderedDict
from datetime import datetime

import msgspec

KEYS_MAX = 10_000
RECORDS_MAX = 5  # per key


class SyncRecord(msgspec.Struct, frozen=True, gc=False):
    """One sync: why, when, how long, at which revision, and what came of it.

    `error` is empty where it succeeded. `created`, `updated` and `deleted` count secondaries.
    """

    operation: str
    started: datetime
    duration_s: float
    revision: int | None
    error: str
    created: int
    updated: int
    deleted: int


class Journal:
    """The last five syncs of each of the ten thousand keys synced most lately."""

    def __init__(self) -> None:
        self.syncs = 0
        self.failures = 0
        self._records: OrderedDict[str, tuple[SyncRecord, ...]] = OrderedDict()

    def add(self, key: str, record: SyncRecord) -> None:
        """Note a sync."""
        self.syncs += 1
        self.failures += bool(record.error)
        before = self._records.pop(key, ())
        self._records[key] = (*before[1 - RECORDS_MAX :], record)
        if len(self._records) > KEYS_MAX:
            self._records.popitem(last=False)

    def of(self, key: str) -> list[SyncRecord]:
        """Return what is known of the key's syncs, oldest first."""
        return list(self._records.get(key, ()))

    def failing(self) -> dict[str, SyncRecord]:
        """Return the keys whose last sync failed, with it."""
        last = {key: records[-1] for key, records in self._records.items()}
        return {key: record for key, record in last.items() if record.error}
