"""The time from a put to the cache after the server of the watch's consumer was killed."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from natsctl import StoreError, connect, kv
from natsctl.core.informer import Informer
from natsctl.jetstream.store import Nats
from tests.benchmarks.support.dataset import Item, key, value
from tests.benchmarks.support.measured_server import Sizes
from tests.benchmarks.support.results import Row, limited
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsCluster

LIMIT_S = 3.0
KIND = kv(Item, bucket="cluster", replicas=3)
STREAM = "KV_cluster"
STEADY_S = 35.0  # resets the backoff of an informer


async def run(sizes: Sizes) -> list[Row]:
    return [
        limited(
            "cluster: put to cache after the server of the watch was killed",
            "s",
            [await _round() for _ in range(sizes.faults)],
            target=f"<= {LIMIT_S:g} s",
            enough=lambda delay: delay <= LIMIT_S,
        )
    ]


async def _round() -> float:
    with tempfile.TemporaryDirectory(prefix="natsctl-bench-") as folder:
        async with NatsCluster(Path(folder)) as cluster, connect(cluster.url) as nats:
            store = await nats.open(KIND)
            async with _informed(Informer(store, KIND)) as informer:
                host = await _expendable_server(nats, cluster)
                started = time.monotonic()
                cluster[host].kill()
                written = await store.create(key(0), value(0))
                await eventually(lambda: informer.table.revision >= written.revision)
                return time.monotonic() - started


@asynccontextmanager
async def _informed(informer: Informer[Item]) -> AsyncIterator[Informer[Item]]:
    watching = asyncio.create_task(informer.run())
    try:
        await informer.table.synced.wait()
        yield informer
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def _expendable_server(nats: Nats, cluster: NatsCluster) -> str:
    """Return a server that leads only the consumer of the watch.

    If there is none, the consumer is deleted until its successor has another leader. The informer
    then needs `STEADY_S` to reset its backoff.
    """
    moved = False
    while True:
        info = await nats.api(f"STREAM.INFO.{STREAM}")
        connected_url = nats.connection.state().server
        needed = {info["cluster"]["leader"], await cluster.leader()}
        needed |= {node.name for node in cluster.nodes if node.url == connected_url}
        names = (await nats.api(f"CONSUMER.NAMES.{STREAM}"))["consumers"]
        for name in names or ():
            consumer = await nats.api(f"CONSUMER.INFO.{STREAM}.{name}")
            host = str(consumer["cluster"]["leader"])
            if host not in needed:
                await asyncio.sleep(STEADY_S if moved else 1.0)
                return host
        await nats.api(f"STREAM.LEADER.STEPDOWN.{STREAM}")
        for name in names or ():
            with suppress(StoreError):
                await nats.api(f"CONSUMER.DELETE.{STREAM}.{name}")
        moved = True
        await asyncio.sleep(5.0)
