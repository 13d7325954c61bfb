"""Serves a daemon's controllers over NATS, as the micro service `natsctl`.

Each controller and verb has an endpoint, `natsctl.api.VERB.CONTROLLER`. NATS permissions on these
subjects decide who may send which request.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version as installed
from types import MappingProxyType

from natsctl.core.coordination.lease import NO_CLUSTERS
from natsctl.core.coordination.shares import Participation
from natsctl.daemon.api.activity import INTERVAL_S
from natsctl.daemon.api.endpoints import ControllerEndpoints
from natsctl.daemon.api.messages import DaemonProcess
from natsctl.daemon.api.planner import Planner
from natsctl.daemon.api.verbs import NAME
from natsctl.daemon.operator import Runnable
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.service import Endpoint, ServiceIdentity, serving
from natsctl.model.times import time_text

CHECK_S = 0.5  # the interval at which changes of the endpoints are noticed

NO_PARTICIPATIONS: Mapping[str, Participation] = MappingProxyType({})


def this_process() -> DaemonProcess:
    """Return this process, with a new id."""
    return DaemonProcess(
        id=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=installed("natsctl"),
        started=time_text(datetime.now(UTC)),
    )


def identity_of(daemon: DaemonProcess) -> ServiceIdentity:
    """Return the identity of a daemon as a micro service."""
    return ServiceIdentity(
        name=NAME,
        version=daemon.version,
        description="runs controllers whose desired state is in NATS JetStream KV",
        metadata={"host": daemon.host, "pid": str(daemon.pid)},
        id=daemon.id,
    )


@asynccontextmanager
async def answering(
    connection: Connection,
    runtimes: Sequence[Runnable],
    *,
    participations: Mapping[str, Participation] = NO_PARTICIPATIONS,
    daemon: DaemonProcess | None = None,
    clusters: Mapping[str, str] = NO_CLUSTERS,
    planner: Planner | None = None,
    dry_run: bool = False,
) -> AsyncIterator[None]:
    """Serve these controllers over NATS while the context lasts.

    The service also looks for other daemons that run the same controllers, see `Peers`.

    *participations* and *clusters*, the identities of their clusters, are by the name of the
    controller. Without a *planner*, the daemon does not plan keys on request. With *dry_run*, the
    controllers only plan.
    """
    daemon = this_process() if daemon is None else daemon
    controllers = [
        ControllerEndpoints(
            runtime,
            daemon,
            connection,
            participation=participations.get(runtime.name),
            cluster=clusters.get(runtime.name, ""),
            planner=planner,
            dry_run=dry_run,
        )
        for runtime in runtimes
    ]
    async with serving(connection, identity_of(daemon)) as service:
        offering = _keep_offering(controllers, service.offer)
        tasks = [
            asyncio.create_task(offering, name="endpoints"),
            asyncio.create_task(_keep_activity(controllers), name="activity"),
        ]
        for controller in controllers:
            watch = controller.peers.watch(connection)
            tasks.append(asyncio.create_task(watch, name="other daemons"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _keep_activity(controllers: Sequence[ControllerEndpoints]) -> None:
    while True:
        await asyncio.sleep(INTERVAL_S)
        for controller in controllers:
            controller.note_activity()


async def _keep_offering(
    controllers: Sequence[ControllerEndpoints], offer: Callable[[Sequence[Endpoint]], None]
) -> None:
    offered: list[Endpoint] | None = None
    while True:
        current = [endpoint for controller in controllers for endpoint in controller.endpoints()]
        if current != offered:
            offer(current)
            offered = current
        await asyncio.sleep(CHECK_S)
