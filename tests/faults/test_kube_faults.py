"""A controller converges after faults of the kube-apiserver, its history and the network."""

from contextlib import suppress

import pytest

from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import KubeTestBed, kube_test_bed, meddling
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_proxy import through_proxy
from tests.support.servers.nats_server import NatsServer

KEYS = [f"k{number}" for number in range(40)]


async def test_a_controller_converges_after_a_restart_of_the_apiserver_under_changes(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        async with meddling(bed, KEYS):
            await progress(bed)
            own_kube_server.kill()
            await eventually(lambda: bed.runtime.host.failure is not None)
            await bed.put(*KEYS)
            await bed.delete(*KEYS[1::4])
            await own_kube_server.start()
            await progress(bed)
        await bed.put(*KEYS)
        await bed.settled()


async def test_a_watch_relists_after_its_history_was_compacted(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        through_proxy(own_kube_server) as (proxy, kubeconfig),
        kube_test_bed(nats_server.url, own_kube_server, through=kubeconfig) as bed,
    ):
        proxy.cut()
        await eventually(lambda: bed.runtime.host.failure is not None)
        await bed.remove(KEYS[0])
        await bed.edit(KEYS[1], {"data": {"text": "spoilt"}})
        own_kube_server.compact()
        own_kube_server.kill()
        await own_kube_server.start()
        await proxy.heal()
        await bed.settled()


@pytest.mark.parametrize("fault", ["cut", "freeze"])
async def test_a_controller_converges_after_a_lost_network_connection(
    nats_server: NatsServer, own_kube_server: KubeServer, fault: str
) -> None:
    async with through_proxy(own_kube_server) as (proxy, kubeconfig):
        opening = kube_test_bed(
            nats_server.url, own_kube_server, through=kubeconfig, watch_timeout_s=2.0
        )
        async with opening as bed:
            async with meddling(bed, KEYS):
                await progress(bed)
                proxy.cut() if fault == "cut" else proxy.freeze()
                await eventually(lambda: bed.runtime.host.failure is not None)
                with suppress(AssertionError):  # the object may not exist at this moment
                    await bed.remove(KEYS[0])
                await bed.put(*KEYS[2:6])
                proxy.thaw()
                await proxy.heal()
                await progress(bed)
            await bed.settled()


async def test_a_controller_converges_after_repeated_disconnections(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        through_proxy(own_kube_server) as (proxy, kubeconfig),
        kube_test_bed(nats_server.url, own_kube_server, through=kubeconfig) as bed,
    ):
        async with meddling(bed, KEYS):
            for _ in range(10):
                await progress(bed, syncs=5)
                proxy.cut()
                await proxy.heal()
        await bed.settled()


async def test_a_controller_converges_after_a_pause_of_the_apiserver(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server, watch_timeout_s=2.0) as bed:
        own_kube_server.pause()
        await bed.put(*KEYS)
        await bed.delete(*KEYS[1::4])
        await eventually(lambda: bed.runtime.host.failure is not None)
        own_kube_server.resume()
        await bed.settled()


async def test_a_controller_repairs_random_changes_of_its_objects(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        for seed in range(3):
            async with meddling(bed, KEYS, seed=seed):
                await progress(bed, syncs=100)
            await bed.settled()


async def test_a_controller_converges_after_both_servers_were_killed(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server) as bed:
        async with meddling(bed, KEYS):
            await progress(bed)
            nats_server.kill()
            own_kube_server.kill()
            await eventually(lambda: bed.runtime.host.failure is not None)
            await own_kube_server.start()
            await nats_server.start()
            await progress(bed)
        await bed.settled()


async def progress(bed: KubeTestBed, *, syncs: int = 50) -> None:
    """Wait until this many more syncs have begun."""
    goal = bed.controller.syncs + syncs
    await eventually(lambda: bed.controller.syncs >= goal)
