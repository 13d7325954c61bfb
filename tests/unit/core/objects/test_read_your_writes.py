"""Read your writes: a sync never reads a state older than its key's last write."""

import asyncio

import pytest

from natsctl.core.compare_and_set import Written
from natsctl.core.informer import Informer
from natsctl.core.sync import Sync
from natsctl.core.writes import Barrier
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
)
from natsctl.model.store import Deleted, Listed, Listing, Stored, WatchEvent
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, applied, broken, stored, value


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(THINGS)


@pytest.fixture
def informer(store: MemoryStore) -> Informer[Thing]:
    """An informer whose cache gets its events from the test."""
    informer = Informer(store, THINGS)
    show(informer, Listing("1"), Listed(0))
    return informer


@pytest.fixture
def barrier() -> Barrier:
    return Barrier(timeout_s=10)


def show(informer: Informer[Thing], *events: WatchEvent) -> None:
    for event in events:
        list(informer.cache.apply(event))


def wrote(barrier: Barrier, informer: Informer[Thing], written: Stored) -> None:
    barrier.wrote(informer, written.key, Written(written.revision, written))


def now() -> float:
    return asyncio.get_running_loop().time()


class TestReads:
    async def test_a_sync_reads_its_write_before_the_cache_shows_it(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        mine = stored("x", 1, "mine")
        with Sync("a"):
            assert barrier.read(informer, "x") is None
            wrote(barrier, informer, mine)
            assert barrier.read(informer, "x") == mine

    async def test_a_sync_does_not_read_an_object_that_it_deleted(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        show(informer, applied("x", 1))
        with Sync("a"):
            barrier.wrote(informer, "x", Written(2, None))
            assert barrier.read(informer, "x") is None

    async def test_a_cached_state_newer_than_the_write_is_read(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1, "mine"))
            show(informer, applied("x", 1, "mine"), applied("x", 2, "theirs"))
            assert barrier.read(informer, "x") == stored("x", 2, "theirs")

    async def test_a_cached_state_older_than_the_write_is_not_read(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 3, "mine"))
            show(informer, applied("x", 2, "older"))
            assert barrier.read(informer, "x") == stored("x", 3, "mine")

    async def test_the_next_sync_of_the_key_reads_the_write(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1, "mine"))
        with Sync("a"):
            assert barrier.read(informer, "x") == stored("x", 1, "mine")

    async def test_other_syncs_and_other_tasks_read_the_cache(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1, "mine"))
            with Sync("b"):
                assert barrier.read(informer, "x") is None
        assert barrier.read(informer, "x") is None

    async def test_concurrent_syncs_do_not_read_each_others_writes(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        async def sync(key: str) -> Stored | None:
            with Sync(key):
                wrote(barrier, informer, stored("x", 1, key))
                await asyncio.sleep(1)
                return barrier.read(informer, "x")

        async with asyncio.TaskGroup() as group:
            first_sync, second_sync = (group.create_task(sync(key)) for key in ("a", "b"))
        assert (first_sync.result(), second_sync.result()) == (
            stored("x", 1, "a"),
            stored("x", 1, "b"),
        )

    async def test_a_task_started_by_a_sync_reads_and_writes_for_its_key(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        async def write() -> None:
            wrote(barrier, informer, stored("x", 1, "mine"))

        with Sync("a"):
            await asyncio.create_task(write())
            assert barrier.read(informer, "x") == stored("x", 1, "mine")

    async def test_a_write_outside_a_sync_is_not_recorded(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        wrote(barrier, informer, stored("x", 1, "mine"))
        with Sync("a"):
            assert barrier.read(informer, "x") is None

    async def test_a_write_after_a_sync_is_not_recorded(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            pass
        wrote(barrier, informer, stored("x", 1, "mine"))
        assert "a" not in barrier.unseen

    async def test_newest_returns_the_written_state_or_the_cached_one_even_if_invalid(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        show(informer, applied("x", 1, "good"), broken("x", 2))
        with Sync("a"):
            newest = barrier.newest(informer, "x")
            assert newest is not None
            assert newest.revision == 2
            assert barrier.read(informer, "x") == stored("x", 1, "good")
            wrote(barrier, informer, stored("x", 3, "mine"))
            assert barrier.newest(informer, "x") == stored("x", 3, "mine")

    async def test_stores_are_tracked_separately(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        other_informer = Informer(store, THINGS)
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1, "mine"))
            assert barrier.read(other_informer, "x") is None

    async def test_keys_include_the_created_and_lack_the_deleted_objects(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        show(informer, applied("kept", 1), applied("changed", 2), applied("deleted", 3))
        with Sync("a"):
            wrote(barrier, informer, stored("created", 4))
            wrote(barrier, informer, stored("changed", 5))
            barrier.wrote(informer, "deleted", Written(6, None))
            assert sorted(barrier.keys(informer)) == ["changed", "created", "kept"]
        assert sorted(barrier.keys(informer)) == ["changed", "deleted", "kept"]

    async def test_written_keys_are_those_of_one_store(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        other_informer = Informer(store, THINGS)
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
            wrote(barrier, other_informer, stored("y", 1))
            assert barrier.written_keys(informer) == {"x"}
            assert barrier.written_keys(other_informer) == {"y"}

    async def test_written_keys_are_those_of_the_sync(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            assert barrier.written_keys(informer) == set()
            wrote(barrier, informer, stored("x", 1))
            barrier.wrote(informer, "y", Written(2, None))
            assert barrier.written_keys(informer) == {"x", "y"}
        with Sync("b"):
            assert barrier.written_keys(informer) == set()


class TestWait:
    async def test_a_key_without_writes_does_not_wait(self, barrier: Barrier) -> None:
        await barrier.wait("a")
        assert now() == 0

    async def test_wait_ends_when_the_cache_has_the_write(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 2))
        waiting = asyncio.create_task(barrier.wait("a"))
        await asyncio.sleep(3)
        show(informer, applied("y", 1))
        await asyncio.sleep(0)
        assert not waiting.done()
        show(informer, applied("x", 2))
        await waiting
        assert barrier.waited_s == 3
        assert barrier.timeouts == 0

    async def test_a_cache_that_catches_up_needs_no_read_of_the_store(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
        store.fail(StoreMissingError("the store is not read"))
        waiting = asyncio.create_task(barrier.wait("a"))
        await asyncio.sleep(1)
        show(informer, applied("x", 1))
        await waiting

    async def test_any_later_revision_of_the_store_ends_the_wait(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            barrier.wrote(informer, "x", Written(2, None))
        show(informer, Deleted("other", 3))
        await barrier.wait("a")
        assert now() == 0

    async def test_wait_covers_every_store(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        other_informer = Informer(store, THINGS)
        show(other_informer, Listing("1"), Listed(0))
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
            wrote(barrier, other_informer, stored("x", 1))
        waiting = asyncio.create_task(barrier.wait("a"))
        show(informer, applied("x", 1))
        await asyncio.sleep(1)
        assert not waiting.done()
        show(other_informer, applied("x", 1))
        await waiting

    async def test_other_keys_do_not_wait(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
        await barrier.wait("b")
        assert now() == 0

    async def test_wait_for_a_deletion_ends_when_the_cache_lacks_the_object(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        show(informer, applied("x", 1))
        with Sync("a"):
            barrier.wrote(informer, "x", Written(2, None))
        waiting = asyncio.create_task(barrier.wait("a"))
        show(informer, applied("y", 3))
        await asyncio.sleep(1)
        assert not waiting.done()
        show(informer, Deleted("x", 2))
        await waiting
        assert (now(), barrier.timeouts) == (1, 0)


class TestLostAnswers:
    """A write whose answer is lost may have taken effect."""

    @pytest.mark.parametrize("error", [StoreTimeoutError("late"), asyncio.CancelledError()])
    async def test_the_next_sync_begins_with_the_stored_object(
        self,
        barrier: Barrier,
        informer: Informer[Thing],
        store: MemoryStore,
        error: BaseException,
    ) -> None:
        mine = await store.create("x", value("mine"))
        with Sync("a"), pytest.raises(type(error)), barrier.writing(informer, "x"):
            raise error
        assert "a" in barrier.unseen
        await barrier.wait("a")
        with Sync("a"):
            assert barrier.read(informer, "x") == mine
        with Sync("b"):
            assert barrier.read(informer, "x") is None  # the cache is behind

    async def test_a_write_that_did_not_take_effect_leaves_the_stored_object(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        before = await store.create("x", value("before"))
        show(informer, applied("x", before.revision, "before"))
        with Sync("a"), pytest.raises(StoreTimeoutError), barrier.writing(informer, "x"):
            raise StoreTimeoutError("late")
        await barrier.wait("a")
        with Sync("a"):
            assert barrier.read(informer, "x") == before

    async def test_the_same_sync_still_reads_its_earlier_write(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        mine = stored("x", 1, "mine")
        with Sync("a"):
            wrote(barrier, informer, mine)
            with pytest.raises(StoreTimeoutError), barrier.writing(informer, "x"):
                raise StoreTimeoutError("late")
            assert barrier.read(informer, "x") == mine

    async def test_a_later_answer_makes_the_result_known(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            with pytest.raises(StoreTimeoutError), barrier.writing(informer, "x"):
                raise StoreTimeoutError("late")
            mine = stored("x", 5, "mine")
            wrote(barrier, informer, mine)
        show(informer, applied("x", 5, "mine"))
        await barrier.wait("a")  # the store does not have the object
        assert store.keys() == []
        assert "a" not in barrier.unseen

    @pytest.mark.parametrize("error", [ConflictError("changed"), NotFoundError("gone")])
    async def test_a_refused_write_needs_no_read(
        self, barrier: Barrier, informer: Informer[Thing], error: StoreError
    ) -> None:
        with Sync("a"), pytest.raises(type(error)), barrier.writing(informer, "x"):
            raise error
        assert "a" not in barrier.unseen

    async def test_a_write_outside_of_a_sync_needs_no_read(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with pytest.raises(StoreTimeoutError), barrier.writing(informer, "x"):
            raise StoreTimeoutError("late")
        assert not barrier.unseen


class TestDeadline:
    async def test_after_the_deadline_the_store_is_read(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, await store.create("x", value("mine")))
            theirs = await store.update("x", value("theirs"), revision=1)
            await barrier.wait("a")
            assert now() == 10
            assert barrier.read(informer, "x") == theirs
        assert barrier.timeouts == 1

    async def test_an_object_missing_in_the_store_is_read_as_deleted(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            created = await store.create("x", value("mine"))
            show(informer, applied("x", 0, "older"))
            wrote(barrier, informer, created)
            await store.delete("x")
            await barrier.wait("a")
            assert barrier.read(informer, "x") is None

    async def test_all_stores_share_one_deadline(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            for key in ("x", "y", "z"):
                wrote(barrier, informer, await store.create(key, value()))
            await barrier.wait("a")
        assert now() == 10
        assert barrier.timeouts == 3

    async def test_an_unreadable_store_is_an_error(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, await store.create("x", value()))
            store.fail(StoreMissingError("no bucket"))
            with pytest.raises(StoreMissingError):
                await barrier.wait("a")

    async def test_a_cache_that_has_caught_up_is_read_again(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            mine = await store.create("x", value("mine"))
            wrote(barrier, informer, mine)
            await barrier.wait("a")
            show(informer, applied("x", 1, "mine"), applied("x", 2, "theirs"))
            assert barrier.read(informer, "x") == stored("x", 2, "theirs")
            await barrier.wait("a")
        assert now() == 10

    async def test_a_state_older_than_the_deletion_in_the_store_is_not_read(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            created = await store.create("x", value("first"))
            wrote(barrier, informer, created)
            await store.update("x", value("second"), revision=1)
            await store.delete("x")
            await barrier.wait("a")
            show(informer, applied("x", 2, "second"))
            assert barrier.read(informer, "x") is None

    async def test_an_object_that_vanished_from_the_store_is_not_read_from_the_cache(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        show(informer, applied("x", 1))
        with Sync("a"):
            wrote(barrier, informer, stored("x", 2))
            await barrier.wait("a")
            assert barrier.read(informer, "x") is None

    async def test_a_deleted_object_is_not_read_from_a_cache_that_still_has_it(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        show(informer, applied("x", 1))
        with Sync("a"):
            barrier.wrote(informer, "x", Written(2, None))
            show(informer, applied("y", 3))
            assert barrier.read(informer, "x") is None
            show(informer, Deleted("x", 2))
            show(informer, applied("x", 4, "theirs"))
            assert barrier.read(informer, "x") == stored("x", 4, "theirs")

    async def test_the_time_of_all_waits_is_counted(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            for wait in (1, 2):
                wrote(barrier, informer, await store.create(f"x{wait}", value()))
                await barrier.wait("a")
                assert barrier.waited_s == 10 * wait


class TestRecreatedStores:
    async def test_a_write_to_a_lost_store_is_not_waited_for(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1000, "lost"))
        show(informer, Listing("2"), Listed(3))
        with Sync("a"):
            await barrier.wait("a")
            assert now() == 0
            assert barrier.read(informer, "x") is None

    async def test_objects_of_the_new_store_are_read(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1000, "lost"))
        created = await store.create("x", value("new"))
        show(informer, Listing("2"), Listed(0))
        with Sync("a"):
            await barrier.wait("a")
            assert barrier.read(informer, "x") == created

    async def test_later_writes_are_waited_for(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1000, "lost"))
        show(informer, Listing("2"), Listed(0))
        with Sync("b"):
            wrote(barrier, informer, stored("y", 1))
        waiting = asyncio.create_task(barrier.wait("b"))
        await asyncio.sleep(1)
        assert not waiting.done()
        show(informer, applied("y", 1))
        await waiting

    async def test_writes_of_other_keys_do_not_drop_a_write_to_a_lost_store(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1000, "lost"))
        created = await store.create("x", value("new"))
        show(informer, Listing("2"), Listed(0))
        with Sync("b"):
            wrote(barrier, informer, stored("y", 2))
        with Sync("a"):
            await barrier.wait("a")
            assert barrier.read(informer, "x") == created

    async def test_a_write_to_a_lost_store_does_not_keep_later_writes(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1000, "lost"))
        show(informer, Listing("2"), Listed(0))
        with Sync("b"):
            wrote(barrier, informer, stored("y", 1))
        show(informer, applied("y", 1))
        with Sync("c"):
            wrote(barrier, informer, stored("z", 2))
        assert "b" not in barrier.unseen


class TestMemory:
    async def test_a_write_that_the_cache_has_is_forgotten(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
        assert "a" in barrier.unseen
        show(informer, applied("x", 1))
        await barrier.wait("a")
        assert "a" not in barrier.unseen
        with Sync("a"):
            assert barrier.written_keys(informer) == set()

    async def test_a_later_write_drops_older_writes_of_other_keys(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
        show(informer, applied("x", 1))
        with Sync("b"):
            wrote(barrier, informer, stored("y", 2))
        assert "a" not in barrier.unseen
        assert "b" in barrier.unseen

    async def test_a_late_store_keeps_no_writes_of_other_stores(
        self, barrier: Barrier, informer: Informer[Thing], store: MemoryStore
    ) -> None:
        behind = Informer(store, THINGS)
        with Sync("a"):
            wrote(barrier, behind, stored("x", 1))
        with Sync("b"):
            wrote(barrier, informer, stored("x", 1))
        show(informer, applied("x", 1))
        with Sync("c"):
            wrote(barrier, informer, stored("y", 2))
        assert [key in barrier.unseen for key in ("a", "b", "c")] == [True, False, True]

    async def test_a_write_that_the_cache_has_does_not_drop_a_later_one(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
            wrote(barrier, informer, stored("x", 2))
        show(informer, applied("x", 1))
        with Sync("b"):
            wrote(barrier, informer, stored("y", 3))
        assert "a" in barrier.unseen
        show(informer, applied("x", 2))
        with Sync("b"):
            wrote(barrier, informer, stored("y", 4))
        assert "a" not in barrier.unseen

    async def test_a_write_that_the_cache_has_does_not_drop_one_of_another_object(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1))
            wrote(barrier, informer, stored("y", 2))
        show(informer, applied("x", 1))
        with Sync("b"):
            wrote(barrier, informer, stored("z", 3))
        with Sync("a"):
            assert barrier.read(informer, "y") == stored("y", 2)

    async def test_the_later_of_two_writes_counts(
        self, barrier: Barrier, informer: Informer[Thing]
    ) -> None:
        with Sync("a"):
            wrote(barrier, informer, stored("x", 1, "one"))
            wrote(barrier, informer, stored("x", 2, "two"))
            show(informer, applied("x", 1, "one"))
            assert barrier.read(informer, "x") == stored("x", 2, "two")
        waiting = asyncio.create_task(barrier.wait("a"))
        await asyncio.sleep(1)
        assert not waiting.done()
        show(informer, applied("x", 2, "two"))
        await waiting
