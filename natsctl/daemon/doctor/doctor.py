"""Checks whether NATS and the cluster have what controllers need."""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from natsctl.controller.controller import Controller
from natsctl.daemon.cluster import cluster_for, clusters_of
from natsctl.daemon.doctor.finding import Bounds, CheckFinding
from natsctl.daemon.doctor.kube import check_kube
from natsctl.daemon.doctor.nats import NatsNeeds, check_nats
from natsctl.daemon.doctor.requests import verbs_of
from natsctl.daemon.doctor.used_buckets import first_runs_of, leases_of, used_by
from natsctl.daemon.operator import Guest, owner_of
from natsctl.daemon.rbac import needs
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import NatsctlError
from natsctl.jetstream.options import NatsOptions
from natsctl.kubernetes.options import KubeOptions


async def examine(
    controllers: Sequence[Controller | Guest],
    nats: NatsOptions,
    cluster: KubeOptions | None,
    *,
    settings: ControllerSettings | None = None,
    bounds: Bounds | None = None,
) -> AsyncIterator[CheckFinding]:
    """Yield the findings about NATS, then about the cluster.

    The checks change nothing. Controllers do not work if a finding is failed.

    Args:
        controllers: the controllers; without any, only the needs of every controller are checked.
        nats: how to connect to NATS.
        cluster: how to connect to the cluster; None if there is none.
        settings: the settings of the controllers; leases are checked if the settings need them.
        bounds: the bounds beyond which a check warns.
    """
    settings = ControllerSettings() if settings is None else settings
    nats_needs = NatsNeeds(
        used=(*used_by(controllers), *first_runs_of(controllers, settings)),
        leases=leases_of(controllers, settings),
        lease_ttl_s=settings.lease_ttl_s,
        verbs=verbs_of(controllers),
        owners={controller.name: owner_of(controller) for controller in controllers},
        clusters=partial(_clusters, controllers, cluster),
    )
    bounds = Bounds() if bounds is None else bounds
    async for finding in check_nats(nats, nats_needs, bounds):
        yield finding
    async for finding in check_kube(cluster, needs(controllers), bounds):
        yield finding


async def _clusters(
    controllers: Sequence[Controller | Guest], cluster: KubeOptions | None
) -> Mapping[str, str]:
    """Return the identities of the clusters by controller; empty if they cannot be read."""
    try:
        async with cluster_for(controllers, cluster) as kube:
            return await clusters_of(controllers, kube)
    except NatsctlError:
        return {}  # the checks of the cluster report the error
