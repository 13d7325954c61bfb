"""A controller that makes ConfigMaps for sites, and another manager of their fields."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from natsctl import Controller, Manifest, Object, kube, kv, primary, secondary
from natsctl.testing import Harness, MemoryManifestStore, MemoryStores, running
from tests.support.stores import documents


class SiteSpec(msgspec.Struct, frozen=True):
    text: str
    names: tuple[str, ...] = ("main",)
    immutable: bool = False


class Site(Object, frozen=True):
    spec: SiteSpec


SITES = kv(Site, bucket="sites")
CONFIGS = kube("v1", "ConfigMap", namespace="default")
MAIN = "default/shop-main"  # the ConfigMap of the site `shop`


def site(text: str, *names: str, immutable: bool = False) -> Site:
    return Site(spec=SiteSpec(text, names or ("main",), immutable))


def config(name: str, text: str) -> Manifest:
    return {"metadata": {"name": name}, "data": {"text": text}}


class Sites(Controller):
    """Creates the ConfigMaps `shop-a` and `shop-b` for a site `shop` with the names `a` and `b`."""

    sites = primary(SITES)
    configs = secondary(CONFIGS)

    def __init__(self, *, force: bool = True, adopt: bool = False) -> None:
        self.force = force
        self.adopt = adopt

    async def sync_handler(self, key: str) -> float | None:
        site = self.sites.get(key)
        if site is None:
            return None
        slug = key.replace("/", "-").replace("=", "-").lower()[:200]
        wanted = {f"default/{slug}-{name}" for name in site.spec.names}
        for name in site.spec.names:
            manifest = config(f"{slug}-{name}", site.spec.text)
            if site.spec.immutable:
                manifest["immutable"] = True
            await self.configs.apply(manifest, force=self.force, adopt=self.adopt)
        for leftover_key in self.configs.owned().keys() - wanted:
            await self.configs.delete(leftover_key)
        await self.sites.update_status(key, {"configs": len(self.configs.owned())})
        return None


S = TypeVar("S", bound=Sites)


@asynccontextmanager
async def made(
    controller: S, shop: Site | None = None, *, stores: MemoryStores | None = None
) -> AsyncIterator[Harness]:
    """Run the controller, and yield once it has made the ConfigMaps of the site `shop`."""
    async with running(controller, stores=stores) as harness:
        await controller.sites.put("shop", shop or site("hi"))
        await harness.run_until_idle()
        yield harness


def configs(harness: Harness) -> MemoryManifestStore:
    return harness.stores.kube.store(CONFIGS)


def data(store: MemoryManifestStore, key: str = MAIN) -> dict[str, Any]:
    current = store.document(key)["data"]
    assert isinstance(current, dict)
    return current


async def force(store: MemoryManifestStore, text: str, manager: str = "kubectl") -> None:
    """Apply another text to the ConfigMap of `shop` as another field manager, with force."""
    uid = str(documents.metadata_of(store.document(MAIN))["uid"])
    theirs: documents.Document = {
        **config("shop-main", text),
        "apiVersion": "v1",
        "kind": "ConfigMap",
    }
    documents.metadata_of(theirs)["namespace"] = "default"
    await store.apply(theirs, manager=manager, uid=uid, force=True)
