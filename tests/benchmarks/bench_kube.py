"""Primaries to ConfigMaps, compared with bare applies and kopf, and the memory of caches."""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from tests.benchmarks.support.configmap_process import (
    GROUP,
    IN_FLIGHT,
    PLURAL,
    VERSION,
    Result,
    name_of,
    text_of,
)
from tests.benchmarks.support.dataset import key
from tests.benchmarks.support.measured_server import Sizes, filled, started
from tests.benchmarks.support.results import GO_KUBE, Row, compared, shown
from tests.support.servers.kube_apiserver import KubeServer, assets
from tests.support.stores import custom_resources

SIDES = ("natsctl", "aiohttp", "kopf")


async def run(sizes: Sizes) -> list[Row]:
    if assets() is None:
        print("kube: skipped, because KUBEBUILDER_ASSETS is not set", file=sys.stderr)
        return []
    count = sizes.configmaps
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    costs: dict[str, list[float]] = {side: [] for side in SIDES}
    async with filled(count) as nats, cluster() as server:
        stage = (nats.url, server.url, server.admin_token, sizes.loop)
        for _ in range(sizes.rounds):
            for side in SIDES:
                namespace = await asyncio.to_thread(server.new_namespace)
                if side == "kopf":
                    await make_items(server, namespace, count)
                result = await applied(side, stage, namespace, count)
                await check_equal_work(server, namespace, count)
                rates[side].append(count / result.wall_s)
                costs[side].append(result.cpu_s / count * 1e6)
        empty = await asyncio.to_thread(server.new_namespace)
        light = await applied("caching", stage, empty, 1)
        heavy = await applied("caching", stage, filled_namespace(server), count)
    weight = (heavy.rss_bytes - light.rss_bytes) / count * 10_000 / 1_000_000
    return [
        compared(
            f"primaries to {count:,} ConfigMaps, {IN_FLIGHT} applies at once",
            "/s",
            rates["natsctl"],
            rates["aiohttp"],
            peer="aiohttp",
            go=GO_KUBE,
            at_least=0.9,
        ),
        compared("  processor time", "µs", costs["natsctl"], costs["aiohttp"], peer="aiohttp"),
        compared("  from custom resources", "/s", rates["natsctl"], rates["kopf"], peer="kopf"),
        compared("  processor time", "µs", costs["natsctl"], costs["kopf"], peer="kopf"),
        shown("  memory of 10,000 cached secondaries", "MB", [weight]),
    ]


async def check_equal_work(server: KubeServer, namespace: str, count: int) -> None:
    """Assert that every ConfigMap exists, and that each has the metadata natsctl adds."""
    path = f"/api/v1/namespaces/{namespace}/configmaps?labelSelector=natsctl.io/owner-key"
    config_maps = (await server.call("GET", path))["items"]
    assert len(config_maps) == count, namespace
    assert all(len(item["metadata"]["annotations"]) == 4 for item in config_maps), namespace


def filled_namespace(server: KubeServer) -> str:
    selector = "labelSelector=natsctl.io/owner-kind&limit=1"
    config_maps = server.request("GET", f"/api/v1/configmaps?{selector}")
    return str(config_maps["items"][0]["metadata"]["namespace"])


@asynccontextmanager
async def cluster() -> AsyncIterator[KubeServer]:
    with (
        tempfile.TemporaryDirectory(prefix="natsctl-bench-") as folder,
        KubeServer(Path(folder) / "kube") as server,
    ):
        async with custom_resources.cluster(server) as stores:
            await custom_resources.define(
                stores.transport, GROUP, "Item", plural=PLURAL, scope="Namespaced"
            )
        yield server


async def make_items(server: KubeServer, namespace: str, count: int) -> None:
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
    limit = asyncio.Semaphore(IN_FLIGHT)

    async def make(number: int) -> None:
        metadata = {"name": name_of(key(number))}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Item", "metadata": metadata}
        spec = {"item": key(number), "text": text_of(number)}
        async with limit:
            await server.call("POST", path, {**body, "spec": spec})

    await asyncio.gather(*(make(number) for number in range(count)))


async def applied(side: str, stage: tuple[str, ...], namespace: str, count: int) -> Result:
    async with started("configmap_process", side, namespace, count, *stage) as process:
        output, _ = await process.communicate()
    assert process.returncode == 0, f"{side} failed"
    return msgspec.json.decode(output, type=Result)
