"""A stream has every object, one sync and then changes; a key has one event at a time."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from natsctl.resource import EventKind
from natsctl.testing import VirtualTimeLoop
from tests.support.controllers.resource_subscribers import (
    clock,
    handled,
    is_silent,
    resource_harness,
    synced,
)
from tests.support.stores.sample_objects import value


async def test_a_stream_has_an_upsert_for_every_object_and_then_a_sync() -> None:
    async with resource_harness("a", "b") as harness, harness.resource.events() as events:
        assert await handled(events, 3) == [
            ("upsert", "a", "hi"),
            ("upsert", "b", "hi"),
            ("sync", "", ""),
        ]
        assert await is_silent(events)


async def test_changes_after_the_sync_are_events() -> None:
    async with resource_harness("a") as harness, harness.resource.events() as events:
        await synced(events)
        await harness.put("b", "new")
        assert await handled(events, 1) == [("upsert", "b", "new")]
        await harness.put("a", "changed")
        assert await handled(events, 1) == [("upsert", "a", "changed")]
        await harness.delete("a")
        assert await handled(events, 1) == [("delete", "a", "changed")]
        assert await is_silent(events)


async def test_a_late_subscriber_gets_every_object_and_a_sync() -> None:
    async with resource_harness("a", "b") as harness, harness.resource.events() as early:
        await synced(early)
        await harness.delete("a")
        await harness.put("c")
        await handled(early, 2)
        async with harness.resource.events() as late:
            assert await handled(late, 3) == [
                ("upsert", "b", "hi"),
                ("upsert", "c", "hi"),
                ("sync", "", ""),
            ]
        assert await is_silent(early)


async def test_subscribers_share_one_watch_and_do_not_block_each_other() -> None:
    async with (
        resource_harness("a") as harness,
        harness.resource.events() as slow,
        harness.resource.events() as quick,
    ):
        held = await anext(slow)
        assert len(await synced(quick)) == 2
        await harness.put("a", "changed")
        assert await handled(quick, 1) == [("upsert", "a", "changed")]
        assert harness.store.watches == 1
        held.done()
        assert await synced(slow) == [("upsert", "a", "changed"), ("sync", "", "")]


async def test_a_key_with_an_unfinished_event_gets_no_other_event() -> None:
    async with resource_harness("a") as harness, harness.resource.events() as events:
        held = await anext(events)
        await handled(events, 1)
        for text in ("one", "two", "three"):
            await harness.put("a", text)
        await harness.put("b")
        assert await handled(events, 1) == [("upsert", "b", "hi")]
        assert await is_silent(events)
        held.done()
        assert await handled(events, 1) == [("upsert", "a", "three")]
        assert await is_silent(events)


async def test_an_object_deleted_before_the_subscription_is_no_event() -> None:
    async with resource_harness("a") as harness, harness.resource.events() as early:
        await synced(early)
        await harness.delete("a")
        async with harness.resource.events() as late:
            await asyncio.sleep(1)
            assert await synced(late) == [("sync", "", "")]
            assert await is_silent(late)
            assert await handled(early, 1) == [("delete", "a", "hi")]


async def test_a_delete_event_has_the_last_object_that_the_subscriber_got() -> None:
    async with resource_harness("a") as harness, harness.resource.events() as events:
        held = await anext(events)
        await harness.put("a", "never told")
        await harness.delete("a")
        await asyncio.sleep(1)
        held.done()
        assert await synced(events) == [("delete", "a", "hi"), ("sync", "", "")]


async def test_a_replaced_object_is_a_delete_and_then_an_upsert() -> None:
    async with resource_harness("a", uid="1") as harness, harness.resource.events() as events:
        await synced(events)
        await harness.recreate("a", "second", uid="2")
        await asyncio.sleep(1)
        assert await handled(events, 2) == [("delete", "a", "hi"), ("upsert", "a", "second")]
        assert await is_silent(events)


async def test_a_subscriber_that_never_waits_lets_others_run() -> None:
    async with resource_harness(*(f"key-{number}" for number in range(10))) as harness:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        async with harness.resource.events() as events:
            await harness.resource.store()
            turns: list[float] = []
            loop.call_later(0.001, lambda: turns.append(clock()))
            for _ in range(10):
                (await anext(events)).done()
                loop.jump(0.02)  # simulates computation
            assert len(turns) == 1


async def test_an_invalid_object_is_no_event_until_it_is_valid() -> None:
    async with resource_harness("a") as harness, harness.resource.events() as events:
        await harness.store.create("b", b"oops")
        assert await synced(events) == [("upsert", "a", "hi"), ("sync", "", "")]
        a = await harness.store.get("a")
        await harness.store.update("a", b"oops", revision=a.revision)
        assert await is_silent(events)
        b = await harness.store.get("b")
        await harness.store.update("b", value("healed"), revision=b.revision)
        assert await handled(events, 1) == [("upsert", "b", "healed")]
        await harness.delete("a")
        assert await handled(events, 1) == [("delete", "a", "hi")]


async def test_several_tasks_can_read_one_stream() -> None:
    keys: list[str] = []
    async with resource_harness("a", "b", "c") as harness, harness.resource.events() as events:

        async def read() -> None:
            async for event in events:
                async with event:
                    await asyncio.sleep(1)
                    keys.append(event.key)

        readers = [asyncio.create_task(read()) for _ in range(4)]
        await asyncio.sleep(1.5)
        assert sorted(keys) == ["", "a", "b", "c"]
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_resource_has_no_watch_before_its_first_stream_or_store_call(
    *, streams: bool
) -> None:
    async with resource_harness("a") as harness, AsyncExitStack() as stack:
        stream = harness.resource.events()
        await asyncio.sleep(60)
        assert harness.store.watches == 0
        if streams:
            await synced(await stack.enter_async_context(stream))
        else:
            await harness.resource.store()
        assert harness.store.watches == 1


async def test_the_sync_does_not_wait_until_events_are_done() -> None:
    async with resource_harness("a", "b") as harness, harness.resource.events() as events:
        out = [await anext(events) for _ in range(3)]
        assert [event.kind for event in out] == [EventKind.UPSERT, EventKind.UPSERT, EventKind.SYNC]
        for event in out:
            event.done()
