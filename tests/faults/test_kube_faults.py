"""A controller converges after faults of the kube-apiserver, its history and the network."""

from contextlib import suppress

from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import KEYS, KubeTestBed, kube_test_bed, meddling
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_proxy import through_proxy
from tests.support.servers.nats_server import NatsServer


async def test_a_controller_converges_after_both_servers_were_killed_and_the_history_was_compacted(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        through_proxy(own_kube_server) as (proxy, kubeconfig),
        kube_test_bed(nats_server.url, own_kube_server, through=kubeconfig) as bed,
    ):
        async with meddling(bed, seed=1):
            await bed.controller.progress()
            proxy.cut()
        await eventually(lambda: bed.runtime.host.failure is not None)
        await spoil(bed)  # the watch misses these changes
        own_kube_server.compact()
        own_kube_server.kill()
        await bed.put(*KEYS[3:])
        await bed.delete(*KEYS[3::4])
        nats_server.kill()
        await proxy.heal()
        await own_kube_server.start()
        await nats_server.start()
        await bed.settled()


async def test_a_controller_converges_after_it_lost_its_connections(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        through_proxy(own_kube_server) as (proxy, kubeconfig),
        kube_test_bed(nats_server.url, own_kube_server, through=kubeconfig) as bed,
    ):
        async with meddling(bed, seed=2):
            for _ in range(5):
                await bed.controller.progress(10)
                proxy.cut()
                await proxy.heal()
            proxy.cut()
        await eventually(lambda: bed.runtime.host.failure is not None)
        await spoil(bed)
        await bed.put(*KEYS[3:6])
        await proxy.heal()
        await bed.settled()


async def test_a_controller_converges_after_a_pause_of_the_apiserver(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    """A network that drops all packets looks the same."""
    async with kube_test_bed(nats_server.url, own_kube_server, watch_timeout_s=2.0) as bed:
        await bed.put(*KEYS[:3])
        own_kube_server.pause()  # while the objects are written
        await bed.put(*KEYS)
        await bed.delete(*KEYS[1::4])
        await eventually(lambda: bed.runtime.host.failure is not None)
        own_kube_server.resume()
        await bed.settled()


async def spoil(bed: KubeTestBed) -> None:
    """Remove one object and change another by hand, if they exist at this moment."""
    with suppress(AssertionError):
        await bed.remove(KEYS[0])
    with suppress(AssertionError):
        await bed.edit(KEYS[1], {"data": {"text": "spoilt"}})
