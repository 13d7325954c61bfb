"""Buckets with three replicas survive the loss of one server at a time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest

from tests.support.clients.nats_admin import FAILURES
from tests.support.controllers.copy_controller import COPIES, THINGS, copies_of
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import Play, playing
from tests.support.servers.nats_server import NatsCluster, NatsServer

REPLICATED = copies_of(replicas=3)

ServerChoice = Callable[[Play, NatsCluster], Awaitable[NatsServer]]
Pause = Callable[[Play, NatsServer], AbstractAsyncContextManager[None]]


async def leader(play: Play, cluster: NatsCluster) -> NatsServer:
    """Return the server that leads the primary bucket."""
    info = await play.admin.info(THINGS)
    return cluster[info["cluster"]["leader"]]


async def connected(play: Play, cluster: NatsCluster) -> NatsServer:
    """Return the server to which the controller is connected."""
    address = play.connection.state().server
    return next(node for node in cluster.nodes if node.url == address)


async def consumers(play: Play, cluster: NatsCluster) -> NatsServer:
    """Return the server that leads the consumer of the primary bucket."""
    (name,) = (await play.admin.consumers())[f"KV_{THINGS}"]
    info = await play.admin.api(f"CONSUMER.INFO.KV_{THINGS}.{name}")
    return cluster[info["cluster"]["leader"]]


@asynccontextmanager
async def another_leads(play: Play, node: NatsServer) -> AsyncIterator[None]:
    """Pause the server in the body, then wait until another server leads the primary bucket.

    The pause need not break a watch, because its consumer may be on another server.
    """

    async def led() -> bool:
        with suppress(*FAILURES):
            leader_name = (await play.admin.info(THINGS))["cluster"].get("leader")
            return leader_name not in {None, node.name}
        return False

    yield
    await eventually(led)


def a_watch_breaks(play: Play, _node: NatsServer) -> AbstractAsyncContextManager[None]:
    """Pause the server in the body, then wait until a watch times out."""
    return play.breaking()


@pytest.mark.parametrize("server_choice", [leader, connected, consumers])
async def test_a_controller_converges_after_a_server_was_killed_and_restarted(
    nats_cluster: NatsCluster, server_choice: ServerChoice
) -> None:
    async with playing(nats_cluster.url, of=REPLICATED) as play:
        async with play.user.writing():
            await play.user.progress()
            node = await server_choice(play, nats_cluster)
            node.kill()
            await play.user.progress()
        await play.settled()
        async with play.user.writing():
            await node.start()
            await play.user.progress()
        await play.settled()


@pytest.mark.parametrize(
    ("server_choice", "during_pause"), [(leader, another_leads), (consumers, a_watch_breaks)]
)
async def test_a_controller_converges_after_a_server_was_paused(
    nats_cluster: NatsCluster, server_choice: ServerChoice, during_pause: Pause
) -> None:
    async with playing(nats_cluster.url, of=REPLICATED) as play:
        incarnation = play.controller.things.informer.cache.incarnation
        async with play.user.writing():
            await play.user.progress()
            node = await server_choice(play, nats_cluster)
            async with during_pause(play, node):
                node.pause()
            await play.user.progress()
        await play.settled()
        async with play.user.writing():
            node.resume()
            await play.user.progress()
        await play.settled()
        assert play.controller.things.informer.cache.incarnation == incarnation


async def test_garbage_collection_works_while_a_server_is_down(nats_cluster: NatsCluster) -> None:
    async with playing(nats_cluster.url, of=REPLICATED, verify_s=1.0) as play:
        await eventually(play.swept)
        await kill_leader(play, nats_cluster, "natsctl")
        await play.admin.purge(THINGS, "k0")
        await play.settled()


async def test_a_controller_starts_while_a_server_is_down(nats_cluster: NatsCluster) -> None:
    async with playing(nats_cluster.url, of=REPLICATED) as play:
        await kill_leader(play, nats_cluster, "natsctl")
    async with playing(nats_cluster.url, of=REPLICATED):
        pass


async def test_a_controller_starts_at_the_moment_a_server_dies(
    nats_cluster: NatsCluster,
) -> None:
    """No server answers requests for the buckets until new leaders are elected."""
    async with playing(nats_cluster.url, of=REPLICATED) as play:
        node = await leader(play, nats_cluster)
    node.kill()
    async with playing(nats_cluster.url, of=REPLICATED):
        pass


async def kill_leader(play: Play, cluster: NatsCluster, bucket: str) -> None:
    """Kill the server that leads the bucket, and wait until new leaders are elected.

    Every bucket and the cluster itself have a leader.
    """
    info = await play.admin.info(bucket)
    cluster[info["cluster"]["leader"]].kill()

    async def led() -> bool:
        with suppress(*FAILURES):
            for name in (THINGS, COPIES, bucket):
                await play.admin.info(name)
            await play.admin.api("STREAM.NAMES", {})
            return True
        return False

    await eventually(led)
