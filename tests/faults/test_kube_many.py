"""Many primaries in a cluster converge, and cause no write afterwards."""

import asyncio

import pytest

from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import SITES, KubeTestBed, Maps, kube_test_bed
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer

PER_S = 100  # resyncs: also a slow machine is idle between two parts of the keys
ROUNDS = 2


async def converged(bed: KubeTestBed, count: int) -> list[str]:
    keys = [f"many{number}" for number in range(count)]
    for key in keys:
        await bed.admin.publish(f"$KV.{SITES}.{key}", b'{"spec": {"text": "hi"}}')
    await bed.admin.flush()
    cache = bed.controller.maps.informer.table
    await eventually(lambda: len(cache) >= count, within_s=280)
    await eventually(lambda: bed.runtime.idle, within_s=120)
    return keys


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.long)])
async def test_many_primaries_converge_and_resyncs_write_nothing(
    nats_server: NatsServer, own_kube_server: KubeServer, count: int
) -> None:
    maps = Maps()
    maps.resync_s = count / PER_S
    async with kube_test_bed(nats_server.url, own_kube_server, controller=maps, keys=()) as bed:
        keys = await converged(bed, count)
        assert await bed.maps() == dict.fromkeys(keys, "hi")
        mark = own_kube_server.mark()
        goal = maps.syncs + ROUNDS * count  # about this many syncs of each key
        await eventually(lambda: maps.syncs >= goal, within_s=280)
        writes = own_kube_server.writes(since=mark)
        assert [write for write in writes if write.resource != "events"] == []


@pytest.mark.long
async def test_an_idle_minute_has_no_write(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server, keys=()) as bed:
        await converged(bed, 1000)
        await asyncio.sleep(60)  # events about the start are sent
        mark = own_kube_server.mark()
        await asyncio.sleep(60)
        assert own_kube_server.writes(since=mark) == []
