"""An informer keeps its cache equal to its store and notifies its subscribers."""

import asyncio
from collections import Counter

import pytest

from natsctl.core.informer import Informer
from natsctl.errors import StoreMissingError
from natsctl.model.store import Change
from natsctl.slices import ITEMS_MAX
from natsctl.testing import MemoryStore
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


class TestFailures:
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


class TestSubscribing:
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
        for number in range(20 * ITEMS_MAX):
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
        assert received[20 * ITEMS_MAX :] == ["k0" if deletes else "last"]


async def test_a_subscriber_added_during_a_listing_gets_every_object_once() -> None:
    keys, store = [f"k{number}" for number in range(3 * ITEMS_MAX)], MemoryStore(THINGS)
    for key in keys:
        await store.create(key, value())
    informer, first, second = Informer(store, THINGS), Counter[str](), Counter[str]()
    async with informer.subscribe(lambda change: first.update([change.key])), informed(informer):
        assert 0 < len(first) < len(keys)
        async with informer.subscribe(lambda change: second.update([change.key])):
            await asyncio.sleep(1)
        await store.create("later", value())
        await asyncio.sleep(1)
    assert second == Counter(keys)
    assert first == Counter([*keys, "later"])
