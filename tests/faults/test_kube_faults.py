"""A controller converges after faults of the kube-apiserver, its history and the network."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import KubePlay, kube_playing, meddling
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.tcp_proxy import CutProxy

KEYS = [f"k{number}" for number in range(40)]


@asynccontextmanager
async def through_proxy(cluster: KubeServer) -> AsyncIterator[tuple[CutProxy, Path]]:
    """Yield a proxy to the cluster that can be cut, and a kubeconfig for it."""
    async with CutProxy(cluster.url) as proxy:
        kubeconfig = cluster.kubeconfig()
        proxy_url = proxy.url.replace("nats://", "https://")
        kubeconfig.write_text(kubeconfig.read_text().replace(cluster.url, proxy_url))
        yield proxy, kubeconfig


async def test_a_controller_converges_after_a_restart_of_the_apiserver_under_changes(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server) as play:
        async with meddling(play, KEYS):
            await progress(play)
            own_kube_server.kill()
            await eventually(lambda: play.runtime.failure is not None)
            await play.put(*KEYS)
            await play.delete(*KEYS[1::4])
            await own_kube_server.start()
            await progress(play)
        await play.put(*KEYS)
        await play.settled()


async def test_a_watch_relists_after_its_history_was_compacted(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server) as play:
        own_kube_server.kill()
        await eventually(lambda: play.runtime.failure is not None)
        await own_kube_server.start()
        await play.remove(KEYS[0])
        await play.edit(KEYS[1], {"data": {"text": "spoilt"}})
        own_kube_server.compact()
        own_kube_server.kill()
        await own_kube_server.start()
        await play.settled()


@pytest.mark.parametrize("fault", ["cut", "freeze"])
async def test_a_controller_converges_after_a_lost_network_connection(
    nats_server: NatsServer, own_kube_server: KubeServer, fault: str
) -> None:
    async with through_proxy(own_kube_server) as (proxy, kubeconfig):
        playing = kube_playing(
            nats_server.url, own_kube_server, through=kubeconfig, watch_timeout_s=2.0
        )
        async with playing as play:
            async with meddling(play, KEYS):
                await progress(play)
                proxy.cut() if fault == "cut" else proxy.freeze()
                await eventually(lambda: play.runtime.failure is not None)
                with suppress(AssertionError):  # the object may not exist at this moment
                    await play.remove(KEYS[0])
                await play.put(*KEYS[2:6])
                proxy.thaw()
                await proxy.heal()
                await progress(play)
            await play.settled()


async def test_a_controller_converges_after_repeated_disconnections(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with (
        through_proxy(own_kube_server) as (proxy, kubeconfig),
        kube_playing(nats_server.url, own_kube_server, through=kubeconfig) as play,
    ):
        async with meddling(play, KEYS):
            for _ in range(10):
                await progress(play, syncs=5)
                proxy.cut()
                await proxy.heal()
        await play.settled()


async def test_a_controller_converges_after_a_pause_of_the_apiserver(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server, watch_timeout_s=2.0) as play:
        own_kube_server.pause()
        await play.put(*KEYS)
        await play.delete(*KEYS[1::4])
        await eventually(lambda: play.runtime.failure is not None)
        own_kube_server.resume()
        await play.settled()


async def test_a_controller_repairs_random_changes_of_its_objects(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server) as play:
        for seed in range(3):
            async with meddling(play, KEYS, seed=seed):
                await progress(play, syncs=100)
            await play.settled()


async def test_a_controller_converges_after_both_servers_were_killed(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_playing(nats_server.url, own_kube_server) as play:
        async with meddling(play, KEYS):
            await progress(play)
            nats_server.kill()
            own_kube_server.kill()
            await eventually(lambda: play.runtime.failure is not None)
            await own_kube_server.start()
            await nats_server.start()
            await progress(play)
        await play.settled()


async def progress(play: KubePlay, *, syncs: int = 50) -> None:
    """Wait until this many more syncs have begun."""
    goal = play.controller.syncs + syncs
    await eventually(lambda: play.controller.syncs >= goal)
