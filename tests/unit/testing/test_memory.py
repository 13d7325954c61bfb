"""Fault injection and counters of the memory store (tests/contract compares it with NATS)."""

import asyncio

import pytest

import natsctl
from natsctl import EventType
from natsctl.errors import NotFoundError, StoreMissingError, WatchBrokenError
from natsctl.model.store import Applied, WatchEvent
from natsctl.testing import MemoryStore, MemoryStores, RecordedEvent
from tests.support.stores.sample_objects import THINGS, Thing, value

OTHERS = natsctl.kv(Thing, bucket="others")


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


@pytest.fixture
def store(stores: MemoryStores) -> MemoryStore:
    return stores.store(THINGS)


async def list_events(store: MemoryStore) -> list[WatchEvent]:
    async with store.watch() as events:
        return [await anext(events) for _ in range(len(store.keys()) + 2)]


class TestFaults:
    async def test_a_broken_watch_raises_after_its_pending_events(self, store: MemoryStore) -> None:
        async with store.watch() as events:
            await anext(events)
            await anext(events)
            created = await store.create("a", value())
            store.break_watches()
            assert await anext(events) == Applied(created)
            with pytest.raises(WatchBrokenError, match=r"Thing\.things"):
                await anext(events)

    async def test_a_vanished_key_causes_no_event_and_has_no_history(
        self, store: MemoryStore
    ) -> None:
        await store.create("a", value())
        async with store.watch() as events:
            for _ in range(3):
                await anext(events)
            store.vanish("a")
            next_event = asyncio.ensure_future(anext(events))
            await asyncio.sleep(60)
            assert not next_event.done()
            next_event.cancel()
            await asyncio.wait({next_event})
        with pytest.raises(NotFoundError) as raised:
            await store.get("a")
        assert raised.value.deleted_at is None
        assert await store.history("a") == []

    async def test_a_failing_store_raises_from_every_call_until_the_fault_is_cleared(
        self, store: MemoryStore
    ) -> None:
        created = await store.create("a", value())
        async with store.watch() as events:
            for _ in range(3):
                await anext(events)
            store.fail(StoreMissingError("no bucket"))
            with pytest.raises(WatchBrokenError):
                await anext(events)
        for call in (
            store.get("a"),
            store.create("b", b""),
            store.update("a", b"", revision=1),
            store.delete("a"),
            store.history("a"),
            list_events(store),
        ):
            with pytest.raises(StoreMissingError, match="no bucket"):
                await call
        store.fail(None)
        assert await store.get("a") == created


class TestCounters:
    async def test_writes_counts_writes_and_deletions(self, store: MemoryStore) -> None:
        created = await store.create("a", value())
        await store.update("a", value(), revision=created.revision)
        await store.delete("a")
        assert store.writes == 3


class TestSharing:
    async def test_a_fault_affects_the_whole_bucket_and_no_other_bucket(
        self, stores: MemoryStores
    ) -> None:
        part = natsctl.kv(Thing, bucket="things", keys="team.>")
        stores.store(part).fail(StoreMissingError("no bucket"))
        with pytest.raises(StoreMissingError):
            await stores.store(THINGS).get("a")
        with pytest.raises(NotFoundError):
            await stores.store(OTHERS).get("a")


class TestEvents:
    async def test_events_are_kept_in_the_order_in_which_they_were_recorded(
        self, stores: MemoryStores
    ) -> None:
        async with stores.recorder("apps") as recorder:
            recorder.event("a", EventType.NORMAL, "Synced", "one")
            recorder.event("b", EventType.WARNING, "Odd", "two")
        assert stores.events.events == [
            RecordedEvent("a", EventType.NORMAL, "Synced", "one"),
            RecordedEvent("b", EventType.WARNING, "Odd", "two"),
        ]
