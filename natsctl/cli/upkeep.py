"""What the commands of upkeep look at: a controller's objects, wherever they are kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.once import looking
from natsctl.kube.options import KubeOptions
from natsctl.kv.options import NatsOptions
from natsctl.kv.stores import connect
from natsctl.runtime import Controller, ControllerRuntime


@asynccontextmanager
async def connected_to(
    controller: Controller, options: NatsOptions, cluster: KubeOptions | None
) -> AsyncIterator[ControllerRuntime]:
    """Connect to what keeps the controller's kinds, and give its runtime; see `looking`."""
    async with (
        cluster_for([controller], cluster) as kube,
        connect(options) as nats,
        looking(controller, nats, kube) as runtime,
    ):
        yield runtime
