"""Controllers with different key filters share a bucket without affecting each other."""

import asyncio

from natsctl import kv, primary
from natsctl.testing import MemoryStores, running
from tests.support.controllers.app_controller import PARTS, App, AppClient, Apps, edit
from tests.support.stores.documents import put


class East(Apps):
    apps = primary(kv(App, bucket="apps", keys="east.>"))


class West(Apps):
    apps = primary(kv(App, bucket="apps", keys="west.>"))


async def test_controllers_sync_and_collect_only_keys_that_match_their_filter() -> None:
    stores = MemoryStores()
    client, east, west = AppClient(stores), East(), West()
    async with running(east, stores=stores) as harness, running(west, stores=stores) as other:
        for key in ("east.shop", "east.bar", "west.shop"):
            await client.app(key)
        await asyncio.sleep(10)
        await edit(client.parts, "east.shop.main", "spec", "text", to="tampered")
        await client.parts.delete("west.shop.main")
        await asyncio.sleep(3600)

        assert (set(east.syncs), set(west.syncs)) == ({"east.shop", "east.bar"}, {"west.shop"})
        assert await client.texts() == {
            f"{key}.main": "hi" for key in ("east.shop", "east.bar", "west.shop")
        }
        assert harness.runtime.status().failing == other.runtime.status().failing == {}
        await client.apps.delete("west.shop")
        assert (await harness.runtime.garbage_plan()).orphans == ()
        await asyncio.sleep(3600)
        assert client.part_keys == ["east.bar.main", "east.shop.main"]


async def test_a_controller_that_runs_alone_keeps_objects_of_the_other() -> None:
    stores = MemoryStores()
    client, east = AppClient(stores), East()
    async with running(West(), stores=stores):
        await client.app("west.shop")
        await client.app("west.gone")
        await asyncio.sleep(1)
    await client.apps.delete("west.gone")
    await put(stores.store(PARTS), "of-nobody", {"spec": {"text": "of nobody"}})
    async with running(east, stores=stores) as harness:
        await asyncio.sleep(3600)

        assert east.syncs == []
        assert client.part_keys == ["of-nobody", "west.gone.main", "west.shop.main"]
        assert harness.runtime.status().failing == {}
