"""Buckets with three replicas, of whose servers one at a time is lost and comes back."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest

from tests.support.clients.nats_admin import FAILURES
from tests.support.controllers.copy_controller import COPIES, THINGS, copies_of
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import Play, playing
from tests.support.servers.nats_server import NatsCluster, NatsServer

REPLICATED = copies_of(replicas=3)

Which = Callable[[Play, NatsCluster], Awaitable[NatsServer]]
What = Callable[[Play, NatsServer], AbstractAsyncContextManager[None]]


async def leader(play: Play, cluster: NatsCluster) -> NatsServer:
    """Return the server that leads the bucket of things."""
    info = await play.admin.info(THINGS)
    return cluster[info["cluster"]["leader"]]


async def ours(play: Play, cluster: NatsCluster) -> NatsServer:
    """Return the server that we are connected to."""
    address = play.connection.state().server
    return next(node for node in cluster.nodes if node.url == address)


async def consumers(play: Play, cluster: NatsCluster) -> NatsServer:
    """Return the server that sends us the things."""
    (name,) = (await play.admin.consumers())[f"KV_{THINGS}"]
    info = await play.admin.api(f"CONSUMER.INFO.KV_{THINGS}.{name}")
    return cluster[info["cluster"]["leader"]]


@asynccontextmanager
async def another_leads(play: Play, node: NatsServer) -> AsyncIterator[None]:
    """Silence the server, then wait until another one leads the bucket of things.

    That need not break a watch: its consumer may be elsewhere.
    """

    async def led() -> bool:
        with suppress(*FAILURES):
            found = (await play.admin.info(THINGS))["cluster"].get("leader")
            return found not in {None, node.name}
        return False

    yield
    await eventually(led)


def a_watch_breaks(play: Play, _node: NatsServer) -> AbstractAsyncContextManager[None]:
    """Silence the server, then wait until a watch has heard nothing for too long."""
    return play.breaking()


@pytest.mark.parametrize("which", [leader, ours, consumers])
async def test_a_server_that_is_killed_and_comes_back(
    nats_cluster: NatsCluster, which: Which
) -> None:
    async with playing(nats_cluster.url, of=REPLICATED) as play:
        async with play.user.writing():
            await play.user.progress()
            node = await which(play, nats_cluster)
            node.kill()
            await play.user.progress()
        await play.settled()
        async with play.user.writing():
            await node.start()
            await play.user.progress()
        await play.settled()


@pytest.mark.parametrize(
    ("which", "follows"), [(leader, another_leads), (consumers, a_watch_breaks)]
)
async def test_a_server_that_stops_and_continues(
    nats_cluster: NatsCluster, which: Which, follows: What
) -> None:
    async with playing(nats_cluster.url, of=REPLICATED) as play:
        incarnation = play.controller.things.informer.cache.incarnation
        async with play.user.writing():
            await play.user.progress()
            node = await which(play, nats_cluster)
            async with follows(play, node):
                node.pause()
            await play.user.progress()
        await play.settled()
        async with play.user.writing():
            node.resume()
            await play.user.progress()
        await play.settled()
        assert play.controller.things.informer.cache.incarnation == incarnation


async def test_garbage_is_collected_while_a_server_is_down(nats_cluster: NatsCluster) -> None:
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


async def test_a_controller_starts_in_the_moment_in_which_a_server_dies(
    nats_cluster: NatsCluster,
) -> None:
    """Until there are leaders again, nobody answers for the buckets."""
    async with playing(nats_cluster.url, of=REPLICATED) as play:
        node = await leader(play, nats_cluster)
    node.kill()
    async with playing(nats_cluster.url, of=REPLICATED):
        pass


async def kill_leader(play: Play, cluster: NatsCluster, bucket: str) -> None:
    """Kill the server that leads the bucket, and wait until there are leaders again.

    Every bucket has one, and so has the cluster: who is told to delete what the dead server has.
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
