"""Faults, counters and kinds of the memory stores (tests/contract compares them with NATS)."""

import asyncio

import pytest

import natsctl
from natsctl import EventType
from natsctl.errors import NotFoundError, StoreMissingError, WatchBrokenError
from natsctl.model.store import Applied
from natsctl.testing import MemoryKinds, MemoryResource, MemoryStore, MemoryStores, RecordedEvent
from tests.support.stores.sample_objects import THINGS, Thing, value

OTHERS = natsctl.kv(Thing, bucket="others")


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


@pytest.fixture
def store(stores: MemoryStores) -> MemoryStore:
    return stores.store(THINGS)


async def test_a_broken_watch_raises_after_its_pending_events(store: MemoryStore) -> None:
    async with store.watch() as events:
        await anext(events)
        await anext(events)
        created = await store.create("a", value())
        store.break_watches()
        assert await anext(events) == Applied(created)
        with pytest.raises(WatchBrokenError, match=r"Thing\.things"):
            await anext(events)


async def test_a_vanished_key_causes_no_event_and_has_no_history(store: MemoryStore) -> None:
    await store.create("a", value())
    async with store.watch() as events:
        for _ in range(3):
            await anext(events)
        store.vanish("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 60)
    with pytest.raises(NotFoundError) as raised:
        await store.get("a")
    assert raised.value.deleted_at is None
    assert await store.history("a") == []


async def test_a_failing_bucket_raises_from_every_call_until_the_fault_is_cleared(
    stores: MemoryStores, store: MemoryStore
) -> None:
    created = await store.create("a", value())
    async with store.watch() as events:
        for _ in range(3):
            await anext(events)
        part = natsctl.kv(Thing, bucket="things", keys="team.>")
        stores.store(part).fail(StoreMissingError("no bucket"))
        with pytest.raises(WatchBrokenError):
            await anext(events)
    for call in (
        store.get("a"),
        store.create("b", b""),
        store.update("a", b"", revision=1),
        store.delete("a"),
        store.history("a"),
        store.watch().__aenter__(),
    ):
        with pytest.raises(StoreMissingError, match="no bucket"):
            await call
    with pytest.raises(NotFoundError):
        await stores.store(OTHERS).get("a")
    store.fail(None)
    assert await store.get("a") == created
    await store.update("a", value(), revision=created.revision)
    await store.delete("a")
    assert store.writes == 3


async def test_events_are_kept_in_the_order_in_which_they_were_recorded(
    stores: MemoryStores,
) -> None:
    async with stores.recorder("apps") as recorder:
        recorder.event("a", EventType.NORMAL, "Synced", "one")
        recorder.event("b", EventType.WARNING, "Odd", "two")
    assert stores.events.events == [
        RecordedEvent("a", EventType.NORMAL, "Synced", "one"),
        RecordedEvent("b", EventType.WARNING, "Odd", "two"),
    ]


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("Secret", "secrets"),
        ("Ingress", "ingresses"),
        ("Policy", "policies"),
        ("Gateway", "gateways"),
        ("Box", "boxes"),
    ],
)
def test_a_kind_has_a_regular_plural(kind: str, plural: str) -> None:
    assert MemoryKinds().resource("v1", kind).plural == plural


def test_a_well_known_cluster_scoped_kind_has_no_namespace() -> None:
    assert not MemoryKinds().resource("v1", "Node").namespaced
    assert MemoryKinds().resource("v1", "Secret").namespaced


def test_an_irregular_kind_can_be_defined_and_removed() -> None:
    kinds = MemoryKinds()
    sheep = MemoryResource("sheep", namespaced=False)
    kinds.define("farm.io/v1", "Sheep", sheep)
    assert kinds.resource("farm.io/v1", "Sheep") == sheep
    assert kinds.resource("farm.io/v2", "Sheep").plural == "sheeps"
    kinds.remove("farm.io/v1", "Sheep")
    with pytest.raises(StoreMissingError, match="Sheep"):
        kinds.resource("farm.io/v1", "Sheep")
