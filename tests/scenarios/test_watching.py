"""No change is lost if watches break, stores fail or the runtime restarts."""

import asyncio
from typing import ClassVar

from natsctl.testing import running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    AppClient,
    Apps,
    SlowStores,
    running_apps,
)
from tests.support.stores.documents import put


async def test_a_watch_broken_during_a_listing_causes_only_the_necessary_syncs() -> None:
    stores, controller = SlowStores(), Apps()
    keys = (f"app-{number}" for number in range(20))
    async with running_apps(controller, *keys, stores=stores) as client:
        for halfway in (1, 7, 19, 20):
            controller.syncs.clear()
            stores.store(APPS).breaks_after = halfway
            stores.store(PARTS).breaks_after = halfway
            client.apps.break_watches(listed=True)
            client.parts.break_watches(listed=True)
            await client.app("app-3", f"broken after {halfway}")
            await asyncio.sleep(30)

            assert controller.syncs == ["app-3"]
            assert len(client.parts.keys()) == 20
            assert (await client.texts())["app-3.main"] == f"broken after {halfway}"


async def test_an_interrupted_listing_leaves_no_objects_in_the_cache() -> None:
    stores, controller = SlowStores(), Apps()
    keys = (f"app-{number}" for number in range(10))
    async with running_apps(controller, *keys, stores=stores) as client:
        slow = stores.store(APPS)
        slow.lag_s, slow.breaks_after = 1.0, 11
        client.apps.break_watches(listed=True)
        await asyncio.sleep(10)  # in the middle of the listing
        client.apps.vanish("app-1")
        await asyncio.sleep(60)

        assert controller.apps.get("app-1") is None
        assert len(controller.apps.keys()) == 9


async def test_syncing_begins_once_every_cache_is_synced() -> None:
    stores = SlowStores()
    client = AppClient(stores)
    await client.app("shop")
    await put(client.parts, "shop.main", {"spec": {"text": "theirs"}})
    stores.store(PARTS).breaks_after = 1
    controller = Apps()
    with stores.store(PARTS).held_up():
        context = running(controller, stores=stores)
        entering = asyncio.create_task(context.__aenter__())
        await asyncio.sleep(60)
        assert controller.syncs == []
    harness = await entering
    await asyncio.sleep(1)
    assert controller.syncs[0] == "shop"
    assert "ErrResourceExists" in client.reasons("shop")
    assert harness.runtime.synced.is_set()
    await context.__aexit__(None, None, None)


async def test_secondaries_of_a_primary_deleted_offline_are_deleted_at_the_next_start() -> None:
    async with running_apps(Apps(), "shop", "bar") as client:
        pass

    await client.apps.delete("shop")
    controller = Apps()
    async with running(controller, stores=client.stores) as harness:
        await harness.run_until_idle()

        assert (
            asyncio.get_running_loop().time() < 30
        )  # the delete marker is proof, so no grace period
        assert client.parts.keys() == ["bar.main"]
        assert sorted(controller.syncs) == ["bar", "shop"]


async def test_a_relist_is_read_even_if_nobody_has_read_the_state_before() -> None:
    class Readers(Apps):
        texts: ClassVar[list[str]] = []

        async def sync_handler(self, key: str) -> None:
            if key == "reader":
                app = self.apps.get("read")
                self.texts.append("" if app is None else app.spec.text)

    async with running_apps(Readers(), "reader", "read") as client:
        await client.app("read", "first")
        await client.idle()
        client.apps.break_watches(listed=True)
        await client.app("read", "second")
        await client.idle()
        await client.app("reader", "again")
        await client.idle()
        assert Readers.texts[-1] == "second"
