"""Two NATS systems with one cluster do not change each other's objects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.clients.nats_admin import Admin
from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import KubeTestBed, Maps, empty_namespace, running
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer

KEYS = tuple(f"k{number}" for number in range(8))


@asynccontextmanager
async def kube_bed(server: NatsServer, cluster: KubeServer) -> AsyncIterator[KubeTestBed]:
    async with Admin(server.url) as admin:
        bed = KubeTestBed(admin, cluster, Maps())
        async with running(bed.controller, server.url, cluster.kubeconfig()):
            yield bed


async def test_two_installations_leave_each_others_objects_alone(
    nats_server: NatsServer, own_kube_server: KubeServer, tmp_path: Path
) -> None:
    await empty_namespace(own_kube_server)
    async with (
        NatsServer(tmp_path / "staging") as staging_server,
        kube_bed(nats_server, own_kube_server) as production,
        kube_bed(staging_server, own_kube_server) as staging,
    ):
        await production.put(*KEYS)
        await eventually(lambda: has_maps(production, *KEYS))
        uids, texts = await production.uids(), await production.maps()

        await staging.put("k0", "only-here")
        await eventually(lambda: has_maps(staging, "only-here"))
        await eventually(lambda: is_refused(staging, "k0"))
        await staging.delete("k0")
        await staging.controller.collects()

        assert {key: uid for key, uid in (await production.uids()).items() if key in uids} == uids
        assert {key: (await production.maps())[key] for key in KEYS} == texts
        assert (await staging.runtime.garbage_plan(at_once=True)).orphans == ()


async def has_maps(bed: KubeTestBed, *names: str) -> bool:
    return set(names) <= (await bed.maps()).keys()


def is_refused(bed: KubeTestBed, key: str) -> bool:
    explained = bed.runtime.explain(key)
    return any("of installation" in sync.error for sync in explained.syncs)
