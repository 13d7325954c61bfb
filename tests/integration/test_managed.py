"""Custom resources of a real cluster as managed objects."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from natsctl import ConflictError, KubeKind, Manifest, NotFoundError, Primary, kube
from natsctl.managed import FINALIZER_NAME, Managed, ManagedController, ManagedReconciler
from natsctl.model.store import ManifestStore, ManifestStores
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

    async def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the object, and retry after a conflict."""
        while True:
            stored = await self.store.get(self.key)
            document = json.loads(stored.value)
            change(document)
            value = json.dumps(document).encode()
            with suppress(ConflictError):
                await self.store.update(self.key, value, revision=stored.revision)
                return

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
    """A ready object is observed, and not written."""
    await shop.store.create(shop.key, json.dumps({"spec": {"size": 1}}).encode())
    await eventually(shop.ready)
    assert shop.cloud.disks == {"disk-1": 1}
    document = await shop.document()
    assert document["metadata"]["finalizers"] == [FINALIZER_NAME]
    assert document["metadata"]["annotations"]["natsctl.io/external-name"] == "disk-1"
    assert document["status"]["observedGeneration"] >= 1
    observations = shop.cloud.calls.count("observe")
    before = await shop.store.get(shop.key)
    await eventually(lambda: shop.cloud.calls.count("observe") > observations + 3)
    assert await shop.store.get(shop.key) == before
    await shop.edit(lambda document: document.update(spec={"size": 2}))
    await eventually(lambda: shop.cloud.disks == {"disk-1": 2})
    await shop.store.delete(shop.key)
    await eventually(shop.is_deleted)
    assert (shop.cloud.disks, shop.cloud.created) == ({}, [shop.key])


@pytest.mark.parametrize("shop", ["Disk"], indirect=True)
async def test_an_unknown_creation_waits_for_a_person(shop: Shop) -> None:
    shop.cloud.creates_and_fails = True
    await shop.store.create(shop.key, json.dumps({"spec": {"size": 1}}).encode())

    async def reports_unknown_creation() -> bool:
        conditions = (await shop.document()).get("status", {}).get("conditions", ())
        return any("external-create-pending" in entry.get("message", "") for entry in conditions)

    await eventually(reports_unknown_creation)
    shop.cloud.creates_and_fails = False

    def settle(document: dict[str, Any]) -> None:
        annotations = document["metadata"]["annotations"]
        del annotations["natsctl.io/external-create-pending"]
        annotations["natsctl.io/external-name"] = "disk-1"

    await shop.edit(settle)
    await eventually(shop.ready)
    assert shop.cloud.created == [shop.key]
