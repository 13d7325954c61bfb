"""The status of a primary in a read-only mirror is kept in a bucket of its own."""

import json
from typing import Any

import msgspec
import pytest

from natsctl import Controller, Object, UsageError, kv, primary, secondary, tertiary
from natsctl.managed import ManagedController
from natsctl.testing import MemoryStore, running
from tests.support.stores import documents


class Status(msgspec.Struct, frozen=True, rename="camel"):
    shown: str = ""
    observed_generation: int = 0


class Site(Object, frozen=True):
    spec: str = ""
    status: Status = Status()  # type: ignore[assignment]  # narrower


SITES = kv(Site, bucket="sites", status_bucket="site_status")
STATUSES = kv(bytes, bucket="site_status")


class Sites(Controller):
    sites = primary(SITES)

    def __init__(self) -> None:
        self.before: list[str] = []  # what `get`, `items` and `read` return of the status

    async def sync_handler(self, key: str) -> None:
        site = self.sites.get(key)
        if site is None:
            return
        read = await self.sites.read(key)
        assert read is not None
        assert site.status == self.sites.items()[key].status == read.status
        self.before.append(site.status.shown)
        await self.sites.update_status(key, {"shown": site.spec})
        written = self.sites.get(key)
        assert written is not None
        assert written.status.shown == site.spec


async def put(store: MemoryStore, key: str, spec: str, generation: int = 1) -> None:
    await documents.put(store, key, {"metadata": {"generation": generation}, "spec": spec})


async def kept(store: MemoryStore, key: str) -> Any:
    return json.loads((await store.get(key)).value)


async def test_a_status_goes_to_its_bucket_and_comes_back_with_the_object() -> None:
    controller = Sites()
    async with running(controller) as harness:
        sites, statuses = harness.stores.store(SITES), harness.stores.store(STATUSES)
        await put(sites, "shop", "hello")
        await harness.run_until_idle()
        document = await kept(statuses, "shop")
        assert document["status"] == {"shown": "hello", "observedGeneration": 1}
        assert document["metadata"]["annotations"]["natsctl.io/owner-key"] == "shop"
        assert "status" not in await kept(sites, "shop")
        await put(sites, "shop", "bye", 2)
        await harness.run_until_idle()
        assert controller.before == ["", "hello"]
        assert (await kept(statuses, "shop"))["status"]["observedGeneration"] == 2

        written = await statuses.last_revision()
        harness.runtime.resync()
        await harness.run_until_idle()
        assert controller.before == ["", "hello", "bye"]
        assert await statuses.last_revision() == written


async def test_the_status_goes_with_its_object() -> None:
    async with running(Sites()) as harness:
        sites, statuses = harness.stores.store(SITES), harness.stores.store(STATUSES)
        await put(sites, "shop", "hello")
        await put(sites, "blog", "hi")
        await harness.run_until_idle()
        await sites.delete("shop")
        await harness.run_until_idle()
        assert statuses.keys() == ["blog"]


async def test_a_status_that_others_change_is_repaired() -> None:
    controller = Sites()
    async with running(controller) as harness:
        sites, statuses = harness.stores.store(SITES), harness.stores.store(STATUSES)
        await put(sites, "shop", "hello")
        await harness.run_until_idle()
        for change in ({"shown": "nonsense"}, {"shown": 7}):
            before = await statuses.get("shop")
            document = {**json.loads(before.value), "status": change}
            value = json.dumps(document).encode()
            await statuses.update("shop", value, revision=before.revision)
            await harness.run_until_idle()
            assert (await kept(statuses, "shop"))["status"]["shown"] == "hello"
        await statuses.delete("shop")
        await harness.run_until_idle()
        assert (await kept(statuses, "shop"))["status"]["shown"] == "hello"
        assert controller.before == ["", "nonsense", "", ""]  # 7 is no text


async def test_an_object_of_somebody_else_stays() -> None:
    async with running(Sites()) as harness:
        sites, statuses = harness.stores.store(SITES), harness.stores.store(STATUSES)
        await statuses.create("shop", b'{"status": {"shown": "mine"}}')
        await put(sites, "shop", "hello")
        await harness.run_for(5)
        assert "already exists" in str(harness.runtime.status().failing["shop"])
        assert await kept(statuses, "shop") == {"status": {"shown": "mine"}}


def test_only_the_primary_of_a_controller_has_a_status_bucket() -> None:
    class Managed(ManagedController[Site]):
        kind = SITES

    with pytest.raises(UsageError, match="only a primary"):
        secondary(SITES)
    with pytest.raises(UsageError, match="only a primary"):
        tertiary(SITES)
    with pytest.raises(UsageError, match="only a Controller"):
        Managed()
    with pytest.raises(UsageError, match="another bucket"):
        kv(Site, bucket="sites", status_bucket="sites")
    with pytest.raises(UsageError, match="subclass"):
        kv(bytes, bucket="sites", status_bucket="statuses")
