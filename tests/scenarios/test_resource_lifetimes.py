"""A resource starts on demand, survives failures and leaves no watches and tasks."""

import asyncio
import gc
import weakref

import pytest

from natsctl import StoreMissingError, UsageError
from natsctl.errors import StoppedError
from natsctl.resource import Event, Resource
from natsctl.testing import MemoryStores
from tests.support.controllers.app_controller import SlowStores
from tests.support.controllers.resource_subscribers import (
    ResourceHarness,
    clock,
    handled,
    is_silent,
    resource_harness,
    synced,
)
from tests.support.stores.documents import put
from tests.support.stores.sample_objects import THINGS, Thing, value


def open_watches_and_tasks(harness: ResourceHarness) -> tuple[int, int]:
    """Return the number of watches of the store, and of tasks other than this one."""
    return harness.store.watches, len(asyncio.all_tasks()) - 1


class TestLeaving:
    async def test_a_closed_resource_has_no_watch_and_no_task(self) -> None:
        async with resource_harness("a") as harness, harness.resource.events() as events:
            await synced(events)
            assert open_watches_and_tasks(harness) == (1, 1)
        assert open_watches_and_tasks(harness) == (0, 0)

    @pytest.mark.parametrize("after_s", [0, 0.001, 5, 15])
    async def test_a_cancelled_subscriber_leaves_no_watch_and_no_task(self, after_s: float) -> None:
        stores = MemoryStores()
        store = stores.store(THINGS)
        await put(store, "a", value())

        async def subscribe() -> None:
            async with Resource(THINGS, stores) as resource, resource.events() as events:
                async for event in events:
                    async with event:
                        await asyncio.sleep(10)

        subscribing = asyncio.create_task(subscribe())
        await asyncio.sleep(after_s)
        subscribing.cancel()
        await asyncio.wait({subscribing})
        assert subscribing.cancelled()
        assert (store.watches, len(asyncio.all_tasks())) == (0, 1)

    async def test_a_stream_that_was_left_is_forgotten(self) -> None:
        async with resource_harness("a") as harness, harness.resource.events() as others:
            async with harness.resource.events() as events:
                assert len(await synced(events)) == 2
            left = weakref.ref(events)
            del events
            gc.collect()
            assert left() is None
            assert len(await synced(others)) == 2

    async def test_closing_a_resource_ends_streams_in_other_tasks(self) -> None:
        handled_events: list[Event[Thing]] = []

        async def read(resource: Resource[Thing]) -> None:
            async with resource.events() as events:
                async for event in events:
                    async with event:
                        handled_events.append(event)

        async with resource_harness("a") as harness:
            reading = asyncio.create_task(read(harness.resource))
            await asyncio.sleep(1)
            assert not reading.done()
        await reading
        assert len(handled_events) == 2

    async def test_a_closed_resource_raises_stopped(self) -> None:
        async with resource_harness("a") as harness:
            pass
        with pytest.raises(StoppedError, match=r"Thing\.things was stopped"):
            await harness.resource.store()
        with pytest.raises(StoppedError):
            await harness.resource.events().__aenter__()

    async def test_a_pending_store_call_raises_stopped_if_the_resource_is_closed(self) -> None:
        stores = SlowStores()
        with stores.store(THINGS).held_up():
            async with Resource(THINGS, stores) as resource:
                waiting = asyncio.create_task(resource.store())
                await asyncio.sleep(60)
                assert not waiting.done()
            with pytest.raises(StoppedError, match="before its first list was complete"):
                await waiting


class TestBeginning:
    async def test_a_resource_must_be_entered_exactly_once(self) -> None:
        resource = Resource(THINGS, MemoryStores())
        stream = resource.events()
        with pytest.raises(UsageError, match="used inside `async with`"):
            await resource.store()
        async with resource, stream as events:
            assert len(await synced(events)) == 1
            with pytest.raises(UsageError, match="cannot be entered twice"):
                await resource.__aenter__()

    async def test_store_returns_once_the_listing_is_complete(self) -> None:
        stores = SlowStores()
        await put(stores.store(THINGS), "a", value())
        stores.store(THINGS).lag_s = 10
        async with Resource(THINGS, stores) as resource:
            store = await resource.store()
            assert clock() == 30  # the begin, the object and the end of the listing
            assert [stored_thing.spec.text for stored_thing in store.list()] == ["hi"]

    async def test_the_sync_event_follows_all_objects_of_a_large_listing(self) -> None:
        count = 3000  # more than one batch of an informer
        async with resource_harness(*(f"key-{number}" for number in range(count))) as harness:
            early = harness.resource.events()
            async with early as events:
                store = await harness.resource.store()
                async with harness.resource.events() as late:
                    for stream in (events, late):
                        listing = await synced(stream)
                        assert len({key for _, key, _ in listing}) == len(listing) == count + 1
                        assert await is_silent(stream)
                assert len(store) == count


class TestTrouble:
    async def test_a_recreated_bucket_is_deletes_and_upserts(self) -> None:
        async with (
            resource_harness("kept", "lost", uid="1") as harness,
            harness.resource.events() as events,
        ):
            await synced(events)
            harness.store.recreate()
            await harness.put("kept", "new", uid="2")
            handled_events = await handled(events, 3)
            assert [event for event in handled_events if event[1] == "kept"] == [
                ("delete", "kept", "hi"),
                ("upsert", "kept", "new"),
            ]
            assert ("delete", "lost", "hi") in handled_events
            assert await is_silent(events)

    async def test_a_stream_continues_after_an_outage_of_the_store(self) -> None:
        async with resource_harness("a") as harness, harness.resource.events() as events:
            harness.store.fail(StoreMissingError("gone"))
            await asyncio.sleep(3600)
            harness.store.fail(None)
            assert await synced(events) == [("upsert", "a", "hi"), ("sync", "", "")]
            assert harness.store.watches == 1
