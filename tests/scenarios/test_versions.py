"""A type changes while objects stay: upgrades, rollouts, migrations and downgrades."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from natsctl import Controller, GarbageLimits, SimpleWatcher, Snapshot
from natsctl.core.compare_and_set import read, rewrite
from natsctl.core.migration import migrate, objects_of, outdated
from natsctl.model.objects import STORED_VERSION
from natsctl.model.store import Stored
from natsctl.testing import Harness, MemoryStore, MemoryStores, running
from natsctl.watchers import InformerController
from tests.support.controllers.app_controller import document
from tests.support.controllers.old_shops import Shops as OldShops
from tests.support.controllers.shop_versions import SHOPS, SIGNS, Shop, Shops, ShopSpec, old

CYCLES_S = 3600.0  # many GC cycles


async def run_once(controller: Controller, stores: MemoryStores) -> None:
    """Run the controller until it is idle."""
    async with running(controller, stores=stores) as harness:
        await harness.run_until_idle()


async def migrated(store: MemoryStore) -> int:
    """Migrate all objects, as another process does; return how many were older."""
    older = outdated(store, await objects_of(store))
    return len([step async for step in migrate(store, older)])


async def put_newest(stores: MemoryStores, key: str, *images: str) -> None:
    """Store a shop as a program of the newer version does."""
    store = stores.store(SHOPS)

    def change(current: Stored | None) -> bytes:
        value = None if current is None else current.value
        return SHOPS.encode(value, Shop(spec=ShopSpec(images)))

    await rewrite(store, key, change, seen=await read(store, key))


# ---- reading


async def test_a_sync_reads_older_objects_of_all_kinds_and_writes_the_newest_type(
    stores: MemoryStores,
) -> None:
    await stores.store(SHOPS).create("a", old("nginx"))
    await stores.store(Shops.others.kind).create("a", old("caddy"))
    controller = Shops()
    await run_once(controller, stores)
    sign = await document(stores.store(SIGNS), "a")
    assert sign["spec"] == {"images": ["nginx", "caddy"]}
    assert sign["metadata"]["annotations"][STORED_VERSION] == "2"
    shop = await document(stores.store(SHOPS), "a")
    assert (shop["spec"], shop["status"]["ready"]) == ({"images": ["nginx"]}, True)
    assert controller.synced == ["a"]


async def test_a_secondary_in_the_older_form_is_not_written_if_it_is_as_desired(
    stores: MemoryStores,
) -> None:
    await stores.store(SHOPS).create("a", old("nginx"))
    await run_once(OldShops(), stores)
    before = await stores.store(SIGNS).get("a")
    await run_once(Shops(), stores)
    assert await stores.store(SIGNS).get("a") == before


async def test_an_upgrade_that_raises_makes_the_object_invalid_with_the_reason(
    stores: MemoryStores,
) -> None:
    await stores.store(SHOPS).create("a", old("broken"))
    controller = Shops()
    async with running(controller, stores=stores) as harness:
        await harness.run_until_idle()
        assert "ValueError('no such image')" in harness.runtime.explain("a").invalid
    assert controller.synced == []


async def test_a_watcher_gets_the_newest_type(stores: MemoryStores) -> None:
    specs: list[object] = []

    async def add(new: Snapshot[Shop]) -> None:
        specs.append(new.object.spec)

    await stores.store(SHOPS).create("a", old("nginx"))
    controller = InformerController(name="shops", nats=stores)
    controller.add_informer(SHOPS)
    controller.add_watcher(SimpleWatcher(add_func=add), SHOPS)
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(1)
    controller.stop()
    await task
    assert specs == [ShopSpec(("nginx",))]


# ---- migration


@pytest.mark.parametrize("broken", [False, True], ids=["", "while the watch is broken"])
async def test_a_migration_syncs_nothing_and_writes_nothing_else(
    stores: MemoryStores, *, broken: bool
) -> None:
    for key in ("a", "b"):
        await stores.store(SHOPS).create(key, old("nginx"))
    await run_once(OldShops(), stores)
    controller = Shops()
    async with running(controller, stores=stores) as harness:
        await harness.run_until_idle()
        controller.synced.clear()
        writes = stores.store(SHOPS).writes
        if broken:
            stores.store(SHOPS).break_watches()
        await migrated(stores.store(SHOPS))
        await migrated(stores.store(SIGNS))
        await harness.run_until_idle()
        await harness.run_for(10)
        assert controller.synced == []
        assert stores.store(SHOPS).writes == writes + 2
        newest = await stores.store(SHOPS).get("a")
        assert harness.runtime.explain("a").revision == newest.revision
        signs = stores.store(SIGNS)
        assert [sign.key for sign in outdated(signs, await objects_of(signs))] == []


# ---- rollout


async def test_an_older_daemon_skips_objects_of_a_newer_version(stores: MemoryStores) -> None:
    await stores.store(SHOPS).create("a", old("nginx"))
    async with running(OldShops(), stores=stores) as harness:
        await harness.run_until_idle()
        await put_newest(stores, "a", "nginx", "caddy")
        await put_newest(stores, "b", "caddy")
        await harness.run_until_idle()
        status = harness.runtime.status()
        assert sorted(status.invalid) == ["a", "b"]
        for key in ("a", "b"):
            reason = harness.runtime.explain(key).invalid
            assert reason.startswith("stored by a newer version (2, and this program reads")
            assert status.invalid[key] == reason


async def test_an_older_daemon_keeps_the_secondaries_of_what_it_skips(stores: MemoryStores) -> None:
    async with running(Shops(), stores=stores) as harness:
        await put_newest(stores, "a", "nginx", "caddy")
        await harness.run_until_idle()
    before = await stores.store(SIGNS).get("a")
    older = OldShops()
    older.garbage = GarbageLimits(grace_s=1.0)
    async with running(older, stores=stores) as harness:
        await harness.run_for(CYCLES_S)
        plan = await harness.runtime.garbage_plan()
        assert plan.orphans == ()
    assert await stores.store(SIGNS).get("a") == before


async def test_an_older_daemon_does_not_overwrite_a_secondary_of_a_newer_version(
    stores: MemoryStores,
) -> None:
    async with running(Shops(), stores=stores) as harness:
        await put_newest(stores, "a", "nginx")
        await harness.run_until_idle()
    before = await stores.store(SIGNS).get("a")
    shops = stores.store(SHOPS)
    await shops.update("a", old("other"), revision=(await shops.get("a")).revision)
    async with running(OldShops(), stores=stores) as harness:
        await harness.run_for(60)
        (failure,) = harness.runtime.status().failing.values()
        assert "stored by a newer version" in failure
    assert await stores.store(SIGNS).get("a") == before


async def test_two_versions_work_beside_each_other_until_nothing_is_old(
    stores: MemoryStores,
) -> None:
    for number in range(10):
        await stores.store(SHOPS).create(f"k{number}", old("nginx"))
    async with AsyncExitStack() as stack:
        older: Harness = await stack.enter_async_context(running(OldShops(), stores=stores))
        await older.run_until_idle()
        newer = await stack.enter_async_context(running(Shops(), stores=stores))
        await newer.run_until_idle()
        for number in range(0, 10, 2):
            await put_newest(stores, f"k{number}", "nginx", "caddy")
        await newer.run_until_idle()
        await migrated(stores.store(SHOPS))
        await newer.run_until_idle()
        await older.run_until_idle()
        assert len(older.runtime.status().invalid) == 10
        assert newer.runtime.status().failing == {}
    signs = stores.store(SIGNS)
    decoded = {obj.key: SIGNS.decode(obj.value) for obj in await objects_of(signs)}
    assert {key: len(sign.spec.images) for key, sign in decoded.items()} == {
        f"k{number}": 2 if number % 2 == 0 else 1 for number in range(10)
    }


async def test_after_a_downgrade_an_object_in_the_older_form_is_synced_again(
    stores: MemoryStores,
) -> None:
    store = stores.store(SHOPS)
    for key in ("a", "b"):
        await store.create(key, old("nginx"))
    await run_once(OldShops(), stores)
    await put_newest(stores, "a", "caddy")
    async with running(OldShops(), stores=stores) as harness:
        await harness.run_until_idle()
        assert sorted(harness.runtime.status().invalid) == ["a"]
        await store.update("a", old("caddy"), revision=(await store.get("a")).revision)
        await harness.run_until_idle()
        assert harness.runtime.status().invalid == {}
    assert (await document(stores.store(SIGNS), "a"))["spec"] == {"image": "caddy"}


async def test_a_stopped_migration_is_continued_by_the_next_run(stores: MemoryStores) -> None:
    store = stores.store(SHOPS)
    for number in range(50):
        await store.create(f"k{number}", old("nginx"))
    first = migrate(store, await objects_of(store))
    for _ in range(20):
        await anext(first)
    await first.aclose()
    done = 50 - len(outdated(store, await objects_of(store)))
    assert 20 <= done < 50
    assert await migrated(store) == 50 - done
    assert await migrated(store) == 0
