"""Two NATS systems that share a cluster never change each other's objects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from natsctl import Controller, kv, primary, secondary
from natsctl.core.installation import INSTALLATION, KEY, adopt, assign, installation, is_first_run
from natsctl.errors import InvalidObjectError, PermissionDeniedError, StoreTimeoutError, UsageError
from natsctl.testing import Harness, MemoryManifestStore, MemoryStores, running
from tests.support.controllers.kube_sites import CONFIGS, SITES, Site, Sites, site
from tests.support.stores import documents

MARK = "natsctl.io/installation"
LONG = 3 * 3600.0


def two_systems() -> tuple[MemoryStores, MemoryStores]:
    """Return two NATS systems that share one cluster."""
    stores = MemoryStores()
    return stores, MemoryStores(kube=stores.kube)


def configs(stores: MemoryStores) -> MemoryManifestStore:
    return stores.kube.store(CONFIGS)


async def id_of(stores: MemoryStores) -> str:
    return (await installation(stores)).id


def marks(stores: MemoryStores) -> dict[str, object]:
    """Return the installation that each object carries, by key."""
    store = configs(stores)
    return {key: mark(store, key) for key in store.keys()}  # noqa: SIM118 - a method's list


def mark(store: MemoryManifestStore, key: str) -> object:
    annotations = documents.metadata_of(store.document(key)).get("annotations")
    return annotations.get(MARK) if isinstance(annotations, dict) else None


async def made_by_01(stores: MemoryStores, owner: str, name: str) -> None:
    """Create an object as natsctl 0.1 did: with an owner and without an installation."""
    names = {"natsctl.io/owner-kind": "Site.sites", "natsctl.io/owner-key": owner}
    document = {"metadata": {"labels": names, "annotations": names}, "data": {"text": "hi"}}
    await configs(stores).create(f"default/{name}", msgspec.json.encode(document))


class System:
    """A NATS system in which a controller of sites runs."""

    def __init__(self, harness: Harness, controller: Sites) -> None:
        self.runtime, self.stores = harness.runtime, harness.stores
        self.sites, self.configs = controller.sites, configs(harness.stores)


@asynccontextmanager
async def production_and_staging(
    production: Sites, staging: Sites
) -> AsyncIterator[tuple[System, System]]:
    """Run these controllers in two systems that share a cluster; production has made an object."""
    stores, other_stores = two_systems()
    async with (
        running(production, stores=stores) as harness,
        running(staging, stores=other_stores) as other_harness,
    ):
        await production.sites.put("shop", site("hi"))
        await harness.run_until_idle()
        yield System(harness, production), System(other_harness, staging)


def errors(stores: MemoryStores, key: str) -> list[str]:
    """Return the messages of the key's events of the reason `ErrResourceExists`."""
    events = stores.events.events
    return [
        event.message
        for event in events
        if event.key == key and event.reason == "ErrResourceExists"
    ]


# ---- objects of another installation


async def test_an_object_carries_the_installation_of_its_primary() -> None:
    stores = MemoryStores()
    async with running(controller := Sites(), stores=stores) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
        assert marks(stores) == {"default/shop-main": await id_of(stores)}


async def test_one_installation_never_collects_the_objects_of_another() -> None:
    async with production_and_staging(Sites(), Sites()) as (production, staging):
        for number in range(7):
            await production.sites.put(f"s{number}", site("hi"))
        await asyncio.sleep(1)
        before = production.configs.writes
        await asyncio.sleep(LONG)

        assert len(production.configs.keys()) == 8
        assert production.configs.writes == before
        assert (await staging.runtime.garbage_plan(at_once=True)).orphans == ()


@pytest.mark.parametrize("options", [{}, {"adopt": True}, {"force": True}])
async def test_a_primary_of_the_same_key_neither_takes_nor_deletes_the_object_of_another(
    options: dict[str, bool],
) -> None:
    async with production_and_staging(Sites(**options), Sites(**options)) as (production, staging):
        before = production.configs.writes
        await staging.sites.put("shop", site("staging"))
        await asyncio.sleep(LONG)
        await staging.sites.delete("shop")
        await asyncio.sleep(LONG)
        assert production.configs.writes == before
        assert production.configs.document("default/shop-main")["data"] == {"text": "hi"}


async def test_a_handler_cannot_delete_another_installations_object() -> None:
    class Deleting(Sites):
        async def sync_handler(self, key: str) -> float | None:
            await self.configs.delete("default/shop-main")
            return None

    async with production_and_staging(Sites(), Deleting()) as (production, staging):
        await staging.sites.put("shop", site("hi"))
        await asyncio.sleep(60)
        assert production.configs.keys() == ["default/shop-main"]
        assert "of installation" in errors(staging.stores, "shop")[0]


# ---- objects without an installation


