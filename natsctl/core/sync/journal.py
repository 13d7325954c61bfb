"""What came of the last syncs of each key, for people who ask why."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec

from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.hiding import error_text

KEYS_MAX = 10_000
RECORDS_MAX = 5  # per key
FAILING_MAX = 200_000


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
    """The last five syncs of each of the ten thousand keys synced most lately.

    And of each key whose last sync failed, that one: of two hundred thousand such keys.
    """

    def __init__(self) -> None:
        self.syncs = 0
        self.failures = 0
        self._records: OrderedDict[str, tuple[SyncRecord, ...]] = OrderedDict()
        self._failing: OrderedDict[str, SyncRecord] = OrderedDict()

    @contextmanager
    def noting(
        self, key: str, operation: str, revision: int | None, what: str = ""
    ) -> Iterator[None]:
        """Note the sync that the context is, and the error that it raises; *what* says whose."""
        clock, started = asyncio.get_running_loop().time, datetime.now(UTC)
        begun, error = clock(), ""
        try:
            yield
        except BaseException as raised:
            if classify(raised) is not ErrorClass.DELAY:
                error = what + error_text(raised)
            raise
        finally:
            took_s = clock() - begun
            self.add(key, SyncRecord(operation, started, took_s, revision, error, 0, 0, 0))

    def add(self, key: str, record: SyncRecord) -> None:
        """Note a sync."""
        self.syncs += 1
        self.failures += bool(record.error)
        self._failing.pop(key, None)
        if record.error:
            self._failing[key] = record
            if len(self._failing) > FAILING_MAX:
                self._failing.popitem(last=False)
        before = self._records.pop(key, ())
        self._records[key] = (*before[1 - RECORDS_MAX :], record)
        if len(self._records) > KEYS_MAX:
            self._records.popitem(last=False)

    def of(self, key: str) -> list[SyncRecord]:
        """Return what is known of the key's syncs, oldest first."""
        records = self._records.get(key)
        if records is None:
            failed = self._failing.get(key)
            return [] if failed is None else [failed]
        return list(records)

    def failing(self) -> Mapping[str, SyncRecord]:
        """Return the keys whose last sync failed, with it; a live view."""
        return self._failing
