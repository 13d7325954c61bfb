"""An informer keeps its cache equal to its store and notifies its subscribers."""

import asyncio
import logging

import pytest

from natsctl.core.cache.informer import Informer
from natsctl.core.cache.state import Invalid
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


class Subscriber:
    """Records the changes that it receives."""

    def __init__(self) -> None:
        self.changes: list[Change[Thing]] = []

    def __call__(self, change: Change[Thing]) -> None:
        self.changes.append(change)

    @property
    def actions(self) -> list[tuple[str, str]]:
        return [(change.key, change.action.value) for change in self.changes]


@pytest.fixture
def subscriber() -> Subscriber:
    return Subscriber()


class TestSyncing:
    async def test_existing_objects_are_cached(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        created = await store.create("a", value())
        async with informed(informer):
            assert informer.cache.get("a") == created

    async def test_every_change_is_cached(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            await store.create("a", value())
            created = await store.create("b", value())
            await store.delete("a")
            await asyncio.sleep(0.01)
            assert (informer.cache.get("a"), informer.cache.get("b")) == (None, created)

    async def test_the_cache_follows_after_the_watch_broke(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            store.break_watches()
            created = await store.create("a", value())
            await asyncio.sleep(1)
            assert informer.cache.get("a") == created

    async def test_objects_purged_during_a_gap_are_removed(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        await store.create("a", value())
        async with informed(informer):
            store.vanish("a")
            store.break_watches()
            await asyncio.sleep(1)
            assert informer.cache.get("a") is None

    async def test_a_recreated_store_replaces_the_cache(
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

    async def test_leaving_the_informer_closes_its_watch(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            assert store.watches == 1
        assert store.watches == 0


class TestFailures:
    async def test_a_failed_watch_is_retried_until_it_works(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        store.fail(StoreMissingError("no bucket"))
        task = asyncio.create_task(informer.run())
        await asyncio.sleep(3600)
        assert not informer.cache.synced.is_set()
        store.fail(None)
        await informer.cache.synced.wait()
        task.cancel()

    async def test_the_failure_is_reported_while_it_lasts(
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

    async def test_retries_back_off_up_to_a_limit(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            store.fail(StoreMissingError("no bucket"))
            await asyncio.sleep(60)
            first_minute = informer.restarts
            assert 10 <= first_minute <= 25
            await asyncio.sleep(60)
            assert 10 <= informer.restarts - first_minute <= 12

    async def test_a_healthy_watch_is_restarted_at_once(
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

    async def test_a_watch_that_breaks_repeatedly_is_restarted_with_backoff(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            for _ in range(1000):
                store.break_watches()
                await asyncio.sleep(0.1)
            assert informer.restarts <= 40

    async def test_a_cache_stays_synced_without_a_watch(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        created = await store.create("a", value())
        async with informed(informer):
            store.fail(StoreMissingError("no bucket"))
            await asyncio.sleep(60)
            assert informer.cache.synced.is_set()
            assert informer.cache.get("a") == created


class TestSubscribing:
    async def test_a_subscriber_gets_every_change_in_order(
        self, store: MemoryStore, informer: Informer[Thing], subscriber: Subscriber
    ) -> None:
        async with informer.subscribe(subscriber), informed(informer):
            created = await store.create("a", value("1"))
            await store.update("a", value("2"), revision=created.revision)
            await store.delete("a")
            await asyncio.sleep(0.01)
        assert subscriber.actions == [("a", "added"), ("a", "updated"), ("a", "deleted")]

    async def test_a_late_subscriber_first_gets_the_existing_objects(
        self, store: MemoryStore, informer: Informer[Thing], subscriber: Subscriber
    ) -> None:
        created = await store.create("a", value())
        async with informed(informer), informer.subscribe(subscriber):
            assert subscriber.changes == [Change(THINGS, "a", None, created, initial=True)]
            await store.delete("a")
            await asyncio.sleep(0.01)
        assert subscriber.actions == [("a", "added"), ("a", "deleted")]

    async def test_a_relisting_notifies_only_of_differences(
        self, store: MemoryStore, informer: Informer[Thing], subscriber: Subscriber
    ) -> None:
        for key in ("a", "b"):
            await store.create(key, value())
        async with informed(informer), informer.subscribe(subscriber):
            subscriber.changes.clear()
            store.vanish("a")
            store.break_watches()
            await asyncio.sleep(1)
        assert subscriber.actions == [("a", "deleted")]

    async def test_every_subscriber_is_notified(
        self, store: MemoryStore, informer: Informer[Thing], subscriber: Subscriber
    ) -> None:
        other = Subscriber()
        async with informer.subscribe(subscriber), informer.subscribe(other), informed(informer):
            await store.create("a", value())
            await asyncio.sleep(0.01)
        assert subscriber.changes == other.changes != []

    async def test_a_subscriber_that_another_one_removes_is_not_notified_any_more(
        self, store: MemoryStore, informer: Informer[Thing], subscriber: Subscriber
    ) -> None:
        removed = Subscriber()

        def remove(_: Change[Thing]) -> None:
            if not subscriber.changes:
                informer.remove(removed)

        async with informed(informer):
            for on_change in (remove, removed, subscriber):
                await informer.add(on_change)
            await store.create("a", value())
            await caught_up(informer, store)
        assert removed.changes == []
        assert subscriber.actions == [("a", "added")]

    async def test_a_former_subscriber_is_not_notified(
        self, store: MemoryStore, informer: Informer[Thing], subscriber: Subscriber
    ) -> None:
        async with informed(informer):
            async with informer.subscribe(subscriber):
                pass
            await store.create("a", value())
            await asyncio.sleep(0.01)
        assert subscriber.changes == []

    async def test_a_failed_subscriber_is_logged_and_does_not_affect_others(
        self,
        store: MemoryStore,
        informer: Informer[Thing],
        subscriber: Subscriber,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def fail(_change: Change[Thing]) -> None:
            raise ZeroDivisionError

        async with informer.subscribe(fail), informer.subscribe(subscriber), informed(informer):
            await store.create("a", value())
            await asyncio.sleep(0.01)
        assert subscriber.actions == [("a", "added")]
        assert any("subscriber failed" in message for message in caplog.messages)

    async def test_a_large_listing_yields_to_other_tasks(
        self, store: MemoryStore, informer: Informer[Thing], subscriber: Subscriber
    ) -> None:
        for number in range(5000):
            await store.create(f"k{number}", value())
        turns: list[int] = []

        async def other() -> None:
            while len(subscriber.changes) < 5000:
                turns.append(len(subscriber.changes))
                await asyncio.sleep(0)

        task = asyncio.create_task(informer.run())
        async with informer.subscribe(subscriber):
            await other()
        task.cancel()
        assert len(set(turns)) >= 10


class TestOnListed:
    async def test_on_listed_runs_after_the_changes_of_each_listing(
        self, store: MemoryStore
    ) -> None:
        calls: list[str] = []
        informer = Informer(store, THINGS, on_listed=lambda: calls.append("listed"))
        await store.create("a", value())
        async with informer.subscribe(lambda change: calls.append(change.key)), informed(informer):
            await asyncio.sleep(0.01)
            assert calls == ["a", "listed"]
            await store.create("b", value())
            await asyncio.sleep(0.01)
            assert calls == ["a", "listed", "b"]
            store.break_watches()
            await asyncio.sleep(1)
            assert calls == ["a", "listed", "b", "listed"]


class TestInvalid:
    async def test_an_invalid_object_is_logged_and_reported_once(
        self, store: MemoryStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        invalids: list[Invalid] = []
        informer = Informer(store, THINGS, on_invalid=invalids.append)
        await store.create("a", b"no JSON")
        with caplog.at_level(logging.ERROR):
            async with informed(informer):
                store.break_watches()
                await asyncio.sleep(1)
        assert [invalid.stored.key for invalid in invalids] == ["a"]
        [message] = caplog.messages
        assert "skipped an invalid object kind=Thing.things key=a revision=1" in message

    async def test_a_subscriber_may_read_an_index(self, store: MemoryStore) -> None:
        informer = Informer(store, THINGS, indexes={"group": lambda thing: thing.spec.groups})
        counts: list[int] = []
        async with (
            informer.subscribe(lambda _: counts.append(len(informer.cache.by_index("group", "x")))),
            informed(informer),
        ):
            await store.create("a", value("", "x"))
            await caught_up(informer, store)
        assert counts == [1]
