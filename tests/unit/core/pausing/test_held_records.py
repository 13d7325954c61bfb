"""A process records the keys that it has held for long, and reads the records of others."""

import msgspec
import pytest

from natsctl import kv
from natsctl.core.pausing.held_records import KEYS_MAX, HeldRecord, HeldRecords, held_record
from natsctl.errors import NotFoundError, NotLeadingError, StoreError
from natsctl.testing.memory import MemoryStore

KIND = kv(HeldRecord, bucket="natsctl")
MINE, THEIRS = held_record("apps", "me"), held_record("apps", "you")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(KIND)


@pytest.fixture
def changes() -> list[str]:
    return []


@pytest.fixture
def records(changes: list[str]) -> HeldRecords:
    return HeldRecords("apps", "me", lambda: changes.append("changed"))


def encoded(*keys: str, place: str = "apps") -> bytes:
    return msgspec.json.encode(HeldRecord(tuple((place, key) for key in keys)))


async def keys_of(store: MemoryStore, name: str) -> list[str]:
    record = msgspec.json.decode((await store.get(name)).value, type=HeldRecord)
    return [key for _, key in record.keys]


class TestOwnRecord:
    async def test_held_keys_are_written(self, store: MemoryStore, records: HeldRecords) -> None:
        records.hold("apps", "shop")
        await records.try_write(store)
        assert await keys_of(store, MINE) == ["shop"]

    async def test_a_released_key_is_removed(
        self, store: MemoryStore, records: HeldRecords
    ) -> None:
        for key in ("shop", "bank"):
            records.hold("apps", key)
        await records.try_write(store)
        records.release("apps", "shop")
        await records.try_write(store)
        assert await keys_of(store, MINE) == ["bank"]

    async def test_nothing_is_written_twice(self, store: MemoryStore, records: HeldRecords) -> None:
        records.hold("apps", "shop")
        await records.try_write(store)
        await records.try_write(store)
        assert store.writes == 1

    async def test_a_key_that_is_released_in_time_is_not_written(
        self, store: MemoryStore, records: HeldRecords
    ) -> None:
        records.hold("apps", "shop")
        records.release("apps", "shop")
        await records.try_write(store)
        assert store.writes == 0

    def test_every_change_has_to_be_written(self, records: HeldRecords, changes: list[str]) -> None:
        records.hold("apps", "shop")
        records.release("apps", "shop")
        assert len(changes) == 2

    def test_a_key_that_is_not_held_changes_nothing(
        self, records: HeldRecords, changes: list[str]
    ) -> None:
        records.release("apps", "shop")
        assert changes == []

    async def test_only_so_many_keys_are_noted(
        self, store: MemoryStore, records: HeldRecords
    ) -> None:
        for number in range(KEYS_MAX + 1):
            records.hold("apps", f"k{number}")
        await records.try_write(store)
        assert len(await keys_of(store, MINE)) == KEYS_MAX

    async def test_a_failed_write_is_logged_and_repeated_by_the_next(
        self, store: MemoryStore, records: HeldRecords, caplog: pytest.LogCaptureFixture
    ) -> None:
        records.hold("apps", "shop")
        store.fail(StoreError("no answer"))
        await records.try_write(store)
        assert "no answer" in caplog.text
        store.fail(None)
        await records.try_write(store)
        assert await keys_of(store, MINE) == ["shop"]

    async def test_a_write_after_the_term_is_left_to_the_next_change(
        self, store: MemoryStore, records: HeldRecords, caplog: pytest.LogCaptureFixture
    ) -> None:
        records.hold("apps", "shop")
        store.fail(NotLeadingError("not now"))
        await records.try_write(store)
        assert caplog.text == ""


