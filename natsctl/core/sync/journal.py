"""Remembers the last syncs of each key, for `natsctl explain` and `natsctl status`."""

from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime

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


class Journal:
    """Remembers the last `RECORDS_MAX` syncs of the `KEYS_MAX` keys that were synced last.

    It also remembers the last sync of the `FAILING_MAX` keys whose last sync failed last.
    """

    def __init__(self) -> None:
        self.syncs = 0
        self.failures = 0
        self._records: OrderedDict[str, tuple[SyncRecord, ...]] = OrderedDict()
        self._failing: OrderedDict[str, SyncRecord] = OrderedDict()

    def add(self, key: str, record: SyncRecord) -> None:
        """Record a sync."""
        self.syncs += 1
        self.failures += bool(record.error)
        if self._failing:
            self._failing.pop(key, None)
        if record.error:
            self._failing[key] = record
            if len(self._failing) > FAILING_MAX:
                self._failing.popitem(last=False)
        before = self._records.pop(key, ())
        self._records[key] = (*before[1 - RECORDS_MAX :], record)
        if len(self._records) > KEYS_MAX:
            self._records.popitem(last=False)

    def last_syncs(self, key: str) -> list[SyncRecord]:
        """Return the recorded syncs of the key, oldest first."""
        records = self._records.get(key)
        if records is None:
            failed = self._failing.get(key)
            return [] if failed is None else [failed]
        return list(records)

    def failing(self) -> Mapping[str, SyncRecord]:
        """Return the failed last sync of each failing key, as a live view."""
        return self._failing
