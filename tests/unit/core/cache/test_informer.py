"""An informer keeps a cache equal to its store, whatever happens, and tells its subscribers."""

import asyncio
import logging

import pytest

from natsctl.core.cache.cache import Invalid
from natsctl.core.cache.informer import Informer
from natsctl.errors import PermissionDeniedError, StoreMissingError
from natsctl.model.store import Change
from natsctl.testing.memory import MemoryStore
from tests.support.stores.sample_objects import THINGS, Thing, caught_up, informed, value


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(THINGS)


@pytest.fixture
def informer(store: MemoryStore) -> Informer[Thing]:
    return Informer(store, THINGS)


class Told:
    """What a subscriber was told."""

    def __init__(self) -> None:
        self.changes: list[Change[Thing]] = []

    def __call__(self, change: Change[Thing]) -> None:
        self.changes.append(change)

    @property
    def actions(self) -> list[tuple[str, str]]:
        return [(change.key, change.action.value) for change in self.changes]


@pytest.fixture
def told() -> Told:
    return Told()


class TestCaching:
    async def test_it_has_what_was_there_before(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        created = await store.create("a", value())
        async with informed(informer):
            assert informer.cache.get("a") == created

    async def test_it_follows_every_change(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            await store.create("a", value())
            created = await store.create("b", value())
            await store.delete("a")
            await asyncio.sleep(0.01)
            assert (informer.cache.get("a"), informer.cache.get("b")) == (None, created)

    async def test_it_goes_on_after_its_watch_broke(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            store.break_watches()
            created = await store.create("a", value())
            await asyncio.sleep(1)
            assert informer.cache.get("a") == created

    async def test_it_finds_what_was_purged_behind_its_back(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        await store.create("a", value())
        async with informed(informer):
            store.vanish("a")
            store.break_watches()
            await asyncio.sleep(1)
            assert informer.cache.get("a") is None

    async def test_it_has_what_is_in_a_store_that_was_recreated(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        for key in ("a", "b"):
            await store.create(key, value("old"))
        async with informed(informer):
            before = informer.cache.incarnation
            store.recreate()
            created = await store.create("b", value("new"))
            await asyncio.sleep(1)
            assert (informer.cache.get("a"), informer.cache.get("b")) == (None, created)
            assert informer.cache.incarnation != before

    async def test_leaving_closes_its_watch(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            assert store.watches == 1
        assert store.watches == 0


class TestBreaking:
    async def test_a_store_that_fails_is_tried_again_until_it_works(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        store.fail(StoreMissingError("no bucket"))
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(3600)
        assert not informer.cache.complete.is_set()
        store.fail(None)
        await informer.cache.complete.wait()
        task.cancel()

    async def test_its_failure_is_told_as_long_as_it_lasts(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        denied = PermissionDeniedError("not you")
        async with informed(informer):
            assert informer.failure is None
            store.fail(denied)
            await asyncio.sleep(1)
            assert informer.failure is denied
            store.fail(None)
            await asyncio.sleep(10)
            assert informer.failure is None

    async def test_it_waits_longer_each_time_but_not_too_long(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            store.fail(StoreMissingError("no bucket"))
            await asyncio.sleep(60)
            first_minute = informer.restarts
            assert 10 <= first_minute <= 25
            await asyncio.sleep(60)
            assert 10 <= informer.restarts - first_minute <= 12

    async def test_a_watch_that_was_healthy_is_replaced_at_once(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            store.fail(StoreMissingError("no bucket"))
            await asyncio.sleep(60)
            store.fail(None)
            await asyncio.sleep(60)
            store.break_watches()
            created = await store.create("a", value())
            await asyncio.sleep(0.1)
            assert informer.cache.get("a") == created

    async def test_a_watch_that_breaks_again_and_again_is_replaced_later_and_later(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            for _ in range(1000):
                store.break_watches()
                await asyncio.sleep(0.1)
            assert informer.restarts <= 40

    async def test_a_cache_stays_complete_while_there_is_no_watch(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        created = await store.create("a", value())
        async with informed(informer):
            store.fail(StoreMissingError("no bucket"))
            await asyncio.sleep(60)
            assert informer.cache.complete.is_set()
            assert informer.cache.get("a") == created


class TestTelling:
    async def test_a_subscriber_is_told_every_change_in_order(
        self, store: MemoryStore, informer: Informer[Thing], told: Told
    ) -> None:
        with informer.subscribe(told):
            async with informed(informer):
                created = await store.create("a", value("1"))
                await store.update("a", value("2"), revision=created.revision)
                await store.delete("a")
                await asyncio.sleep(0.01)
        assert told.actions == [("a", "added"), ("a", "updated"), ("a", "deleted")]

    async def test_who_comes_later_is_told_first_what_is_there(
        self, store: MemoryStore, informer: Informer[Thing], told: Told
    ) -> None:
        created = await store.create("a", value())
        async with informed(informer):
            with informer.subscribe(told):
                assert told.changes == [Change(THINGS, "a", None, created, initial=True)]
                await store.delete("a")
                await asyncio.sleep(0.01)
        assert told.actions == [("a", "added"), ("a", "deleted")]

    async def test_a_relisting_tells_only_what_differs(
        self, store: MemoryStore, informer: Informer[Thing], told: Told
    ) -> None:
        for key in ("a", "b"):
            await store.create(key, value())
        async with informed(informer):
            with informer.subscribe(told):
                told.changes.clear()
                store.vanish("a")
                store.break_watches()
                await asyncio.sleep(1)
        assert told.actions == [("a", "deleted")]

    async def test_every_subscriber_is_told(
        self, store: MemoryStore, informer: Informer[Thing], told: Told
    ) -> None:
        other = Told()
        with informer.subscribe(told), informer.subscribe(other):
            async with informed(informer):
                await store.create("a", value())
                await asyncio.sleep(0.01)
        assert told.changes == other.changes != []

    async def test_who_has_left_is_told_nothing(
        self, store: MemoryStore, informer: Informer[Thing], told: Told
    ) -> None:
        async with informed(informer):
            with informer.subscribe(told):
                pass
            await store.create("a", value())
            await asyncio.sleep(0.01)
        assert told.changes == []

    async def test_a_subscriber_that_fails_harms_no_other_and_is_logged(
        self,
        store: MemoryStore,
        informer: Informer[Thing],
        told: Told,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def fail(_change: Change[Thing]) -> None:
            raise ZeroDivisionError

        with informer.subscribe(fail), informer.subscribe(told):
            async with informed(informer):
                await store.create("a", value())
                await asyncio.sleep(0.01)
        assert told.actions == [("a", "added")]
        assert any("subscriber failed" in message for message in caplog.messages)

    async def test_a_big_listing_lets_others_have_their_turn(
        self, store: MemoryStore, informer: Informer[Thing], told: Told
    ) -> None:
        for number in range(5000):
            await store.create(f"k{number}", value())
        turns: list[int] = []

        async def other() -> None:
            while len(told.changes) < 5000:
                turns.append(len(told.changes))
                await asyncio.sleep(0)

        task = asyncio.create_task(informer.run())
        with informer.subscribe(told):
            await other()
        task.cancel()
        assert len(set(turns)) >= 10


class TestListed:
    async def test_the_end_of_every_listing_is_told_after_its_changes(
        self, store: MemoryStore
    ) -> None:
        told: list[str] = []
        informer = Informer(store, THINGS, on_listed=lambda: told.append("listed"))
        await store.create("a", value())
        with informer.subscribe(lambda change: told.append(change.key)):
            async with informed(informer):
                await asyncio.sleep(0.01)
                assert told == ["a", "listed"]
                await store.create("b", value())
                await asyncio.sleep(0.01)
                assert told == ["a", "listed", "b"]
                store.break_watches()
                await asyncio.sleep(1)
                assert told == ["a", "listed", "b", "listed"]


class TestInvalid:
    async def test_an_invalid_object_is_logged_and_told_once(
        self, store: MemoryStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        found: list[Invalid] = []
        informer = Informer(store, THINGS, on_invalid=found.append)
        await store.create("a", b"no JSON")
        with caplog.at_level(logging.ERROR):
            async with informed(informer):
                store.break_watches()
                await asyncio.sleep(1)
        assert [invalid.stored.key for invalid in found] == ["a"]
        [message] = caplog.messages
        assert "skipped an invalid object kind=Thing.things key=a revision=1" in message

    async def test_an_index_may_be_read_by_who_is_told(self, store: MemoryStore) -> None:
        informer = Informer(store, THINGS, indexes={"group": lambda thing: thing.spec.groups})
        found: list[int] = []
        with informer.subscribe(lambda _: found.append(len(informer.cache.by_index("group", "x")))):
            async with informed(informer):
                await store.create("a", value("", "x"))
                await caught_up(informer, store)
        assert found == [1]
