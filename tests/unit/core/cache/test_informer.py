"""An informer keeps its cache equal to its store and notifies its subscribers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

import natsctl
from natsctl import Invalid
from natsctl.core.informer import Informer
from natsctl.errors import PermissionDeniedError, StoreMissingError
from natsctl.model.store import Change, IllegalKey, Listed, WatchEvent
from natsctl.slices import ITEMS_MAX
from natsctl.testing import MemoryStore
from tests.support.eventually import eventually
from tests.support.stores.sample_objects import THINGS, Thing, caught_up, informed, value

MONITORS = natsctl.kube("monitoring.test/v1", "Monitor", namespace="default", optional=True)
MONITOR = b'{"metadata": {"name": "a"}}'


class IllegalStore(MemoryStore):
    """A store with a message whose name is no legal key."""

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Watch the message."""
        async with super().watch(shown) as events:
            yield self._with_message(events)

    async def _with_message(self, events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
        async for event in events:
            if isinstance(event, Listed):
                yield IllegalKey("?", 1)
            yield event


class ComparingStore(MemoryStore):
    """A store that is given the keys that its reader was shown."""

    shown: Collection[str] | None = None

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Note the keys, and watch."""
        self.shown = shown
        async with super().watch(shown) as events:
            yield events


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

    async def test_a_failure_that_is_final_is_raised(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        missing = StoreMissingError("no bucket")
        store.fail(missing)
        with pytest.raises(StoreMissingError):
            await informer.run(is_final=lambda error: error is missing)

    async def test_a_failure_that_is_not_final_is_retried(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        store.fail(PermissionDeniedError("not yet"))
        asyncio.get_running_loop().call_later(60, store.fail, None)
        task = asyncio.create_task(
            informer.run(is_final=lambda error: isinstance(error, StoreMissingError))
        )
        await informer.cache.synced.wait()
        task.cancel()

    async def test_an_informer_has_not_restarted_at_first(self, informer: Informer[Thing]) -> None:
        async with informed(informer):
            assert informer.restarts == 0

    async def test_a_missing_store_is_a_failure_unless_the_kind_is_optional(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        async with informed(informer):
            store.fail(StoreMissingError("no bucket"))
            await asyncio.sleep(1)
            assert not informer.absent


class TestOptionalKinds:
    """An optional kind that does not exist in its store has no objects."""

    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore(MONITORS)

    @pytest.fixture
    def informer(self, store: MemoryStore) -> Informer[natsctl.Manifest]:
        return Informer(store, MONITORS)

    async def test_a_kind_that_exists_is_not_absent(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        async with informed(informer):
            assert not informer.absent

    async def test_the_cache_of_a_missing_kind_is_synced(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        store.fail(StoreMissingError("no such kind"))
        async with informed(informer):
            assert (informer.absent, informer.failure) == (True, None)

    async def test_a_kind_that_disappears_has_no_objects(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        await store.create("a", MONITOR)
        async with informed(informer):
            store.fail(StoreMissingError("no such kind"))
            await asyncio.sleep(60)
            assert (informer.absent, len(informer.cache)) == (True, 0)

    async def test_the_end_of_the_objects_is_notified_once(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        await store.create("a", MONITOR)
        actions: list[str] = []
        async with (
            informed(informer),
            informer.subscribe(lambda change: actions.append(change.action.value)),
        ):
            store.fail(StoreMissingError("no such kind"))
            await asyncio.sleep(60)
        assert actions == ["added", "deleted"]

    async def test_the_cache_of_a_missing_kind_has_no_revision(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        await store.create("a", MONITOR)
        async with informed(informer):
            store.fail(StoreMissingError("no such kind"))
            await asyncio.sleep(60)
            assert informer.cache.revision == 0

    async def test_a_missing_kind_is_logged_once(
        self,
        store: MemoryStore,
        informer: Informer[natsctl.Manifest],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO)
        store.fail(StoreMissingError("no such kind"))
        async with informed(informer):
            await asyncio.sleep(60)
        assert len(caplog.messages) == 1

    async def test_a_missing_kind_is_no_failure_after_another_failure(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        async with informed(informer):
            store.fail(PermissionDeniedError("not you"))
            await asyncio.sleep(60)
            store.fail(StoreMissingError("no such kind"))
            await asyncio.sleep(60)
            assert informer.failure is None

    async def test_waiting_for_a_missing_kind_counts_as_no_restart(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        store.fail(StoreMissingError("no such kind"))
        async with informed(informer):
            await asyncio.sleep(60)
            assert informer.restarts == 0

    async def test_a_kind_that_appears_is_reported_once_when_its_objects_are_cached(
        self, store: MemoryStore
    ) -> None:
        sizes: list[int] = []
        monitors = Informer(store, MONITORS, on_appeared=lambda: sizes.append(len(monitors.cache)))
        store.fail(StoreMissingError("no such kind"))
        async with informed(monitors):
            store.fail(None)
            await store.create("a", MONITOR)
            await asyncio.sleep(60)
            store.break_watches()
            await asyncio.sleep(60)
            assert (monitors.absent, sizes) == (False, [1])

    async def test_a_kind_that_appears_needs_no_listener(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        store.fail(StoreMissingError("no such kind"))
        async with informed(informer):
            store.fail(None)
            await store.create("a", MONITOR)
            await asyncio.sleep(60)
            assert len(informer.cache) == 1

    async def test_another_failure_of_an_optional_kind_is_reported(
        self, store: MemoryStore, informer: Informer[natsctl.Manifest]
    ) -> None:
        async with informed(informer):
            store.fail(denied := PermissionDeniedError("not you"))
            await asyncio.sleep(1)
            assert (informer.absent, informer.failure) == (False, denied)


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
        second_subscriber = Subscriber()
        async with (
            informer.subscribe(subscriber),
            informer.subscribe(second_subscriber),
            informed(informer),
        ):
            await store.create("a", value())
            await asyncio.sleep(0.01)
        assert subscriber.changes == second_subscriber.changes != []

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

    @pytest.mark.parametrize("deletes", [True, False])
    async def test_a_change_waits_until_a_new_subscriber_has_every_object(
        self, store: MemoryStore, informer: Informer[Thing], *, deletes: bool
    ) -> None:
        received: list[str] = []
        for number in range(2 * ITEMS_MAX):
            await store.create(f"k{number}", value())
        async with informed(informer):
            while informer.notifying:  # noqa: ASYNC110 - of the listing
                await asyncio.sleep(0)
            adding = asyncio.create_task(informer.add(lambda change: received.append(change.key)))
            await asyncio.sleep(0)
            assert informer.notifying
            await (store.delete("k0") if deletes else store.create("last", value()))
            await adding
            await caught_up(informer, store)
            await asyncio.sleep(1)
            assert not informer.notifying
        assert received[2 * ITEMS_MAX :] == ["k0" if deletes else "last"]

    @pytest.mark.parametrize("deletes", [True, False])
    async def test_other_tasks_run_while_a_large_listing_arrives(
        self, store: MemoryStore, informer: Informer[Thing], *, deletes: bool
    ) -> None:
        for number in range(4 * ITEMS_MAX):
            await store.create(f"k{number}", value())
            if deletes:
                await store.delete(f"k{number}")
        task = asyncio.create_task(informer.run())
        turns = 0
        while not informer.cache.synced.is_set():
            await asyncio.sleep(0)
            turns += 1
        task.cancel()
        assert turns > 4

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

    async def test_an_invalid_object_needs_no_listener(
        self, store: MemoryStore, informer: Informer[Thing]
    ) -> None:
        await store.create("a", b"no JSON")
        async with informed(informer):
            assert list(informer.cache.invalid) == ["a"]

    async def test_an_illegal_key_is_not_reported(self) -> None:
        invalids: list[Invalid] = []
        informer = Informer(IllegalStore(THINGS), THINGS, on_invalid=invalids.append)
        async with informed(informer):
            assert list(informer.cache.invalid) == ["?"]
        assert invalids == []

    async def test_a_subscriber_may_read_an_index(self, store: MemoryStore) -> None:
        informer = Informer(
            store, THINGS, indexes={"group": lambda stored_thing: stored_thing.spec.groups}
        )
        counts: list[int] = []
        async with (
            informer.subscribe(lambda _: counts.append(len(informer.cache.by_index("group", "x")))),
            informed(informer),
        ):
            await store.create("a", value("", "x"))
            await caught_up(informer, store)
        assert counts == [1]


async def test_a_watch_gets_a_live_view_of_the_keys_of_the_cache() -> None:
    store = ComparingStore(THINGS)
    await store.create("a", value("text"))
    async with informed(Informer(store, THINGS)):
        shown = store.shown
        assert shown is not None
        assert list(shown) == ["a"]
        await store.create("b", value("text"))
        await eventually(lambda: "b" in shown)
