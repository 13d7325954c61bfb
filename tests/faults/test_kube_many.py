"""Many primaries in a cluster converge, and cause no write afterwards."""

import asyncio

import pytest

from tests.support.eventually import eventually
from tests.support.faults.kube_test_bed import SITES, KubeTestBed, Maps, kube_test_bed
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer

RESYNC_S = 4.0  # a slow machine has time between two parts of the keys
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


@pytest.mark.parametrize("count", [1000, pytest.param(5000, marks=pytest.mark.long)])
async def test_many_primaries_converge_and_resyncs_write_nothing(
    nats_server: NatsServer,
    own_kube_server: KubeServer,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    monkeypatch.setattr(Maps, "resync_s", RESYNC_S)
    async with kube_test_bed(nats_server.url, own_kube_server, keys=1) as bed:
        keys = await converged(bed, count)
        documents = await bed.documents()
        assert documents.keys() >= set(keys)
        assert {
            document["data"]["text"] for name, document in documents.items() if name in keys
        } == {"hi"}
        await eventually(lambda: bed.runtime.idle)

        mark, syncs = own_kube_server.mark(), bed.controller.syncs
        goal = syncs + ROUNDS * (count + 1)  # about this many syncs of each key
        await eventually(lambda: bed.controller.syncs >= goal, within_s=200)
        assert writes_except_events(own_kube_server, mark) == []


@pytest.mark.long
async def test_an_idle_minute_has_no_write(
    nats_server: NatsServer, own_kube_server: KubeServer
) -> None:
    async with kube_test_bed(nats_server.url, own_kube_server, keys=1) as bed:
        await converged(bed, 1000)
        await asyncio.sleep(60)  # events about the start are sent
        mark = own_kube_server.mark()
        await asyncio.sleep(60)
        assert own_kube_server.writes(since=mark) == []


def writes_except_events(server: KubeServer, mark: int) -> list[str]:
    """Return the writes since *mark* except writes of events."""
    return [str(write) for write in server.writes(since=mark) if write.resource != "events"]
