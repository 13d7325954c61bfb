"""Correct controllers of each surface that report a broken promise of natsctl.

No two workers have one key, no sync acts on a state older than its own last write, and no sync of a
paused key begins.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from natsctl import (
    Controller,
    Kind,
    KubeKind,
    ManagedController,
    ManagedReconciler,
    Primary,
    Snapshot,
    finalized,
    kube,
    primary,
    secondary,
)
from natsctl.managed import Managed
from natsctl.testing import SimulatedExternal
from natsctl.testing.simulation.external import ExternalSpecs
from natsctl.testing.simulation.network import Network
from natsctl.testing.simulation.process import life_of_task
from tests.support.controllers.faulty import DOCUMENTS, PARTS, SHOPS, Shop, part
from tests.support.controllers.simulated_surfaces import SignsOfShops
from tests.support.stores import documents

CLOUD = SimulatedExternal("cloud")
POSTERS = kube("v1", "ConfigMap")
WIDGETS = kube("example.com/v1", "Widget")
NAMESPACE = "default"
HOLD = "careful/cloud"

IN_A_CLUSTER: tuple[dict[str, Any], ...] = tuple(
    {
        "apiVersion": WIDGETS.api_version,
        "kind": WIDGETS.kind,
        "metadata": {"name": document["key"], "namespace": NAMESPACE},
        "spec": {"image": document["spec"]["image"]},
    }
    for document in DOCUMENTS
)

_workers: WeakKeyDictionary[Network, dict[str, object]] = WeakKeyDictionary()


async def handle(key: str) -> None:
    """Take a few steps; no other worker of any process may take one for the key between."""
    life, worker = life_of_task(), object()
    report = life.network.on_overlap
    workers = _workers.setdefault(life.network, {})
    former = workers.get(key)
    if isinstance(former, tuple) and former[0] is life:
        report(f"two workers of one process have {key}")
    workers[key] = life, worker
    try:
        for _ in range(2):
            await asyncio.sleep(0.003)
            if workers.get(key) != (life, worker):
                report(f"a worker took a step for {key} after another began")
    finally:
        if workers.get(key) == (life, worker):
            del workers[key]


async def provide(name: str, fields: Mapping[str, Any]) -> None:
    """Keep the fields in the cloud."""
    if await CLOUD.read(name) is None:
        await CLOUD.create(fields, name=name)
    await CLOUD.update(name, fields)


class Shops(Controller):
    """Notes in the status which image was handled last."""

    shops = primary(SHOPS)

    def __init__(self) -> None:
        self.writes: dict[str, int] = {}  # by the objects' uids

    async def sync_handler(self, key: str) -> None:
        self.check_pause(key)
        await self.sync(key)

    def check_pause(self, key: str) -> None:
        """Report a sync that begins although its key is paused; a pause may come later."""
        pause, report = self.runtime.explain(key).paused, life_of_task().network.on_overlap
        if pause is not None and not pause.controller:
            report(f"{key} is synced although it is paused")

    async def sync(self, key: str) -> None:
        report = life_of_task().network.on_overlap
        await handle(key)
        shop = self.shops.get(key)
        if shop is None:
            return
        uid, writes = shop.metadata.uid, int(str(shop.status.get("writes", 0)))
        if writes < self.writes.get(uid, 0):
            report(f"{key} was synced on a state older than its own write")
        await self.make(key, shop)
        if shop.status.get("image") != shop.spec.image:
            await self.shops.update_status(key, {"image": shop.spec.image, "writes": writes + 1})
            self.writes[uid] = writes + 1

    async def make(self, key: str, shop: Shop) -> None:
        """Make what the shop needs."""


class TwoStores(Shops):
    """Makes a part in NATS and a poster in a cluster for each shop, named by its image."""

    parts = secondary(PARTS)
    posters = secondary(POSTERS)

    async def make(self, key: str, shop: Shop) -> None:
        name = f"{key}.{shop.spec.image}"
        await self.parts.apply(name, part(shop))
        for former in self.parts.owned().keys() - {name}:
            await self.parts.delete(former)
        metadata = {"name": name, "namespace": NAMESPACE}
        await self.posters.apply({"metadata": metadata, "data": {"image": shop.spec.image}})
        for former in self.posters.owned().keys() - {f"{NAMESPACE}/{name}"}:
            await self.posters.delete(former)


class Held(Shops):
    """Keeps the image of each shop in a cloud, and holds the shop until it is removed there."""

    async def sync_handler(self, key: str) -> None:
        self.check_pause(key)
        await finalized(self.shops, key, HOLD, apply=self.provide, cleanup=self.clean_up)

    async def provide(self, key: str, shop: Shop) -> None:
        await self.sync(key)
        await provide(key, {"image": shop.spec.image})

    async def clean_up(self, key: str, _shop: Shop) -> None:
        await handle(key)
        await CLOUD.delete(key)


class Watched(SignsOfShops):
    """Keeps the image of each object in a cloud."""

    async def start(self) -> None:
        pass

    async def shown(self, new: Snapshot[Any]) -> None:
        await handle(new.key)
        spec = documents.parse(new.value)["spec"]
        assert isinstance(spec, dict)
        await provide(new.key, {"image": spec["image"]})

    async def gone(self, last: Snapshot[Any]) -> None:
        await handle(last.key)
        await CLOUD.delete(last.key)


class WatchedInACluster(Watched):
    kind = WIDGETS


class ExclusiveSpecs(ExternalSpecs):
    """Keeps the specs of managed objects in the cloud, with one worker for each."""

    async def create(self, managed: Managed[Any]) -> None:
        await handle(managed.key)
        await super().create(managed)

    async def update(self, managed: Managed[Any]) -> None:
        await handle(managed.key)
        await super().update(managed)

    async def delete(self, managed: Managed[Any]) -> None:
        await handle(managed.key)
        await super().delete(managed)


class ExclusiveCloud(SimulatedExternal):
    async def connect(self, managed: Managed[Any]) -> ExclusiveSpecs:
        return ExclusiveSpecs(self)


class ManagedShops(ManagedController[Any]):
    """Keeps each object in the cloud. Users replace objects as a whole, which drops their links."""

    kind: Any = SHOPS

    def reconciler(self, managed: Primary[Any]) -> ManagedReconciler[Any]:
        return ManagedReconciler(
            managed,
            connecter=ExclusiveCloud("cloud"),
            external_name=lambda stored: stored.key,
            recorder=self,
        )


class ManagedInACluster(ManagedShops):
    """Users apply the objects, which keeps their links: nothing else has them in a cluster."""

    kind = WIDGETS


def documents_of(kinds: tuple[Kind[Any], ...]) -> tuple[dict[str, Any], ...]:
    return IN_A_CLUSTER if isinstance(kinds[0], KubeKind) else DOCUMENTS
