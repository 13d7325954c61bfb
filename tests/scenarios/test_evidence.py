"""Garbage collection needs proof: a recreated or restored bucket of primaries is none."""

import asyncio
import json

import msgspec
import pytest

from natsctl import GarbagePlan, Orphan, kv
from natsctl.testing import MemoryManifestStore, MemoryStore, running
from tests.scenarios.test_garbage import GC_INTERVAL_S, LONG, OVER, owned_by, plan
from tests.scenarios.test_installations import configs, id_of, two_systems
from tests.support.controllers.app_controller import AppClient, Apps, running_apps
from tests.support.controllers.kube_sites import Sites, site
from tests.support.stores.documents import put

MEMORY = kv(bytes, bucket="natsctl")  # has the record of what garbage collection saw
KEYS = tuple(f"app-{number}" for number in range(8))
PARTS_OF_KEYS = sorted(f"{key}.main" for key in KEYS)


async def stopped_after_a_gc_cycle(*keys: str) -> AppClient:
    """Run a controller with these apps and one GC cycle, stop it, and return a client."""
    async with running_apps(Apps(), *keys) as client:
        await asyncio.sleep(GC_INTERVAL_S)
    return client


# ---- the GC record


@pytest.mark.parametrize("damaged", [None, b"{", b'{"incarnation":5}'])
async def test_garbage_is_not_collected_without_a_gc_record_until_a_user_accepts(
    damaged: bytes | None,
) -> None:
    client = await stopped_after_a_gc_cycle(*KEYS)
    await client.stores.store(MEMORY).delete("gc.apps")
    if damaged is not None:
        await client.stores.store(MEMORY).create("gc.apps", damaged)
    client.apps.vanish("app-0", "app-1")  # as in a partly restored bucket
    for _ in range(2):
        async with running(Apps(), stores=client.stores) as harness:
            await asyncio.sleep(LONG)
            assert client.part_keys == PARTS_OF_KEYS
            assert "nothing is remembered" in (await plan(harness)).refused

    async with running(Apps(), stores=client.stores) as harness:
        assert (await harness.runtime.garbage_accept()).refused == ""
        await asyncio.sleep(OVER)
        assert client.part_keys == PARTS_OF_KEYS[2:]


@pytest.mark.parametrize("cycle_s", [0.0, GC_INTERVAL_S])
async def test_a_restored_older_copy_is_detected_after_a_restart(cycle_s: float) -> None:
    async with running_apps(Apps(), *KEYS[:5]) as client:
        backup = client.apps.backup()
        await client.synced(*KEYS[5:])
        await asyncio.sleep(cycle_s)  # or the controller stops before the next GC cycle
    client.apps.restore(backup)
    for _ in range(2):
        async with running(Apps(), stores=client.stores) as harness:
            await asyncio.sleep(LONG)
            assert client.part_keys == PARTS_OF_KEYS
            assert "an older copy was restored" in (await plan(harness)).refused


async def test_a_restored_older_copy_stays_detected_over_a_restart() -> None:
    async with running_apps(Apps(), *KEYS[:5]) as client:
        backup = client.apps.backup()
        await client.synced(*KEYS[5:])
        await asyncio.sleep(GC_INTERVAL_S)
        client.apps.restore(backup)
        await asyncio.sleep(2 * GC_INTERVAL_S)
        for number in range(100):  # until the revision is above the one of the GC record
            await client.app("app-0", f"text {number}")
            await client.idle()
    async with running(Apps(), stores=client.stores) as harness:
        await asyncio.sleep(LONG)
        assert client.part_keys == PARTS_OF_KEYS
        assert "was recreated or restored" in (await plan(harness)).refused


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_delete_marker_of_a_restored_copy_is_no_proof(*, restarted: bool) -> None:
    async with running_apps(Apps(), "shop", "bar") as client:
        await client.apps.delete("shop")
        await client.idle()
        backup = client.apps.backup()
        await client.synced("shop")
        if restarted:
            await asyncio.sleep(GC_INTERVAL_S)
        else:
            client.apps.restore(backup)
            await asyncio.sleep(LONG)
    if restarted:
        client.apps.restore(backup)
        async with running(Apps(), stores=client.stores):
            await asyncio.sleep(LONG)
    assert client.part_keys == ["bar.main", "shop.main"]


