"""No change is lost if watches break, stores fail or the runtime restarts."""

import asyncio
from typing import ClassVar

from natsctl import StoreMissingError
from natsctl.testing import Harness, running
from tests.support.controllers.app_controller import (
    APPS,
    PARTS,
    AppClient,
    Apps,
    SlowStores,
    app_client,
    edit,
    put,
)


async def converged(harness: Harness, *keys: str) -> AppClient:
    client = app_client(harness)
    for key in keys:
        await client.app(key)
    await harness.run_until_idle()
    return client


async def test_changes_during_a_broken_watch_are_synced() -> None:
    controller = Apps()
    async with running(controller) as harness:
        client = await converged(harness, "kept", "changed", "deleted")
        controller.syncs.clear()
        client.apps.break_watches()
        await client.app("changed", "bye")
        await client.app("added")
        await client.apps.delete("deleted")
        await harness.run_until_idle()

        assert sorted(controller.syncs) == ["added", "changed", "deleted"]
        assert await client.texts() == {
            "added.main": "hi",
            "changed.main": "bye",
            "kept.main": "hi",
        }
        assert harness.runtime.status().watch_restarts == 1


async def test_secondaries_edited_during_a_broken_watch_are_restored() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop", "bar")
        client.parts.break_watches()
        await client.parts.delete("shop.main")
        await edit(client.parts, "bar.main", "spec", "text", to="tampered")
        await harness.run_until_idle()

        assert await client.texts() == {"shop.main": "hi", "bar.main": "hi"}


async def test_an_edit_in_the_same_listing_as_our_own_write_is_reverted() -> None:
    stores = SlowStores()
    async with running(Apps(), stores=stores) as harness:
        client = app_client(harness)
        with stores.store(PARTS).held_up():
            await client.app("shop")
            await asyncio.sleep(1)
            await edit(client.parts, "shop.main", "spec", "text", to="tampered")
            stores.store(PARTS).cut()
        await asyncio.sleep(5)

        assert await client.texts() == {"shop.main": "hi"}


async def test_a_watch_broken_during_a_listing_causes_only_the_necessary_syncs() -> None:
    stores, controller = SlowStores(), Apps()
    async with running(controller, stores=stores) as harness:
        client = await converged(harness, *(f"app-{number}" for number in range(20)))
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
    async with running(controller, stores=stores) as harness:
        client = await converged(harness, *(f"app-{number}" for number in range(10)))
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


async def test_a_relist_finds_deletions_without_an_event() -> None:
    controller = Apps()
    async with running(controller) as harness:
        client = await converged(harness, "shop", "bar")
        client.apps.vanish("shop")
        client.parts.vanish("bar.main")
        client.apps.break_watches()
        client.parts.break_watches()
        await harness.run_until_idle()

        assert controller.apps.get("shop") is None
        assert (await client.texts())["bar.main"] == "hi"


async def test_secondaries_of_a_primary_deleted_offline_are_deleted_at_the_next_start() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop", "bar")
    await client.apps.delete("shop")
    controller = Apps()
    async with running(controller, stores=client.stores) as harness:
        await harness.run_until_idle()

        assert (
            asyncio.get_running_loop().time() < 30
        )  # the delete marker is proof, so no grace period
        assert client.parts.keys() == ["bar.main"]
        assert sorted(controller.syncs) == ["bar", "shop"]


async def test_a_primary_recreated_offline_is_synced_and_keeps_its_secondaries() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop")
    await client.apps.delete("shop")
    await client.app("shop", "again")
    revision = (await client.parts.get("shop.main")).revision
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()

        assert await client.texts() == {"shop.main": "again"}
        states = await client.parts.history("shop.main")
        assert [state.revision for state in states] == [
            revision,
            revision + 1,
        ]  # updated, not deleted


async def test_secondaries_edited_while_no_process_ran_are_restored_at_the_next_start() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop", "bar")
    await client.parts.delete("shop.main")
    await edit(client.parts, "bar.main", "spec", "text", to="tampered")
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()

        assert await client.texts() == {"shop.main": "hi", "bar.main": "hi"}


async def test_a_primary_recreated_quickly_keeps_correct_secondaries() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop")
        for number in range(5):
            await client.apps.delete("shop")
            await client.app("shop", str(number))
        await harness.run_until_idle()

        assert await client.texts() == {"shop.main": "4"}


async def test_a_primary_deleted_during_its_sync_leaves_no_secondaries() -> None:
    class Slow(Apps):
        async def sync_handler(self, key: str) -> float | None:
            await asyncio.sleep(5)
            await super().sync_handler(key)
            await asyncio.sleep(5)
            return None

    for deleted_after_s in (1, 6):
        async with running(Slow()) as harness:
            client = app_client(harness)
            await client.app("shop")
            await asyncio.sleep(deleted_after_s)
            await client.apps.delete("shop")
            await harness.run_until_idle()

            assert client.parts.keys() == []


async def test_a_missing_bucket_is_reported_and_the_runtime_continues() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop")
        client.apps.fail(StoreMissingError("the bucket apps does not exist"))
        client.parts.fail(StoreMissingError("the bucket parts does not exist"))
        await asyncio.sleep(600)
        assert "does not exist" in (await harness.runtime.garbage_plan()).refused
        client.apps.fail(None)
        client.parts.fail(None)
        await client.app("shop", "bye")
        await asyncio.sleep(60)

        assert await client.texts() == {"shop.main": "bye"}


async def test_a_recreated_bucket_of_secondaries_is_filled_again() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop", "bar")
        client.parts.recreate()
        await asyncio.sleep(30)

        assert await client.texts() == {"shop.main": "hi", "bar.main": "hi"}


async def test_the_primaries_of_a_recreated_bucket_are_synced() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop", "bar")
        client.apps.recreate()
        for key in ("bar", "shop"):  # other objects at the same revisions
            await client.app(key, f"new {key}")
        await asyncio.sleep(30)

        assert await client.texts() == {"shop.main": "new shop", "bar.main": "new bar"}


async def test_stopping_closes_every_watch() -> None:
    async with running(Apps()) as harness:
        client = await converged(harness, "shop")
        assert (client.apps.watches, client.parts.watches) == (1, 1)
    assert (client.apps.watches, client.parts.watches) == (0, 0)


async def test_a_relist_is_read_even_if_nobody_has_read_the_state_before() -> None:
    class Readers(Apps):
        texts: ClassVar[list[str]] = []

        async def sync_handler(self, key: str) -> None:
            if key == "reader":
                app = self.apps.get("read")
                self.texts.append("" if app is None else app.spec.text)

    async with running(Readers()) as harness:
        client = await converged(harness, "reader", "read")
        await client.app("read", "first")
        await harness.run_until_idle()
        client.apps.break_watches(listed=True)
        await client.app("read", "second")
        await harness.run_until_idle()
        await client.app("reader", "again")
        await harness.run_until_idle()
        assert Readers.texts[-1] == "second"
