"""Paused keys and controllers are neither synced nor garbage collected until they are resumed."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from natsctl import InformerController, Kind, Resource
from natsctl.model.store import Applied, Batch, WatchEvent
from natsctl.testing import Harness, MemoryStore, MemoryStores, running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    PAUSED,
    AppClient,
    Calm,
    Fallible,
    SlowStores,
    app_client,
    document,
    edit,
)
from tests.support.controllers.quarantined_apps import PAUSES, syncs_of
from tests.support.controllers.recording_watcher import RecordingWatcher
from tests.support.controllers.recording_watcher import running as watching
from tests.support.stores.documents import put

AN_HOUR = 3600.0
HELD = "by=ann@desk reason=waits for a disk"
RECORD = "controllers.apps.paused"


def lasting(seconds: float) -> str:
    """Return the text of a pause that ends so many seconds from now."""
    until = datetime.now(UTC) + timedelta(seconds=seconds)
    return f"until={until.isoformat()}"


async def built(harness: Harness, *keys: str) -> AppClient:
    client = app_client(harness)
    for key in keys:
        await client.app(key)
    await harness.run_until_idle()
    syncs_of(harness).clear()
    return client


async def change(client: AppClient, key: str, text: str) -> None:
    await edit(client.apps, key, "spec", "text", to=text)


async def test_a_paused_key_that_changes_many_times_is_synced_once_after_it_is_resumed() -> None:
    async with running(Calm()) as harness:
        client = await built(harness, "shop")
        await edit(client.apps, "shop", *PAUSED, to="true")
        for number in range(10):
            await change(client, "shop", f"hi {number}")
            await harness.run_for(0.1)
        assert syncs_of(harness) == []
        await edit(client.apps, "shop", *PAUSED, to=None)
        await harness.run_until_idle()
        assert syncs_of(harness) == ["shop"]
        assert await client.texts() == {"shop.main": "hi 9"}


class PairingStore(MemoryStore):
    """A store whose watch hands on two states at once, as one read of a socket may bring them."""

    pairs = False

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async def paired(events: AsyncIterator[WatchEvent]) -> AsyncIterator[WatchEvent]:
            async for event in events:
                second = await anext(events) if self.pairs else None
                if isinstance(event, Applied) and isinstance(second, Applied):
                    yield Batch([event.stored, second.stored])
                else:
                    yield event

        async with super().watch(shown) as events:
            yield paired(events)


class PairingStores(MemoryStores):
    def __init__(self) -> None:
        super().__init__()
        self.apps = PairingStore(APPS)

    def store(self, kind: Kind[Any]) -> MemoryStore:
        return self.apps if kind is APPS else super().store(kind)


async def test_a_key_that_is_paused_and_resumed_in_one_read_is_synced() -> None:
    stores = PairingStores()
    async with running(Calm(), stores=stores) as harness:
        client = await built(harness, "shop")
        stores.apps.pairs = True
        await edit(client.apps, "shop", *PAUSED, to="true")
        await edit(client.apps, "shop", *PAUSED, to=None)
        await harness.run_for(1)
        assert harness.runtime.status().paused == {}
        stores.apps.pairs = False
        await change(client, "shop", "ho")
        await harness.run_until_idle()
        assert syncs_of(harness) == ["shop"]


@pytest.mark.parametrize(
    ("text", "pauses"),
    [
        *((text, True) for text in ("true", "waits", "until=soon", '{"a": 1}', HELD)),
        *((text, False) for text in ("false", "False", "", " ")),
    ],
)
async def test_any_value_but_false_and_an_empty_text_pauses(text: str, *, pauses: bool) -> None:
    async with running(Calm()) as harness:
        client = await built(harness, "shop")
        await edit(client.apps, "shop", *PAUSED, to=text)
        await change(client, "shop", "ho")
        await harness.run_for(1)
        assert syncs_of(harness) == ([] if pauses else ["shop"])


async def test_a_key_that_is_paused_while_it_waits_for_its_own_writes_is_not_synced() -> None:
    stores = SlowStores()
    async with running(Calm(), stores=stores) as harness:
        client = await built(harness, "shop")
        with stores.store(PARTS).held_up():
            await change(client, "shop", "ho")
            await harness.run_for(0.1)
            await change(client, "shop", "hey")
            await harness.run_for(0.1)
            await edit(client.apps, "shop", *PAUSED, to="true")
            await harness.run_for(0.1)
        await harness.run_until_idle()
        assert await client.texts() == {"shop.main": "ho"}
        assert syncs_of(harness) == ["shop"]
        await edit(client.apps, "shop", *PAUSED, to=None)
        await harness.run_until_idle()
        assert await client.texts() == {"shop.main": "hey"}
        assert syncs_of(harness) == ["shop", "shop"]


async def test_a_pause_with_an_end_resumes_by_itself_and_removes_what_was_deleted() -> None:
    async with running(Calm()) as harness:
        client = await built(harness, "shop", "market")
        for key in ("shop", "market"):
            await edit(client.apps, key, *PAUSED, to=lasting(AN_HOUR))
        await harness.run_for(1)
        await change(client, "shop", "ho")
        await client.apps.delete("market")
        await harness.run_for(AN_HOUR - 60)
        assert syncs_of(harness) == []
        assert client.part_keys == ["market.main", "shop.main"]
        await harness.run_for(61)
        assert sorted(syncs_of(harness)) == ["market", "shop"]
        assert await client.texts() == {"shop.main": "ho"}


async def test_a_failing_key_that_is_paused_is_retried_after_it_is_resumed() -> None:
    controller = Fallible()
    controller.failure = RuntimeError("broken")
    async with running(controller) as harness:
        client = app_client(harness)
        await client.app("shop")
        await harness.run_for(5)
        failures = harness.runtime.explain("shop").failures
        await edit(client.apps, "shop", *PAUSED, to="true")
        await harness.run_for(AN_HOUR)
        controller.syncs.clear()
        await harness.run_for(AN_HOUR)
        assert controller.syncs == []
        assert harness.runtime.explain("shop").failures == failures
        controller.failure = None
        await edit(client.apps, "shop", *PAUSED, to=None)
        await harness.run_until_idle()
        assert controller.syncs == ["shop"]


# ---- a primary that is deleted while it is paused keeps its secondaries until it is resumed


async def test_the_secondaries_stay_after_a_restart() -> None:
    stores = MemoryStores()
    async with running(Calm(), stores=stores) as harness:
        client = await built(harness, "shop", "market")
        await edit(client.apps, "shop", *PAUSED, to=HELD)
        await harness.run_for(1)
    await client.apps.delete("shop")
    async with running(Calm(), stores=stores) as harness:
        await harness.run_for(AN_HOUR)
        assert client.part_keys == ["market.main", "shop.main"]
        await client.apps.delete("shop", purge=True)
        await harness.run_for(AN_HOUR)
        assert client.part_keys == ["market.main"]


async def test_a_person_collects_no_garbage_of_a_key_that_no_process_saw_paused() -> None:
    stores = MemoryStores()
    async with running(Calm(), stores=stores) as harness:
        client = await built(harness, "shop", "market")
    await edit(client.apps, "shop", *PAUSED, to="true")
    await client.apps.delete("shop")
    async with running(Calm(), stores=stores) as harness:
        plan = await harness.runtime.garbage_plan(at_once=True)
        (orphan,) = plan.orphans
        assert orphan.held == "shop is paused without a reason: natsctl resume apps/shop"
        applied = msgspec.structs.replace(orphan, held="")
        removed = await harness.runtime.garbage_apply(
            msgspec.structs.replace(plan, orphans=(applied,))
        )
        assert removed.orphans == ()
        assert client.part_keys == ["market.main", "shop.main"]


async def test_a_new_object_of_the_key_is_not_paused() -> None:
    async with running(Calm()) as harness:
        client = await built(harness, "shop")
        await edit(client.apps, "shop", *PAUSED, to="true")
        await harness.run_for(1)
        await client.apps.delete("shop")
        await harness.run_for(1)
        await client.app("shop", "new")
        await harness.run_until_idle()
        assert await client.texts() == {"shop.main": "new"}
        await harness.run_for(1)
        names = client.stores.store(PAUSES).keys()
        assert [name for name in names if name.startswith("controllers.")] == []


# ---- the record of a controller pauses all of its keys


async def test_no_key_is_synced_until_the_record_is_deleted() -> None:
    async with running(Calm()) as harness:
        client = await built(harness, "shop", "market")
        await put(client.stores.store(PAUSES), RECORD, HELD.encode())
        await harness.run_for(1)
        for text in ("1", "2", "3"):
            await change(client, "shop", text)
            await change(client, "market", text)
            await harness.run_for(1)
        assert syncs_of(harness) == []
        await client.stores.store(PAUSES).delete(RECORD)
        await harness.run_until_idle()
        assert sorted(syncs_of(harness)) == ["market", "shop"]


# ---- reports


async def test_a_pause_and_its_end_are_events() -> None:
    async with running(Calm()) as harness:
        client = await built(harness, "shop")
        await edit(client.apps, "shop", *PAUSED, to=HELD)
        await change(client, "shop", "ho")
        await harness.run_for(1)
        paused = harness.runtime.explain("shop").paused
        assert paused is not None
        assert (paused.reason, paused.by) == ("waits for a disk", "ann@desk")
        assert (paused.pending, paused.controller) == (True, False)
    async with running(Calm(), stores=client.stores) as harness:
        await harness.run_for(1)
        await edit(client.apps, "shop", *PAUSED, to=None)
        await harness.run_for(1)
        events = [event for event in client.events("shop") if event[0] in {"Paused", "Resumed"}]
        assert events == [
            ("Paused", "paused by ann@desk: waits for a disk"),
            ("Resumed", "resumed; it was paused by ann@desk: waits for a disk"),
        ]


async def test_a_primary_marked_deleted_keeps_its_finalizers_while_it_is_paused() -> None:
    class Held(Calm):
        async def sync_handler(self, key: str) -> float | None:
            self.syncs.append(key)
            app = self.apps.get(key)
            if app is not None and app.metadata.deletion_timestamp is None:
                await self.apps.add_finalizer(key, "example.com/held")
            elif app is not None:
                await self.apps.remove_finalizer(key, "example.com/held")
            return None

    async with running(Held()) as harness:
        client = await built(harness, "shop")
        await edit(client.apps, "shop", *PAUSED, to="true")
        await harness.run_for(1)
        await harness.runtime.controller.apps.delete("shop")  # type: ignore[attr-defined]  # its slot
        await harness.run_for(AN_HOUR)
        assert (await document(client.apps, "shop"))["metadata"]["finalizers"] == [
            "example.com/held"
        ]
        await edit(client.apps, "shop", *PAUSED, to=None)
        await harness.run_until_idle()
        assert client.apps.keys() == []


async def test_the_changes_of_a_paused_object_are_delivered_to_watchers_in_order() -> None:
    stores, watcher = MemoryStores(), RecordingWatcher()
    controller = InformerController(name="apps")
    controller.add_informer(APPS)
    controller.add_watcher(watcher, APPS)
    apps = stores.store(APPS)
    await put(apps, "shop", {"spec": {"text": "0"}})
    async with watching(controller, stores):
        await edit(apps, "shop", *PAUSED, to="true")
        await asyncio.sleep(1)
        for text in ("1", "2"):
            await edit(apps, "shop", "spec", "text", to=text)
            await asyncio.sleep(1)
        assert watcher.calls == ["add shop 0"]
        assert [event.reason for event in stores.events.events] == ["Paused"]
        assert list(controller.status().paused) == ["shop"]
        await edit(apps, "shop", *PAUSED, to=None)
        await asyncio.sleep(1)
    assert watcher.calls[1:] == [
        "update shop 0 0",
        "update shop 0 1",
        "update shop 1 2",
        "update shop 2 2",
    ]


async def test_a_stream_delivers_no_event_of_a_paused_key() -> None:
    stores, events = MemoryStores(), list[str]()
    apps = stores.store(APPS)
    for key in ("market", "shop"):
        await put(apps, key, {"spec": {"text": key}})
    await edit(apps, "shop", *PAUSED, to="true")
    async with Resource(APPS, stores) as resource, resource.events() as stream:

        async def read() -> None:
            async for event in stream:
                events.append(f"{event.kind} {event.key}")
                event.done()

        reading = asyncio.create_task(read())
        await asyncio.sleep(1)
        assert events == ["upsert market", "sync "]
        await edit(apps, "shop", *PAUSED, to=None)
        await asyncio.sleep(1)
        assert events[2:] == ["upsert shop"]
        reading.cancel()