async def test_the_gc_record_has_each_revision_soon(caplog: pytest.LogCaptureFixture) -> None:
    async with running_apps(Apps(), "shop") as client:
        memory = client.stores.store(MEMORY)
        for text in ("one", "two"):
            await client.app("shop", text)
            await asyncio.sleep(2)  # far less than the interval of the GC cycles
            recorded = json.loads((await memory.get("gc.apps")).value)["revision"]
            assert recorded == await client.apps.last_revision()
    assert "held" not in caplog.text  # a new controller has nothing to compare with


async def test_an_older_copy_before_an_orderly_stop_deletes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running_apps(Apps(), *KEYS[:6]) as client:
        await asyncio.sleep(GC_INTERVAL_S)
        await client.app("app-0", "newer than the GC record")
        backup = client.apps.backup()
        await client.synced(*KEYS[6:])
        client.apps.restore(backup)
        await client.idle()  # and the controller stops before the next GC cycle
    for _ in range(2):
        async with running(Apps(), stores=client.stores) as harness:
            await asyncio.sleep(LONG)
            assert client.part_keys == PARTS_OF_KEYS
            assert "restored" in (await plan(harness)).refused
    assert "garbage collection is held" in caplog.text


async def test_a_deletion_since_an_older_copy_was_restored_is_collected_over_restarts() -> None:
    async with running_apps(Apps(), *KEYS[:6]) as client:
        backup = client.apps.backup()
        await client.synced(*KEYS[6:])
        client.apps.restore(backup)
        await client.idle()
    await client.apps.delete("app-0")
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()
        assert client.part_keys == PARTS_OF_KEYS[1:]
        assert harness.runtime.garbage_held
        await client.apps.delete("app-1")
        await harness.run_until_idle()
        assert client.part_keys == PARTS_OF_KEYS[2:]


async def test_a_watched_deletion_is_collected_while_other_collection_is_refused() -> None:
    client = await stopped_after_a_gc_cycle(*KEYS)
    await client.stores.store(MEMORY).delete("gc.apps")
    client.apps.vanish("app-0")
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()
        await client.apps.delete("app-1")
        await harness.run_until_idle()
        assert client.part_keys == [PARTS_OF_KEYS[0], *PARTS_OF_KEYS[2:]]


async def test_a_gc_record_of_natsctl_0_1_is_accepted() -> None:
    client = await stopped_after_a_gc_cycle(*KEYS)
    memory = client.stores.store(MEMORY)
    await put(memory, "gc.apps", {"incarnation": "1", "populated": True})
    await client.apps.delete("app-0")
    async with running(Apps(), stores=client.stores) as harness:
        await harness.run_until_idle()
        assert client.part_keys == PARTS_OF_KEYS[1:]
        assert json.loads((await memory.get("gc.apps")).value)["revision"] > 0


async def test_the_gc_record_is_written_at_most_once_a_second_and_never_after_convergence() -> None:
    async with running_apps(Apps(), "shop") as client:
        memory = client.stores.store(MEMORY)
        before = memory.writes
        for number in range(100):
            await client.app("shop", f"text {number}")
            await client.idle()
        assert memory.writes - before <= asyncio.get_running_loop().time()
        await asyncio.sleep(2 * GC_INTERVAL_S)
        before = memory.writes
        await asyncio.sleep(LONG)
        assert memory.writes == before


# ---- owners that vanish


