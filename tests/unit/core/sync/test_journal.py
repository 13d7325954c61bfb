"""The journal keeps the results of the last syncs of each key."""

from datetime import UTC, datetime

import pytest

from natsctl.core.history import (
    KEYS_MAX,
    RECORDS_MAX,
    Facts,
    Journal,
    SyncRecord,
)


def record(number: int = 0, error: str = "") -> Facts:
    return ("put", 1_800_000_000.5, 0.5, number, error, 1, 2, 3)


@pytest.fixture
def journal() -> Journal:
    return Journal()


def test_syncs_of_a_key_are_listed_oldest_first(journal: Journal) -> None:
    for number in (1, 2):
        journal.add("a", record(number))
    journal.add("b", record(3))
    assert [entry.revision for entry in journal.last_syncs("a")] == [1, 2]


def test_a_record_has_the_facts_of_a_sync(journal: Journal) -> None:
    journal.add("a", record(7, "no"))
    assert journal.last_syncs("a") == [
        SyncRecord(
            operation="put",
            started=datetime(2027, 1, 15, 8, 0, 0, 500_000, UTC),
            duration_s=0.5,
            revision=7,
            error="no",
            created=1,
            updated=2,
            deleted=3,
        )
    ]


def test_a_key_that_was_never_synced_has_no_records(journal: Journal) -> None:
    assert journal.last_syncs("a") == []


def test_only_the_last_few_syncs_of_a_key_are_kept(journal: Journal) -> None:
    for number in range(RECORDS_MAX + 3):
        journal.add("a", record(number))
    assert [entry.revision for entry in journal.last_syncs("a")] == [3, 4, 5, 6, 7]


def test_the_keys_that_were_synced_last_are_kept_and_older_ones_are_dropped(
    journal: Journal,
) -> None:
    for number in range(3 * KEYS_MAX):
        journal.add(f"k{number}", record())
        journal.add("often", record(number))
    last = range(2 * KEYS_MAX + 1, 3 * KEYS_MAX)
    assert all(len(journal.last_syncs(f"k{number}")) == 1 for number in last)
    assert not any(journal.last_syncs(f"k{number}") for number in range(KEYS_MAX))
    assert len(journal.last_syncs("often")) == RECORDS_MAX


def test_a_key_keeps_its_syncs_while_others_are_synced(journal: Journal) -> None:
    for version in range(RECORDS_MAX):
        journal.add("seldom", record(version))
        for number in range(KEYS_MAX - 1):
            journal.add(f"k{number}", record())
    assert [entry.revision for entry in journal.last_syncs("seldom")] == [0, 1, 2, 3, 4]


def test_a_key_is_failing_while_its_last_sync_failed(journal: Journal) -> None:
    journal.add("a", record(error="no"))
    journal.add("b", record(error="no"))
    journal.add("b", record())
    journal.add("c", record())
    journal.add("c", record(2, error="still no"))
    assert journal.failing() == {"a": "no", "c": "still no"}


def test_a_sync_that_asks_for_a_delay_leaves_open_whether_the_key_fails(journal: Journal) -> None:
    journal.add("a", record(error="no"))
    for key in ("a", "b"):
        journal.add(key, record(), delayed=True)
    assert journal.failing() == {"a": "no"}
    assert [entry.error for entry in journal.last_syncs("a")] == ["no", ""]
    journal.add("a", record())
    assert journal.failing() == {}


def test_syncs_and_failures_are_counted_over_all_keys(journal: Journal) -> None:
    for number in range(RECORDS_MAX + 3):
        journal.add("a", record(error="no" if number % 2 else ""))
    journal.add("b", record())
    assert (journal.syncs, journal.failures) == (9, 4)


def test_a_failing_key_is_kept_however_many_others_are_synced(journal: Journal) -> None:
    journal.add("bad", record(error="no"))
    for number in range(2 * KEYS_MAX):
        journal.add(f"k{number}", record())
    assert [entry.error for entry in journal.last_syncs("bad")] == ["no"]
    assert list(journal.failing()) == ["bad"]
    journal.add("bad", record())
    assert list(journal.failing()) == []