async def test_an_object_without_installation_is_adopted_with_one_write() -> None:
    stores = MemoryStores()
    async with running(controller := Sites(), stores=stores) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
    annotations: dict[str, Any] = {MARK: None, "natsctl.io/applied": "of-an-older-manifest"}
    await documents.edit(
        configs(stores), "default/shop-main", metadata={"annotations": annotations}
    )
    before = configs(stores).writes

    async with running(Sites(force=True), stores=stores) as harness:
        await harness.run_until_idle()
        assert configs(stores).writes == before + 1
        assert marks(stores) == {"default/shop-main": await id_of(stores)}
        await asyncio.sleep(LONG)
        assert configs(stores).writes == before + 1


async def test_the_installation_that_has_the_primary_adopts_the_object() -> None:
    production, staging = two_systems()
    await made_by_01(production, "shop", "shop-main")
    await put_site(production, "shop")
    await put_site(staging, "bar")
    async with (
        running(Sites(force=True), stores=production),
        running(Sites(force=True), stores=staging),
    ):
        await asyncio.sleep(LONG)
    assert marks(production)["default/shop-main"] == await id_of(production)


async def test_an_object_without_installation_and_primary_is_never_collected() -> None:
    stores = MemoryStores()
    await put_site(stores, "bar")
    await made_by_01(stores, "shop", "shop-main")
    async with running(Sites(), stores=stores) as harness:
        await asyncio.sleep(LONG)
        assert "default/shop-main" in configs(stores).keys()  # noqa: SIM118 - a method's list
        (orphan,) = (await harness.runtime.garbage_plan()).orphans
        assert orphan.held == "it names no owner; it was made for Site.sites shop"


async def put_site(stores: MemoryStores, key: str) -> None:
    await stores.store(SITES).create(key, b'{"spec": {"text": "hi"}}')


# ---- restored and adopted installations


async def test_a_system_with_an_assigned_installation_id_needs_no_write() -> None:
    old = MemoryStores()
    async with running(controller := Sites(), stores=old) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
    before = configs(old).writes
    new = MemoryStores(kube=old.kube)
    await put_site(new, "shop")
    await assign(new, await id_of(old))
    async with running(Sites(), stores=new) as harness:
        await harness.run_until_idle()
        assert configs(old).writes == before
        assert errors(new, "shop") == []


async def test_objects_of_a_lost_installation_are_kept_until_it_is_adopted() -> None:
    lost = MemoryStores()
    async with running(controller := Sites(), stores=lost) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
    new = MemoryStores(kube=lost.kube)
    await put_site(new, "shop")
    async with running(Sites(), stores=new):
        await asyncio.sleep(60)
        assert marks(new) == {"default/shop-main": await id_of(lost)}
        assert len(errors(new, "shop")) > 0


# ---- NATS secondaries


async def test_an_object_in_nats_carries_no_installation() -> None:
    class Copies(Controller):
        sites = primary(SITES)
        copies = secondary(kv(Site, bucket="copies"))

        async def sync_handler(self, key: str) -> float | None:
            current = self.sites.get(key)
            if current is not None:
                await self.copies.apply(key, current)
            return None

    async with running(controller := Copies()) as harness:
        await controller.sites.put("shop", site("hi"))
        await harness.run_until_idle()
        copy = controller.copies.get("shop")
        assert copy is not None
        assert MARK not in copy.metadata.annotations


# ---- the id


async def test_processes_that_start_at_once_agree_on_one_id() -> None:
    stores = MemoryStores()
    results = await asyncio.gather(*(installation(stores) for _ in range(20)))
    assert len({result.id for result in results}) == 1
    assert stores.store(INSTALLATION).writes == 1


async def test_an_invalid_or_unreadable_id_is_not_replaced() -> None:
    stores = MemoryStores()
    await stores.store(INSTALLATION).create(KEY, b"garbage")
    with pytest.raises(InvalidObjectError):
        await installation(stores)
    assert (await stores.store(INSTALLATION).get(KEY)).value == b"garbage"
    stores.store(INSTALLATION).fail(PermissionDeniedError("not for you"))
    with pytest.raises(PermissionDeniedError):
        await installation(stores)


async def test_a_read_without_an_answer_is_repeated() -> None:
    stores = MemoryStores()
    created = await installation(stores)
    stores.store(INSTALLATION).fail(StoreTimeoutError("no answer"))
    asyncio.get_running_loop().call_later(2.0, stores.store(INSTALLATION).fail, None)
    assert await installation(stores) == created


class SilentStores(MemoryStores):
    async def open(self, kind: object) -> object:  # type: ignore[override]
        await asyncio.Event().wait()
        return None


async def test_reading_the_id_has_a_deadline() -> None:
    with pytest.raises(StoreTimeoutError, match="within 3 s"):
        await installation(SilentStores(), deadline_s=3.0)  # type: ignore[arg-type]


async def test_an_installation_cannot_adopt_itself() -> None:
    stores = MemoryStores()
    with pytest.raises(UsageError, match="is this installation"):
        await adopt(stores, await id_of(stores))


async def test_only_the_first_process_of_a_controller_is_the_first() -> None:
    stores = MemoryStores()
    assert await is_first_run(stores, "greetings")
    assert await is_first_run(stores, "others")
    assert not await is_first_run(stores, "greetings")