@pytest.mark.parametrize("cycle_s", [0.0, GC_INTERVAL_S])
@pytest.mark.parametrize(
    ("count", "empty_s", "survivor"),
    [
        *((3, 0.0, "app-0"), (8, 0.0, "app-0")),
        *((2, 1.0, "app-0"), (8, 1.0, "app-0"), (3, OVER, "app-0")),
        *((2, 0.0, "new"), (3, 1.0, "new"), (8, OVER, "new")),
    ],
)
async def test_a_put_after_a_purge_of_all_owners_collects_nothing(
    count: int, cycle_s: float, empty_s: float, survivor: str
) -> None:
    async with running_apps(Apps(), *KEYS[:count]) as client:
        await asyncio.sleep(cycle_s)
        client.apps.vanish(*KEYS[:count])
        if empty_s:
            client.apps.break_watches()
            await asyncio.sleep(empty_s)
        await client.app(survivor)
        client.apps.break_watches()
        await asyncio.sleep(LONG)
        assert set(PARTS_OF_KEYS[:count]) <= set(client.part_keys)
        assert (await plan(client)).refused


async def test_owners_that_vanish_are_compared_with_those_that_deletions_left() -> None:
    async with running_apps(Apps(), *KEYS) as client:
        for key in KEYS[4:]:
            await client.apps.delete(key)
        await asyncio.sleep(2 * GC_INTERVAL_S)
        client.apps.vanish(*KEYS[1:4])
        client.apps.break_watches()
        await asyncio.sleep(LONG)
        assert client.part_keys == PARTS_OF_KEYS[:4]
        assert "3 of 4 owners vanished" in (await plan(client)).refused


# ---- an applied plan


async def forged(store: MemoryStore | MemoryManifestStore, key: str, owner: str) -> GarbagePlan:
    """Return a plan that has the object as a proven orphan."""
    stored, kind = await store.get(key), store.kind
    reason, uid = "forged", kind.metadata(stored.value).uid
    orphan = Orphan(kind.name, key, stored.revision, owner, reason, True, 99.0, due=True, uid=uid)
    incarnation = "1" if isinstance(store, MemoryStore) else "memory"
    return GarbagePlan((orphan,), stores={kind.name: incarnation})


@pytest.mark.parametrize("owner", ["shop", "nobody"])
async def test_an_applied_plan_keeps_an_object_whose_owner_exists(owner: str) -> None:
    async with running_apps(Apps(), "shop") as client:
        outcome = await client.runtime.garbage_apply(await forged(client.parts, "shop.main", owner))
        (kept,) = outcome.kept
        assert kept.reason in {
            "its owner shop exists",
            "it does not name App.apps nobody as its owner",
        }
        assert (outcome.orphans, client.part_keys) == ((), ["shop.main"])


@pytest.mark.parametrize("change", [{"revision": 1}, {"uid": "another"}, {"uid": ""}])
async def test_an_applied_plan_keeps_an_object_of_another_revision_or_uid(
    change: dict[str, object],
) -> None:
    async with running_apps(Apps(), "shop") as client:
        await put(client.parts, "lost", owned_by("nobody"))
        await asyncio.sleep(1)
        planned = await plan(client)
        orphan = msgspec.structs.replace(planned.orphans[0], **change)
        changed = msgspec.structs.replace(planned, orphans=(orphan,))
        outcome = await client.runtime.garbage_apply(changed)
        assert outcome.kept[0].reason.startswith("it changed")
        assert client.part_keys == ["lost", "shop.main"]


async def test_an_applied_plan_keeps_an_object_of_another_installation() -> None:
    production_stores, staging_stores = two_systems()
    first = Sites()
    async with (
        running(first, stores=production_stores) as production,
        running(Sites(), stores=staging_stores) as staging,
    ):
        await first.sites.put("shop", site("hi"))
        await production.run_until_idle()
        planned = await forged(configs(production_stores), "default/shop-main", "shop")
        (kept,) = (await staging.runtime.garbage_apply(planned)).kept
        owner = await id_of(production_stores)
        assert kept.reason == f"it belongs to installation {owner}"
        assert configs(production_stores).keys() == ["default/shop-main"]
