"""Garbage collection compares the owners in a bucket with those that were seen before."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from natsctl import kv
from natsctl.testing import running
from tests.support.controllers.app_controller import AppClient, Apps, RunningApps, running_apps
from tests.support.stores.documents import put

MEMORY = kv(bytes, bucket="natsctl")  # has the record of what garbage collection saw
KEYS = tuple(f"app-{number}" for number in range(8))
PARTS = [f"{key}.main" for key in KEYS]
GC_INTERVAL_S, LONG = 30.0, 2 * 3600.0
EMPTY = "the bucket of App.apps is empty, although owners were seen in it"


@asynccontextmanager
async def after_a_cycle(*keys: str) -> AsyncIterator[RunningApps]:
    """Run a controller with these apps, and one GC cycle."""
    async with running_apps(Apps(), *keys) as client:
        await asyncio.sleep(GC_INTERVAL_S)
        yield client


def lacking(text: str) -> str:
    return f"{text} owners vanished from the bucket of App.apps without a delete marker"


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize(
    ("owners", "vanished", "changed", "refused"),
    [
        (4, (1, 2, 3), (), lacking("3 of 4")),
        (4, (1,), (), ""),
        (2, (0,), (), ""),  # the other one is as it was when both existed
        (2, (1,), (), ""),
        (2, (1,), (0,), lacking("1 of 2")),
        (4, (0, 1), (2, 3), lacking("2 of 4")),
        (1, (0,), (), EMPTY),
    ],
)
async def test_too_many_owners_may_not_vanish_without_a_delete_marker(
    *,
    owners: int,
    vanished: tuple[int, ...],
    changed: tuple[int, ...],
    refused: str,
    stopped: bool,
) -> None:
    async def vanish(client: AppClient) -> None:
        for number in changed:
            await client.app(KEYS[number], "changed")
        client.apps.vanish(*(KEYS[number] for number in vanished))
        client.apps.break_watches()

    async with after_a_cycle(*KEYS[:owners]) as client:
        if not stopped:
            await vanish(client)
            await asyncio.sleep(1)
            assert (await client.runtime.garbage_plan()).refused == refused
    if stopped:
        await vanish(client)
    async with running(Apps(), stores=client.stores) as harness:
        assert (await harness.runtime.garbage_plan()).refused == refused
        await harness.runtime.garbage_accept()
        assert (await harness.runtime.garbage_plan()).refused == ""


async def lose_a_part(client: AppClient) -> None:
    """Put a part whose owner never existed."""
    names = {"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "nobody"}
    await put(client.parts, "lost", {"metadata": {"labels": names}, "spec": {"text": ""}})
    await asyncio.sleep(1)


async def test_a_bucket_that_never_had_owners_may_be_empty() -> None:
    async with after_a_cycle() as client:
        await lose_a_part(client)
        plan = await client.runtime.garbage_plan()
        assert ([orphan.key for orphan in plan.orphans], plan.refused) == (["lost"], "")


@pytest.mark.parametrize(
    ("back", "orphan", "held"), [(2, False, False), (1, False, True), (2, True, True)]
)
async def test_a_recreated_bucket_is_accepted_once_every_owner_is_back(
    *, back: int, orphan: bool, held: bool
) -> None:
    async with after_a_cycle(*KEYS[:2]) as client:
        pass
    client.apps.recreate()
    if orphan:
        await lose_a_part(client)
    for key in KEYS[:back]:
        await client.app(key)
    for name in PARTS[back:2]:  # so that no orphan is left
        await client.parts.delete(name)
    async with running(Apps(), stores=client.stores) as harness:
        await asyncio.sleep(4 * GC_INTERVAL_S)
        assert bool(harness.runtime.garbage_held) is held


async def test_what_another_process_holds_stays_held_until_the_next_cycle() -> None:
    async with after_a_cycle(*KEYS) as client:
        memory = client.stores.store(MEMORY)

        async def held() -> str:
            state: dict[str, str] = json.loads((await memory.get("gc.apps")).value)
            return state["held"]

        state = json.loads((await memory.get("gc.apps")).value)
        await put(memory, "gc.apps", {**state, "held": "stop"})
        for key in ("app-8", "app-9"):
            await client.app(key)
            await asyncio.sleep(2)
            assert await held() == "stop"
        await asyncio.sleep(GC_INTERVAL_S)
        assert await held() == ""  # every owner exists


async def test_a_bucket_that_was_populated_in_version_0_1_must_not_be_empty() -> None:
    async with after_a_cycle(*KEYS) as client:
        pass
    state = {"incarnation": "1", "populated": True, "revision": 5}
    await put(client.stores.store(MEMORY), "gc.apps", state)
    client.apps.vanish(*KEYS)
    async with running(Apps(), stores=client.stores) as harness:
        assert (await harness.runtime.garbage_plan()).refused == EMPTY


async def test_a_second_older_copy_proves_only_what_was_deleted_since() -> None:
    async with after_a_cycle(*KEYS) as client:
        first = client.apps.backup()
        await client.app("app-7", "lost")
        await asyncio.sleep(GC_INTERVAL_S)
    client.apps.restore(first)
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()
        await client.apps.delete("app-2")
        await harness.run_until_idle()
        second = client.apps.backup()
        for number in range(5):  # the second copy lacks it, and has the marker before it
            await client.app("app-2", f"text {number}")
            await harness.run_until_idle()
        await harness.run_for(2)
    client.apps.restore(second)
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()
        await client.apps.delete("app-1")
        await asyncio.sleep(LONG)
        assert harness.runtime.garbage_held
        assert client.part_keys == [PARTS[0], *PARTS[2:]]
    await client.apps.delete("app-3")
    async with running(Apps(), stores=client.stores) as harness:
        await asyncio.sleep(LONG)
        assert client.part_keys == [PARTS[0], PARTS[2], *PARTS[4:]]
