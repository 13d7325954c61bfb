"""What the commands of upkeep look at: a controller's objects, wherever they are kept."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from natsctl.cli.framework.options import handed
from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.owners import OwnerNames
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.one_shot import looking
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.stores import connect
from natsctl.kubernetes.access.options import KubeOptions

linked = handed(
    *("owner_names", "controllers.owner_domain"),
    of=lambda effective: effective.settings.controllers.owner_names,
)
"""Hand a command, as `owner_names`, the labels that link secondaries to primaries."""


@asynccontextmanager
async def connected_to(
    controller: Controller,
    options: NatsOptions,
    cluster: KubeOptions | None,
    owner_names: OwnerNames | None = None,
) -> AsyncIterator[ControllerRuntime]:
    """Connect to what keeps the controller's kinds, and give its runtime; see `looking`."""
    async with (
        cluster_for([controller], cluster) as kube,
        connect(options) as nats,
        looking(controller, nats, kube, owner_names=owner_names) as runtime,
    ):
        yield runtime
