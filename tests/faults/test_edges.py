"""An edge works on without its hub: desired state flows down, status flows up."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from natsctl import (
    Controller,
    ControllerRuntime,
    Object,
    Operation,
    connect,
    kv,
    primary,
    secondary,
)
from tests.support.clients.nats_admin import FAILURES, Admin
from tests.support.controllers.copy_controller import Copy, CopySpec
from tests.support.eventually import eventually
from tests.support.servers.leaf_node import hub_server, leaf_server

PATIENCE_S = 90.0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    shown: str = ""
    observed_generation: int = 0


class Site(Object, frozen=True, kw_only=True):
    spec: CopySpec
    status: Status = Status()  # type: ignore[assignment]  # narrower


class Sites(Controller):
    """Makes a page of each site on the edge, and reports what it shows."""

    sites = primary(kv(Site, bucket="sites", status_bucket="site_status", create=False))
    pages = secondary(kv(Copy, bucket="pages"))

    def __init__(self) -> None:
        self.syncs: list[tuple[str, str]] = []  # the key, and the text that was reported before

    async def sync_handler(self, key: str) -> None:
        site = self.sites.get(key)
        if site is None:
            return
        self.syncs.append((key, site.status.shown))
        await self.pages.apply(key, Copy(spec=site.spec))
        await self.sites.update_status(key, {"shown": site.spec.text})


async def share(above: Admin, below: Admin) -> None:
    """The hub has the sites, and gathers the statuses; the edge has a mirror of the sites."""
    await above.create("sites")
    origin = {"name": "KV_sites", "external": {"api": "$JS.hub.API"}}
    mirror = {"name": "KV_sites", "mirror": origin, "allow_direct": True}
    await below.api("STREAM.CREATE.KV_sites", mirror)
    source = {"name": "KV_site_status", "external": {"api": "$JS.edge.API"}}
    gathered = {"name": "KV_site_status", "sources": [source], "max_msgs_per_subject": 1}
    await above.api("STREAM.CREATE.KV_site_status", gathered)


async def status_in(admin: Admin, key: str) -> Any:
    """Return what the hub knows of the status of a site, None if nothing."""
    with suppress(*FAILURES):
        entry = await admin.entry("site_status", key)
        if not entry.marker:
            return json.loads(entry.value)["status"].get("shown")
    return None


async def put(admin: Admin, key: str, text: str, generation: int = 1) -> None:
    metadata = {"generation": generation}
    await admin.put("sites", key, {"metadata": metadata, "spec": {"text": text}})


@pytest.mark.timeout(300)
async def test_an_edge_catches_up_after_it_has_lost_its_hub(tmp_path: Path) -> None:
    controller = Sites()

    async def shows(**texts: str | None) -> bool:
        return all([await status_in(above, key) == text for key, text in texts.items()])

    async with (
        hub_server(tmp_path / "hub") as hub,
        leaf_server(tmp_path / "edge", hub, domain="edge") as edge,
        Admin(hub.url) as above,
        Admin(edge.url) as below,
        connect(edge.url) as nats,
    ):
        await share(above, below)
        runtime = ControllerRuntime(controller, nats=nats)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(runtime.run())
            await put(above, "shop", "hello")
            await put(above, "blog", "hi")
            await eventually(lambda: shows(shop="hello", blog="hi"), within_s=PATIENCE_S)
            assert json.loads((await below.entry("pages", "shop")).value)["spec"]["text"] == "hello"

            hub.kill()
            synced = len(controller.syncs)
            await below.put("pages", "shop", {"spec": {"text": "vandalised"}})  # work at the edge

            async def is_repaired() -> bool:
                page = json.loads((await below.entry("pages", "shop")).value)
                return bool(page["spec"]["text"] == "hello")

            await eventually(is_repaired, within_s=PATIENCE_S)
            assert controller.syncs[synced] == ("shop", "hello")  # with the status that it wrote

            await hub.start()
            await put(above, "shop", "good morning", 2)
            await put(above, "cafe", "coffee")
            await above.delete("sites", "blog")
            await eventually(
                lambda: shows(shop="good morning", cafe="coffee", blog=None),
                within_s=PATIENCE_S,
                every_s=0.5,  # the servers try again after 40 s
            )
            pages = await below.entries("pages")
            assert {key for key, page in pages.items() if not page.marker} == {"shop", "cafe"}
            status = json.loads((await above.entry("site_status", "shop")).value)["status"]
            assert status == {"shown": "good morning", "observedGeneration": 2}

            written = await writes(below)
            syncs = len(controller.syncs)
            runtime.enqueue_key("shop", Operation.MANUAL)
            await eventually(lambda: len(controller.syncs) > syncs, within_s=PATIENCE_S)
            await eventually(lambda: runtime.idle, within_s=PATIENCE_S)
            assert await writes(below) == written
            runtime.stop()


async def writes(admin: Admin) -> list[int]:
    infos = [await admin.info(name) for name in ("pages", "site_status")]
    return [info["state"]["last_seq"] for info in infos]
