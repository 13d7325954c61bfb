"""A controller restores changed owner labels in a real cluster without force."""

from typing import Any

from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import KubeTestBed, Maps, Site, kube_test_bed
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer

KIND, KEY = "natsctl.io/owner-kind", "natsctl.io/owner-key"


CHANGES: tuple[dict[str, Any], ...] = (
    {"labels": {KEY: "nobody"}},
    {"labels": {KEY: None}},
    {"labels": {KIND: None, KEY: None}},
    {"labels": {KIND: "Other.kind"}},
    {"annotations": {"natsctl.io/applied": "changed"}},
)


class Mild(Maps):
    """Applies without force."""

    async def sync_handler(self, key: str) -> None:
        site: Site | None = self.sites.get(key)
        if site is not None:
            await self.maps.apply({"metadata": {"name": key}, "data": {"text": site.spec.text}})


async def test_changed_owner_labels_of_an_object_are_restored(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server, controller=Mild()) as bed:
        for metadata in CHANGES:
            await bed.edit("k0", {"metadata": metadata})
            await eventually(lambda: has_owner_labels(bed))


async def has_owner_labels(bed: KubeTestBed) -> bool:
    config_map = await bed.cluster.call("GET", "/api/v1/namespaces/maps/configmaps/k0")
    labels, annotations = (
        config_map["metadata"].get(name, {}) for name in ("labels", "annotations")
    )
    assert (labels.get(KIND), labels.get(KEY)) == ("Site.sites", "k0")
    assert (annotations.get(KIND), annotations.get(KEY)) == ("Site.sites", "k0")
    assert annotations.get("natsctl.io/applied") != "changed"
    return True
