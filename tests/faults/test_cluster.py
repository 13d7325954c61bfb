"""Buckets with three replicas survive the loss of one server at a time."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest

from tests.support.clients.nats_admin import FAILURES
from tests.support.controllers.copy_controller import COPIES, THINGS, copies_of
from tests.support.eventually import eventually
from tests.support.faults.nats_test_bed import NatsTestBed, nats_test_bed
from tests.support.servers.nats_server import NatsCluster, NatsServer

REPLICATED = copies_of(replicas=3)

Choice = Callable[[NatsTestBed, NatsCluster], Awaitable[NatsServer]]


async def leader(bed: NatsTestBed, cluster: NatsCluster, bucket: str = THINGS) -> NatsServer:
    """Return the server that leads the bucket."""
    info = await bed.hasty.info(bucket)
    return cluster[info["cluster"]["leader"]]


async def connected(bed: NatsTestBed, cluster: NatsCluster) -> NatsServer:
    """Return the server to which the controller is connected."""
    by_url = {node.url: node for node in cluster.nodes}
    return by_url[bed.connection.state().server]


async def consumers(bed: NatsTestBed, cluster: NatsCluster) -> NatsServer:
    """Return the server that leads the consumer of the primary bucket."""
    (name,) = (await bed.hasty.consumers())[f"KV_{THINGS}"]
    info = await bed.hasty.api(f"CONSUMER.INFO.KV_{THINGS}.{name}")
    return cluster[info["cluster"]["leader"]]


async def known(choose: Choice, bed: NatsTestBed, cluster: NatsCluster) -> NatsServer:
    """Return the chosen server, when no election is under way."""

    async def chosen() -> NatsServer | None:
        with suppress(*FAILURES, LookupError, ValueError):
            return await choose(bed, cluster)
        return None

    server = await eventually(chosen)
    assert server is not None
    return server


async def another_leads(bed: NatsTestBed, node: NatsServer) -> bool:
    with suppress(*FAILURES):
        return (await bed.hasty.info(THINGS))["cluster"].get("leader") not in {None, node.name}
    return False


@pytest.mark.timeout(600)
async def test_a_controller_converges_after_servers_were_killed_and_restarted(
    nats_cluster: NatsCluster,
) -> None:
    async with nats_test_bed(nats_cluster.url, copies=REPLICATED) as bed:
        for choose in (leader, connected, consumers):
            async with bed.user.writing():
                await bed.user.progress()
                node = await known(choose, bed, nats_cluster)
                node.kill()
                await bed.user.progress()
            await bed.settled()
            async with bed.user.writing():
                await node.start()
                await bed.user.progress()
            await bed.settled()
            await nats_cluster.settled()


@pytest.mark.timeout(600)
async def test_a_controller_converges_after_servers_were_paused(nats_cluster: NatsCluster) -> None:
    async with nats_test_bed(nats_cluster.url, copies=REPLICATED) as bed:
        incarnation = bed.controller.things.informer.table.incarnation
        for choose in (leader, consumers):
            async with bed.user.writing():
                await bed.user.progress()
                node = await known(choose, bed, nats_cluster)
                async with bed.breaking(times=int(choose is consumers)):
                    node.pause()
                if choose is leader:  # its pause need not break a watch of another server
                    await eventually(partial(another_leads, bed, node))
                await bed.user.progress()
            await bed.settled()
            async with bed.user.writing():
                node.resume()
                await bed.user.progress()
            await bed.settled()
            await nats_cluster.settled()
        assert bed.controller.things.informer.table.incarnation == incarnation


@pytest.mark.timeout(600)
async def test_controllers_collect_garbage_and_start_while_servers_are_down(
    nats_cluster: NatsCluster,
) -> None:
    async with nats_test_bed(nats_cluster.url, copies=REPLICATED, verify_s=1.0) as bed:
        await eventually(bed.swept)
        node = await kill_leader(bed, nats_cluster, "natsctl")
        await eventually(lambda: is_purged(bed, "k0"))
        await bed.settled()
    async with nats_test_bed(nats_cluster.url, copies=REPLICATED) as bed:
        await node.start()
        await nats_cluster.settled()
        node = await known(leader, bed, nats_cluster)
    node.kill()  # no server answers requests for the buckets until new leaders are elected
    async with nats_test_bed(nats_cluster.url, copies=REPLICATED):
        """The controller starts meanwhile, and copies."""


async def is_purged(bed: NatsTestBed, key: str) -> bool:
    """Purge the thing, and return whether a leader has done so."""
    with suppress(*FAILURES):
        await bed.hasty.purge(THINGS, key)
        return True
    return False


async def kill_leader(bed: NatsTestBed, cluster: NatsCluster, bucket: str) -> NatsServer:
    """Kill the server that leads the bucket, and wait until new leaders are elected.

    Every bucket and the cluster itself have a leader.
    """
    node = await known(partial(leader, bucket=bucket), bed, cluster)
    node.kill()

    async def led() -> bool:
        with suppress(*FAILURES):
            for name in (THINGS, COPIES, bucket):
                await bed.hasty.info(name)
            await bed.hasty.api("STREAM.NAMES", {})
            return True
        return False

    await eventually(led)
    return node