class TestClose:
    async def test_the_record_is_deleted(self, store: MemoryStore, records: HeldRecords) -> None:
        records.hold("apps", "shop")
        await records.try_write(store)
        records.release("apps", "shop")
        await records.close(store)
        assert store.keys() == []

    async def test_keys_that_are_still_held_stay(
        self, store: MemoryStore, records: HeldRecords
    ) -> None:
        records.hold("apps", "shop")
        await records.close(store)
        assert await keys_of(store, MINE) == ["shop"]

    async def test_a_process_without_a_record_deletes_none(
        self, store: MemoryStore, records: HeldRecords
    ) -> None:
        await records.close(store)
        assert store.writes == 0

    async def test_a_store_that_fails_does_not_stop_the_end(
        self, store: MemoryStore, records: HeldRecords
    ) -> None:
        records.hold("apps", "shop")
        await records.try_write(store)
        records.release("apps", "shop")
        store.fail(StoreError("no answer"))
        await records.close(store)


class TestOthers:
    def left(self, records: HeldRecords, *held: str) -> list[tuple[str, str]]:
        return records.left_by_others("apps", held.__contains__)

    def test_keys_that_others_held_and_this_process_holds_now_are_left(
        self, records: HeldRecords
    ) -> None:
        records.observe(THEIRS, encoded("shop", "bank"))
        assert self.left(records, "shop") == [("shop", "you")]

    def test_keys_of_other_places_are_not_left(self, records: HeldRecords) -> None:
        records.observe(THEIRS, encoded("shop", place="sites"))
        assert self.left(records, "shop") == []

    def test_the_record_of_this_process_is_not_a_record_of_others(
        self, records: HeldRecords
    ) -> None:
        records.observe(MINE, encoded("shop"))
        assert self.left(records, "shop") == []

    def test_a_deleted_record_has_no_keys(self, records: HeldRecords) -> None:
        records.observe(THEIRS, encoded("shop"))
        records.observe(THEIRS, None)
        assert self.left(records, "shop") == []

    def test_an_invalid_record_has_no_keys(self, records: HeldRecords) -> None:
        records.observe(THEIRS, b"?")
        assert self.left(records, "shop") == []


class TestRemove:
    """Deaths that were counted are removed from the records of others."""

    @pytest.fixture
    def others(self, store: MemoryStore, records: HeldRecords) -> "Others":
        return Others(store, records)

    async def test_a_record_without_other_keys_is_deleted(self, others: "Others") -> None:
        await others.write(encoded("shop"))
        await others.remove("shop")
        assert others.store.keys() == []

    async def test_other_keys_stay(self, others: "Others") -> None:
        await others.write(encoded("shop", "bank"))
        await others.remove("shop")
        assert await keys_of(others.store, THEIRS) == ["bank"]

    async def test_keys_of_other_places_stay(self, others: "Others") -> None:
        await others.write(encoded("shop", place="sites"))
        await others.remove("shop")
        assert await keys_of(others.store, THEIRS) == ["shop"]

    async def test_a_record_without_such_keys_is_not_written(self, others: "Others") -> None:
        await others.write(encoded("bank"))
        writes = others.store.writes
        await others.remove("shop")
        assert others.store.writes == writes

    async def test_an_empty_record_is_deleted(self, others: "Others") -> None:
        await others.write(encoded())
        await others.remove("shop")
        assert others.store.keys() == []

    async def test_a_record_that_its_process_has_changed_stays(self, others: "Others") -> None:
        await others.write(encoded("shop"))
        newest = await others.store.get(THEIRS)
        await others.store.update(THEIRS, encoded("shop", "new"), revision=newest.revision)
        await others.remove("shop")
        assert await keys_of(others.store, THEIRS) == ["shop", "new"]

    async def test_a_record_that_was_deleted_is_no_error(self, others: "Others") -> None:
        await others.write(encoded("shop"))
        await others.store.delete(THEIRS)
        await others.remove("shop")
        with pytest.raises(NotFoundError):
            await others.store.get(THEIRS)


class Others:
    """The record of another process, which this process has seen."""

    def __init__(self, store: MemoryStore, records: HeldRecords) -> None:
        self.store = store
        self._records = records

    async def write(self, value: bytes) -> None:
        """Write the record."""
        await self.store.create(THEIRS, value)
        self._records.observe(THEIRS, value)

    async def remove(self, *held: str) -> None:
        """Remove the keys that this process holds now."""
        await self._records.remove(self.store, "apps", held.__contains__)
