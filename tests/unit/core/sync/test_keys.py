"""Changes and requests put keys on the queue, each with the strongest reason that is due."""

import asyncio
from typing import Any

import pytest

from natsctl import Operation, Primary, kube
from natsctl.core.informer import Informer
from natsctl.core.loop import KeyQueue, PrimaryListener, SyncLoop, skips_invalid
from natsctl.core.quarantine import DEATHS_MAX, Deaths
from natsctl.core.workqueue import Priority
from natsctl.core.writes import Barrier
from natsctl.errors import InvalidInputError
from natsctl.model.store import Applied, Deleted, Listed, Listing, Stored, WatchEvent
from natsctl.testing import MemoryStore
from tests.support.places import Ready, place
from tests.support.stores.sample_objects import THINGS, applied, broken, value


class Keys:
    """The queue of a loop, and the primaries whose changes fill it."""

    def __init__(self) -> None:
        self.store = MemoryStore(THINGS)
        self.loop = SyncLoop[str](_never)
        self.keys = KeyQueue(self.loop)
        self.informer = Informer(self.store, THINGS)
        self.primary = Primary(self.informer, Barrier(), queue=self.loop.queue)

    def apply(self, *events: WatchEvent) -> None:
        for event in events:
            for change in self.informer.cache.apply(event):
                if change is not None:
                    self.keys.primary_changed(self.primary, change)

    def taken(self) -> dict[str, Operation]:
        """Take all keys that are ready, and return the reasons of their syncs."""
        taken = {}
        while (work := self.keys.queue.take_nowait()) is not None:
            taken[work.key] = self.keys.queue.reason(work.key)
            self.keys.queue.settle(work.key)
        return taken

    def priority(self, key: str) -> Priority:
        where = place(self.keys.queue, key)
        assert isinstance(where, Ready)
        return where.priority


async def _never(_key: str) -> None:
    """Sync nothing."""


def last_revision(keys: Keys) -> int | None:
    """Return the revision of the last state that is noted of the deleted object `a`."""
    noted = keys.keys.queue.noted("a")
    return None if noted is None or noted.last is None else noted.last.revision


@pytest.fixture
async def keys() -> Keys:
    keys = Keys()
    keys.apply(Listing("1"), Listed(0))
    return keys


class TestChanges:
    async def test_a_change_is_a_put(self, keys: Keys) -> None:
        keys.apply(applied("a", 1))
        assert keys.taken() == {"a": Operation.PUT}

    async def test_a_deletion_is_a_delete(self, keys: Keys) -> None:
        keys.apply(applied("a", 1), Deleted("a", 2))
        assert keys.taken() == {"a": Operation.DELETE}

    async def test_a_purged_object_is_a_purge(self, keys: Keys) -> None:
        keys.apply(applied("a", 1), Deleted("a", 2, purged=True))
        assert keys.taken() == {"a": Operation.PURGE}

    async def test_a_change_of_the_status_enqueues_nothing(self, keys: Keys) -> None:
        keys.apply(applied("a", 1))
        keys.taken()
        status = value().replace(b'{"spec"', b'{"status": {"x": 1}, "spec"')
        keys.apply(Applied(Stored("a", 2, status)))
        assert keys.taken() == {}

    async def test_a_state_that_was_changed_and_restored_is_a_change(self, keys: Keys) -> None:
        keys.apply(Applied(Stored("a", 1, value(generation=1))))
        keys.taken()
        keys.apply(Applied(Stored("a", 2, value(generation=3))))
        assert keys.taken() == {"a": Operation.PUT}

    async def test_a_live_change_is_urgent_and_a_listed_one_is_not(self, keys: Keys) -> None:
        keys.apply(Listing("1"), applied("a", 1), Listed(1), applied("b", 2))
        assert (keys.priority("a"), keys.priority("b")) == (Priority.RESYNC, Priority.USER)

    async def test_a_change_of_a_key_of_another_process_is_not_enqueued(self, keys: Keys) -> None:
        keys.loop.own.only(())
        keys.apply(applied("a", 1))
        assert keys.taken() == {}

    async def test_the_last_state_of_a_deleted_object_is_kept(self, keys: Keys) -> None:
        keys.apply(applied("a", 1), Deleted("a", 2))
        assert last_revision(keys) == 1

    async def test_the_last_state_is_forgotten_when_the_object_exists_again(
        self, keys: Keys
    ) -> None:
        keys.apply(applied("a", 1), Deleted("a", 2), applied("a", 3))
        assert last_revision(keys) is None

    async def test_a_deletion_without_a_known_state_keeps_none(self, keys: Keys) -> None:
        keys.apply(Deleted("a", 2))
        assert last_revision(keys) is None


