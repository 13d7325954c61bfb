"""What came of the last syncs of each key, for people who ask why."""

from collections import OrderedDict, deque

import msgspec

KEYS_MAX = 10_000
RECORDS_MAX = 5  # per key


class SyncRecord(msgspec.Struct, frozen=True):
    """One sync: why, when (RFC 3339), how long, at which revision, and what came of it.

    `error` is empty where it succeeded. `created`, `updated` and `deleted` count secondaries.
    """

    operation: str
    started: str
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
        self._records: OrderedDict[str, deque[SyncRecord]] = OrderedDict()

    def add(self, key: str, record: SyncRecord) -> None:
        """Note a sync."""
        self.syncs += 1
        self.failures += bool(record.error)
        records = self._records.get(key)
        if records is None:
            records = self._records[key] = deque(maxlen=RECORDS_MAX)
            if len(self._records) > KEYS_MAX:
                self._records.popitem(last=False)
        else:
            self._records.move_to_end(key)
        records.append(record)

    def of(self, key: str) -> list[SyncRecord]:
        """Return what is known of the key's syncs, oldest first."""
        return list(self._records.get(key, ()))

    def failing(self) -> dict[str, SyncRecord]:
        """Return the keys whose last sync failed, with it."""
        last = {key: records[-1] for key, records in self._records.items()}
        return {key: record for key, record in last.items() if record.error}
