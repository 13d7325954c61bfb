"""Custom resources of a real cluster as managed objects."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import ConflictError, KubeKind, Manifest, NotFoundError, Primary, kube
from natsctl.managed import FINALIZER_NAME, Managed, ManagedController, ManagedReconciler
from natsctl.model.store import ManifestStore, ManifestStores, Stored
from tests.support.controllers.disk_reconciler import Cloud, CloudClient
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.stores.custom_resources import cluster, define

GROUP = "managed.natsctl.io"


class Shop:
    """A Disk object in a namespace, and the cloud in which its disk is created."""

    def __init__(self, store: ManifestStore, namespace: str) -> None:
        self.cloud = Cloud()
        self.store = store
        self.key = f"{namespace}/a"

    async def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((await self.store.get(self.key)).value)
        return document

    async def write(self, **spec: object) -> Stored:
        """Change the spec, and retry after a conflict."""
        while True:
            stored = await self.store.get(self.key)
            document = {**json.loads(stored.value), "spec": spec}
            try:
                value = json.dumps(document).encode()
                return await self.store.update(self.key, value, revision=stored.revision)
            except ConflictError:
                continue

    async def ready(self) -> bool:
        conditions = (await self.document()).get("status", {}).get("conditions", ())
        return {(condition["type"], condition["status"]) for condition in conditions} == {
            ("Ready", "True"),
            ("Synced", "True"),
        }

    async def is_deleted(self) -> bool:
        try:
            await self.store.get(self.key)
        except NotFoundError:
            return True
        return False


@asynccontextmanager
async def reconciling(
    shop: Shop, managed: KubeKind[Manifest], cluster_of_shop: ManifestStores
) -> AsyncIterator[None]:
    """Reconcile the shop's disks during the context."""

    class Disks(ManagedController[Manifest]):
        kind = managed

        def reconciler(self, managed: Primary[Manifest]) -> ManagedReconciler[Manifest]:
            return ManagedReconciler(
                managed, connecter=self.connect, recorder=self, poll_interval_s=0.2
            )

        async def connect(self, _managed: Managed[Manifest]) -> CloudClient:
            return CloudClient(shop.cloud)

    controller = Disks(kube=cluster_of_shop)
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        await eventually(controller.synced.is_set)
        yield
        controller.stop()


@pytest.fixture(params=["Disk", "Tape"], ids=["with a status subresource", "without one"])
async def shop(
    request: pytest.FixtureRequest, kube_server: KubeServer, kube_namespace: str
) -> AsyncIterator[Shop]:
    kind = kube(f"{GROUP}/v1", request.param, namespace=kube_namespace)
    with_status = request.param == "Disk"
    async with cluster(kube_server) as connected:
        await define(
            connected.transport, GROUP, request.param, scope="Namespaced", status=with_status
        )
        shop = Shop(await connected.open(kind), kube_namespace)
        async with reconciling(shop, kind, connected):
            yield shop


async def test_an_external_resource_follows_its_custom_resource(shop: Shop) -> None:
    await shop.store.create(shop.key, json.dumps({"spec": {"size": 1}}).encode())
    await eventually(shop.ready)
    assert shop.cloud.disks == {"disk-1": 1}
    document = await shop.document()
    assert document["metadata"]["finalizers"] == [FINALIZER_NAME]
    assert document["metadata"]["annotations"]["natsctl.io/external-name"] == "disk-1"
    assert document["status"]["observedGeneration"] >= 1
    await shop.write(size=2)
    await eventually(lambda: shop.cloud.disks == {"disk-1": 2})
    await shop.store.delete(shop.key)
    await eventually(shop.is_deleted)
    assert (shop.cloud.disks, shop.cloud.created) == ({}, [shop.key])


async def test_a_ready_object_is_observed_and_not_written(shop: Shop) -> None:
    await shop.store.create(shop.key, json.dumps({"spec": {"size": 1}}).encode())
    await eventually(shop.ready)
    observations = shop.cloud.calls.count("observe")
    before = await shop.store.get(shop.key)
    await eventually(lambda: shop.cloud.calls.count("observe") > observations + 3)
    assert await shop.store.get(shop.key) == before


async def test_an_unknown_creation_waits_for_a_person(shop: Shop) -> None:
    shop.cloud.creates_and_fails = True
    await shop.store.create(shop.key, json.dumps({"spec": {"size": 1}}).encode())

    async def reports_unknown_creation() -> bool:
        conditions = (await shop.document()).get("status", {}).get("conditions", ())
        return any("external-create-pending" in entry.get("message", "") for entry in conditions)

    await eventually(reports_unknown_creation)
    shop.cloud.creates_and_fails = False
    while True:
        stored = await shop.store.get(shop.key)
        document = json.loads(stored.value)
        annotations = document["metadata"]["annotations"]
        del annotations["natsctl.io/external-create-pending"]
        annotations["natsctl.io/external-name"] = "disk-1"
        try:
            value = json.dumps(document).encode()
            await shop.store.update(shop.key, value, revision=stored.revision)
            break
        except ConflictError:
            continue
    await eventually(shop.ready)
    assert shop.cloud.created == [shop.key]