class TestInvalidObjects:
    async def test_an_invalid_object_is_skipped(self, keys: Keys) -> None:
        keys.apply(broken("a", 1))
        assert skips_invalid(keys.primary, "a")

    async def test_a_valid_object_is_not_skipped(self, keys: Keys) -> None:
        keys.apply(broken("a", 1), applied("a", 2))
        assert not skips_invalid(keys.primary, "a")

    async def test_a_skipped_object_that_is_back_at_its_last_state_is_synced(
        self, keys: Keys
    ) -> None:
        keys.apply(applied("a", 1), broken("a", 2))
        keys.taken()
        skips_invalid(keys.primary, "a")
        keys.apply(applied("a", 3))
        assert keys.taken() == {"a": Operation.PUT}

    async def test_an_object_that_is_back_before_it_was_skipped_needs_no_sync(
        self, keys: Keys
    ) -> None:
        keys.apply(applied("a", 1), broken("a", 2))
        keys.taken()
        keys.apply(applied("a", 3))
        assert keys.taken() == {}

    async def test_an_object_is_skipped_once(self, keys: Keys) -> None:
        keys.apply(broken("a", 1))
        skips_invalid(keys.primary, "a")
        keys.apply(applied("a", 2))
        keys.taken()
        skips_invalid(keys.primary, "a")
        keys.apply(applied("a", 3))
        assert keys.taken() == {}


class TestRequests:
    async def test_a_request_for_no_key_is_refused(self, keys: Keys) -> None:
        with pytest.raises(InvalidInputError):
            keys.keys.request("", Operation.MANUAL)

    async def test_a_request_is_enqueued_with_its_reason(self, keys: Keys) -> None:
        keys.keys.request("a", Operation.MANUAL)
        assert keys.priority("a") is Priority.USER
        assert keys.taken() == {"a": Operation.MANUAL}

    async def test_a_request_for_later_waits(self, keys: Keys) -> None:
        keys.keys.request("a", Operation.RESYNC, after=10)
        assert keys.taken() == {}
        await asyncio.sleep(10)
        assert keys.taken() == {"a": Operation.RESYNC}

    async def test_a_priority_may_be_given(self, keys: Keys) -> None:
        keys.keys.enqueue("a", Operation.SECONDARY, priority=Priority.RESYNC)
        assert keys.priority("a") is Priority.RESYNC

    async def test_a_request_of_a_person_ends_a_quarantine(self, keys: Keys) -> None:
        deaths = Deaths(count=DEATHS_MAX, last="", state="")
        for key in ("a", "b"):
            keys.loop.paused.quarantine.found(key, deaths)
        keys.keys.enqueue("a", Operation.MANUAL)
        keys.keys.enqueue("b", Operation.RESYNC)
        assert list(keys.loop.paused.quarantine.quarantined) == ["b"]

    async def test_a_resync_of_named_keys_counts_those_of_this_process(self, keys: Keys) -> None:
        keys.keys.hold_only(["a"])
        assert keys.keys.resync(keys.primary, ["a", "b"]) == 1
        assert keys.taken() == {"a": Operation.MANUAL}

    async def test_a_resync_without_keys_syncs_every_primary(self, keys: Keys) -> None:
        keys.apply(applied("a", 1), applied("b", 2))
        keys.taken()
        assert keys.keys.resync(keys.primary, []) == 2
        assert keys.taken() == {"a": Operation.RESYNC, "b": Operation.RESYNC}

    async def test_keys_of_other_processes_are_not_held(self, keys: Keys) -> None:
        keys.apply(applied("a", 1), applied("b", 2))
        keys.keys.hold_only(["a"])
        assert [keys.keys.holds(key) for key in "ab"] == [True, False]
        assert keys.keys.count(keys.primary.informer.cache) == 1


class TestGainedKeys:
    async def test_primaries_that_exist_are_enqueued(self, keys: Keys) -> None:
        keys.apply(applied("a", 1), applied("b", 2))
        keys.taken()
        await PrimaryListener(keys.keys, keys.primary).gained("a".__eq__)
        assert keys.taken() == {"a": Operation.RESYNC}

    async def test_primaries_that_were_deleted_are_enqueued(self, keys: Keys) -> None:
        for key in ("a", "b", "c"):
            await keys.store.create(key, value())
            await keys.store.delete(key)
        keys.apply(applied("c", 9))  # it exists again
        keys.taken()
        await PrimaryListener(keys.keys, keys.primary).gained(("a", "c").__contains__)
        assert keys.taken() == {"a": Operation.RESYNC, "c": Operation.RESYNC}

    async def test_deletions_that_the_cache_has_noted_are_enqueued(self) -> None:
        keys = Keys()
        informer = Informer(keys.store, THINGS, notes_deleted=True)
        primary = Primary(informer, Barrier())
        for event in (Listing("1"), Deleted("a", 1), Listed(1)):
            list(informer.cache.apply(event))
        await PrimaryListener(keys.keys, primary).gained(lambda _: True)
        assert keys.taken() == {"a": Operation.RESYNC}

    async def test_a_cluster_is_not_asked_for_deletions(self) -> None:
        keys = Keys()
        store = MemoryStore(kube("v1", "ConfigMap", namespace="default"))
        await store.create("a", b'{"metadata": {"name": "a"}}')
        await store.delete("a")
        primary = Primary[Any](Informer(store, store.kind), Barrier())
        await PrimaryListener(keys.keys, primary).gained(lambda _: True)
        assert keys.taken() == {}

    async def test_what_was_noted_of_lost_keys_is_forgotten(self, keys: Keys) -> None:
        for key in ("a", "b"):
            keys.apply(broken(key, 1))
            assert skips_invalid(keys.primary, key)
            keys.apply(Deleted(key, 2))
        await keys.keys.queue.keep("b".__eq__)
        assert keys.keys.queue.noted("a") is None
        assert keys.keys.queue.noted("b") is not None
        assert keys.taken() == {"b": Operation.DELETE}
