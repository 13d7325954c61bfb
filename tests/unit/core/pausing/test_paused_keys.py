"""A key is paused by its annotation; a deleted key by its last state, until a person resumes it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from natsctl.core.informer import Informer
from natsctl.core.pausing.paused_keys import PausedKeys
from natsctl.core.pausing.quarantine import DEATHS_MAX, Deaths
from natsctl.core.table import Keeping
from natsctl.model.objects import PAUSED
from natsctl.model.pause import Pause
from natsctl.model.store import Applied, Change, Deleted, Listed, Listing, Stored
from natsctl.testing import MemoryStore
from tests.support.controllers.app_controller import APPS, App, put

VALUE = {
    "metadata": {"annotations": {"natsctl.io/paused": "true"}},
    "spec": {"text": "hi", "parts": ["main"]},
}


@asynccontextmanager
async def following(
    store: MemoryStore, keeps: Callable[[str], bool]
) -> AsyncIterator[tuple[Informer[App], PausedKeys]]:
    """Run an informer that keeps some values, and follow the pauses of its objects."""
    informer, paused = Informer(store, APPS, keeping=Keeping(keeps)), PausedKeys()
    paused.follow((informer,))

    def observe(change: Change[App]) -> None:
        paused.observe(change)

    run = asyncio.create_task(informer.run())
    await informer.cache.synced.wait()
    async with informer.subscribe(observe):
        yield informer, paused
    paused.close()
    run.cancel()


async def test_the_state_of_an_object_whose_value_is_not_kept_is_read_from_the_store() -> None:
    store = MemoryStore(APPS)
    await put(store, "shop", VALUE)
    async with following(store, lambda _: False) as (_, paused):
        assert paused.state("shop") is None
        assert await paused.read_state("shop") == APPS.digest((await store.get("shop")).value)


async def test_the_state_of_an_object_that_does_not_exist_is_empty() -> None:
    async with following(MemoryStore(APPS), lambda _: False) as (_, paused):
        assert await paused.read_state("shop") == ""


async def test_a_pause_is_forgotten_with_the_value_and_known_when_it_is_read_again() -> None:
    store, kept = MemoryStore(APPS), {"shop"}
    await put(store, "shop", VALUE)
    async with following(store, kept.__contains__) as (informer, paused):
        assert list(paused.pauses) == ["shop"]
        kept.clear()
        await informer.release(("shop",))
        paused.forget_unread()
        assert not paused.pauses
        kept.add("shop")
        await informer.fill((await store.get("shop"),))
        assert list(paused.pauses) == ["shop"]


class Listener:
    """Records the keys that are paused and resumed."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def paused(self, key: str, pause: Pause) -> None:
        self.events.append(("paused", key))

    def resumed(self, key: str, pause: Pause, *, pending: bool) -> None:
        self.events.append(("resumed with a sync" if pending else "resumed", key))


class Keys:
    """The objects of one bucket, as the paused keys of a loop see them."""

    def __init__(self, *, records: bool = True) -> None:
        self.unrecorded: list[str] = []
        self.paused = PausedKeys(self.unrecorded.append)
        self.informer = Informer(MemoryStore(APPS), APPS)
        self.listener = Listener()
        self._revision = 0
        self.paused.follow((self.informer,), records=records)
        self.paused.listen(self.listener)
        for event in (Listing("1"), Listed(0)):
            self.informer.cache.apply(event)

    def value(self, pause: str | None, text: str = "hi") -> bytes:
        annotations = {} if pause is None else {PAUSED: pause}
        return msgspec.json.encode(
            {"metadata": {"annotations": annotations}, "spec": {"text": text}}
        )

    def put(self, key: str, pause: str | None = None, text: str = "hi") -> None:
        """Write the object with this annotation."""
        self._revision += 1
        event = Applied(Stored(key, self._revision, self.value(pause, text)))
        for change in self.informer.cache.apply(event):
            if change is not None:
                self.paused.observe(change)

    def list(self, **pauses: str) -> None:
        """List objects with these annotations."""
        self.informer.cache.apply(Listing("1"))
        for key, pause in pauses.items():
            self._revision += 1
            self.informer.cache.apply(Applied(Stored(key, self._revision, self.value(pause))))
        for change in self.informer.cache.apply(Listed(self._revision)):
            if change is not None:
                self.paused.observe(change)

    def delete(self, key: str) -> None:
        self._revision += 1
        for change in self.informer.cache.apply(Deleted(key, self._revision)):
            if change is not None:
                self.paused.observe(change)


@pytest.fixture
async def keys() -> AsyncIterator[Keys]:
    keys = Keys()
    yield keys
    keys.paused.close()


def in_days(days: int) -> str:
    """Return a pause that ends after so many days."""
    return f"until={datetime.now(UTC) + timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


DAY_S = 24 * 3600.0


class TestAnnotations:
    async def test_an_annotated_object_is_paused(self, keys: Keys) -> None:
        keys.put("shop", "true")
        assert keys.paused.pauses == {"shop": Pause()}

    async def test_an_object_without_the_annotation_is_not_paused(self, keys: Keys) -> None:
        keys.put("shop", None, "paused by nobody")
        assert not keys.paused.pauses

    async def test_a_removed_annotation_resumes_the_key(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.put("shop")
        assert not keys.paused.pauses

    async def test_pauses_and_resumptions_are_notified(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.put("shop")
        assert keys.listener.events == [("paused", "shop"), ("resumed", "shop")]

    async def test_a_pause_from_before_the_start_is_not_notified(self, keys: Keys) -> None:
        keys.list(shop="true")
        assert (list(keys.paused.pauses), keys.listener.events) == (["shop"], [])

    async def test_a_pause_that_a_relisting_shows_is_notified(self, keys: Keys) -> None:
        keys.put("shop")
        keys.list(shop="true")
        assert keys.listener.events == [("paused", "shop")]

    async def test_another_reason_is_notified(self, keys: Keys) -> None:
        keys.put("shop", "reason=one")
        keys.put("shop", "reason=two")
        assert len(keys.listener.events) == 2

    async def test_the_same_pause_is_notified_once(self, keys: Keys) -> None:
        keys.put("shop", "reason=one")
        keys.put("shop", "reason=one", "new")
        assert len(keys.listener.events) == 1

    async def test_a_change_of_a_paused_key_is_held_back(self, keys: Keys) -> None:
        keys.put("shop", "true")
        assert keys.paused.holds_back("shop")
        assert keys.paused.is_pending("shop")

    async def test_a_change_of_another_key_is_not_held_back(self, keys: Keys) -> None:
        keys.put("shop")
        assert not keys.paused.holds_back("shop")
        assert not keys.paused.is_pending("shop")

    async def test_a_resumption_states_whether_a_sync_was_held_back(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.paused.holds_back("shop")
        keys.put("shop")
        assert keys.listener.events[-1] == ("resumed with a sync", "shop")

    async def test_a_sync_is_held_back_once(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.paused.holds_back("shop")
        keys.put("shop")
        keys.put("shop", "true")
        keys.put("shop")
        assert keys.listener.events[-1] == ("resumed", "shop")

    async def test_syncs_of_keys_that_leave_are_not_held_back_any_more(self, keys: Keys) -> None:
        for key in ("shop", "bank"):
            keys.put(key, "true")
            keys.paused.holds_back(key)
        await keys.paused.keep("bank".__eq__)
        assert [keys.paused.is_pending(key) for key in ("shop", "bank")] == [False, True]

    async def test_only_paused_keys_of_this_process_are_counted(self) -> None:
        paused = PausedKeys(holds="shop".__eq__)
        for key in ("shop", "bank"):
            paused.recover(key, Pause())
        assert len(paused) == 1


class TestEnds:
    async def test_a_pause_ends_at_its_time(self, keys: Keys) -> None:
        keys.put("shop", in_days(10))
        await asyncio.sleep(5 * DAY_S)
        assert list(keys.paused.pauses) == ["shop"]
        await asyncio.sleep(6 * DAY_S)
        assert not keys.paused.pauses

    async def test_the_end_is_notified(self, keys: Keys) -> None:
        keys.put("shop", in_days(10))
        await asyncio.sleep(11 * DAY_S)
        assert keys.listener.events == [("paused", "shop"), ("resumed", "shop")]

    async def test_pauses_end_one_after_the_other(self, keys: Keys) -> None:
        keys.put("late", in_days(20))
        keys.put("early", in_days(10))
        await asyncio.sleep(15 * DAY_S)
        assert list(keys.paused.pauses) == ["late"]
        await asyncio.sleep(10 * DAY_S)
        assert not keys.paused.pauses

    async def test_a_pause_that_has_ended_pauses_nothing(self, keys: Keys) -> None:
        keys.put("shop", in_days(-1))
        assert not keys.paused.pauses

    async def test_a_pause_without_an_end_lasts(self, keys: Keys) -> None:
        keys.put("late", in_days(1))
        keys.put("shop", "true")
        await asyncio.sleep(1000 * DAY_S)
        assert list(keys.paused.pauses) == ["shop"]

    async def test_no_pause_ends_after_the_loop_has_ended(self, keys: Keys) -> None:
        keys.put("shop", in_days(10))
        keys.paused.close()
        await asyncio.sleep(11 * DAY_S)
        assert list(keys.paused.pauses) == ["shop"]


class TestDeletedObjects:
    async def test_a_deleted_object_stays_paused(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.delete("shop")
        assert list(keys.paused.pauses) == ["shop"]

    async def test_a_deletion_without_records_ends_the_pause(self) -> None:
        keys = Keys(records=False)
        keys.put("shop", "true")
        keys.delete("shop")
        assert not keys.paused.pauses

    async def test_a_pause_without_a_record_has_to_be_recorded(self, keys: Keys) -> None:
        keys.put("shop", "reason=one")
        assert keys.paused.needs_record("shop") == Pause(reason="one")
        assert "shop" in keys.unrecorded

    async def test_a_recorded_pause_needs_no_record(self, keys: Keys) -> None:
        keys.put("shop", "reason=one")
        keys.paused.recorded("shop", Pause(reason="one"))
        assert keys.paused.needs_record("shop") is None

    async def test_the_record_of_another_pause_has_to_be_replaced(self, keys: Keys) -> None:
        keys.put("shop", "reason=one")
        keys.paused.recorded("shop", Pause(reason="two"))
        assert keys.paused.needs_record("shop") == Pause(reason="one")

    async def test_the_record_of_a_resumed_object_is_superfluous(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.paused.recorded("shop", Pause())
        assert not keys.paused.has_superfluous_record("shop")
        keys.put("shop")
        assert keys.paused.has_superfluous_record("shop")

    async def test_a_key_without_a_record_has_no_superfluous_record(self, keys: Keys) -> None:
        keys.put("shop")
        assert not keys.paused.has_superfluous_record("shop")

    async def test_the_record_of_a_deleted_object_pauses_its_key(self, keys: Keys) -> None:
        keys.paused.recorded("shop", Pause())
        assert list(keys.paused.pauses) == ["shop"]
        assert keys.listener.events == []

    async def test_the_annotation_of_an_existing_object_counts_and_not_its_record(
        self, keys: Keys
    ) -> None:
        keys.put("shop")
        keys.paused.recorded("shop", Pause())
        assert not keys.paused.pauses

    async def test_a_deleted_record_resumes_a_deleted_key(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.paused.recorded("shop", Pause())
        keys.delete("shop")
        keys.paused.unrecorded("shop")
        assert not keys.paused.pauses

    async def test_a_deleted_record_does_not_resume_an_existing_object(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.paused.recorded("shop", Pause())
        keys.paused.unrecorded("shop")
        assert list(keys.paused.pauses) == ["shop"]

    async def test_the_absence_of_an_unknown_record_resumes_nothing(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.delete("shop")
        keys.paused.unrecorded("shop")
        assert list(keys.paused.pauses) == ["shop"]

    async def test_a_record_without_a_pause_resumes_a_deleted_key(self, keys: Keys) -> None:
        keys.put("shop", "true")
        keys.delete("shop")
        keys.paused.recorded("shop", None)
        assert not keys.paused.pauses

    async def test_a_record_without_a_pause_stays_until_the_deleted_key_is_synced(
        self, keys: Keys
    ) -> None:
        keys.paused.recorded("shop", None)
        assert not keys.paused.has_superfluous_record("shop")
        keys.unrecorded.clear()
        keys.paused.synced_deleted("shop")
        assert keys.paused.has_superfluous_record("shop")
        assert keys.unrecorded == ["shop"]

    async def test_an_object_that_is_created_again_must_be_synced_again_when_it_is_deleted(
        self, keys: Keys
    ) -> None:
        keys.paused.recorded("shop", None)
        keys.paused.synced_deleted("shop")
        keys.put("shop")
        keys.delete("shop")
        assert not keys.paused.has_superfluous_record("shop")

    async def test_a_synced_deletion_without_a_record_writes_none(self, keys: Keys) -> None:
        keys.paused.synced_deleted("shop")
        assert keys.unrecorded == []

    async def test_a_paused_last_state_in_the_history_pauses_a_deleted_key(
        self, keys: Keys
    ) -> None:
        assert keys.paused.recover("shop", Pause())
        assert list(keys.paused.pauses) == ["shop"]

    async def test_a_key_that_a_person_resumed_is_not_paused_by_its_history(
        self, keys: Keys
    ) -> None:
        keys.paused.recorded("shop", None)
        assert not keys.paused.recover("shop", Pause())

    async def test_all_records_are_checked_when_the_keys_move(self, keys: Keys) -> None:
        keys.put("paused", "true")
        keys.paused.recorded("recorded", None)
        keys.paused.quarantine.over.add("over")
        keys.unrecorded.clear()
        keys.paused.check_records()
        assert sorted(keys.unrecorded) == ["over", "paused", "recorded"]


class TestConcerns:
    """Most changes concern no pause, and are not observed."""

    def change(self, keys: Keys, pause: str | None = None) -> Change[App]:
        stored = Stored("shop", 1, keys.value(pause))
        return Change(APPS, "shop", None, stored)

    async def test_an_annotation_is_a_concern(self, keys: Keys) -> None:
        assert keys.paused.concerns(self.change(keys, "true"))

    async def test_a_change_of_a_key_without_a_pause_is_no_concern(self, keys: Keys) -> None:
        assert not keys.paused.concerns(self.change(keys))

    async def test_a_change_of_an_annotated_key_is_a_concern(self, keys: Keys) -> None:
        keys.put("shop", "true")
        assert keys.paused.concerns(self.change(keys))

    async def test_a_change_of_a_recorded_key_is_a_concern(self, keys: Keys) -> None:
        keys.paused.recorded("shop", None)
        assert keys.paused.concerns(self.change(keys))

    async def test_a_change_of_a_key_with_deaths_is_a_concern(self, keys: Keys) -> None:
        keys.paused.quarantine.found("shop", Deaths(count=1, last="", state=""))
        assert keys.paused.concerns(self.change(keys))

    async def test_a_deletion_is_no_concern(self, keys: Keys) -> None:
        assert not keys.paused.concerns(Change(APPS, "shop", None, None))


class TestQuarantine:
    def quarantine(self, keys: Keys) -> None:
        state = keys.paused.state("shop") or ""
        deaths = Deaths(count=DEATHS_MAX, last="2026-01-01T00:00:00Z", state=state)
        keys.paused.quarantine.found("shop", deaths)

    async def test_a_quarantined_key_is_held_back(self, keys: Keys) -> None:
        keys.put("shop")
        self.quarantine(keys)
        assert keys.paused.holds_back("shop")

    async def test_a_change_of_the_desired_state_ends_the_quarantine(self, keys: Keys) -> None:
        keys.put("shop")
        self.quarantine(keys)
        keys.put("shop", None, "new")
        assert not keys.paused.holds_back("shop")

    async def test_a_write_of_the_same_state_does_not_end_the_quarantine(self, keys: Keys) -> None:
        keys.put("shop")
        self.quarantine(keys)
        keys.put("shop")
        assert keys.paused.holds_back("shop")


def test_the_records_of_a_bucket_have_its_name() -> None:
    paused = PausedKeys()
    paused.follow((Informer(MemoryStore(APPS), APPS),))
    assert (paused.bucket, paused.place) == ("apps", "apps")


def test_objects_without_records_have_no_bucket() -> None:
    paused = PausedKeys()
    paused.follow((Informer(MemoryStore(APPS), APPS),), records=False)
    assert (paused.bucket, paused.place) == ("", "")
