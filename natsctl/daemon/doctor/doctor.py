"""Whether everything that controllers need is there, and what to do where it is not."""

from collections.abc import AsyncIterator, Sequence

from natsctl.controller.controller import Controller
from natsctl.daemon.doctor.finding import Bounds, Finding
from natsctl.daemon.doctor.kube import check_kube
from natsctl.daemon.doctor.nats import Wanted, check_nats
from natsctl.daemon.doctor.service import questions
from natsctl.daemon.doctor.used_buckets import first_runs_of, leases_of, used_by
from natsctl.daemon.operator import Guest, owner_of
from natsctl.daemon.rbac import needs
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.kubernetes.access.options import KubeOptions


async def examine(
    controllers: Sequence[Controller | Guest],
    nats: NatsOptions,
    cluster: KubeOptions | None,
    *,
    settings: ControllerSettings | None = None,
    bounds: Bounds | None = None,
) -> AsyncIterator[Finding]:
    """Give what is found, each as soon as it is: of NATS first, then of the cluster.

    Nothing is written, made or changed. Without controllers, only what all of them need is looked
    at; with *settings* by which several processes run them, leases too. A failed finding is one
    with which they will not work.
    """
    settings = ControllerSettings() if settings is None else settings
    wanted = Wanted(
        used=(*used_by(controllers), *first_runs_of(controllers, settings)),
        leases=leases_of(controllers, settings),
        lease_ttl_s=settings.lease_ttl_s,
        questions=questions(controllers),
        owners={each.name: owner_of(each) for each in controllers},
    )
    bounds = Bounds() if bounds is None else bounds
    async for finding in check_nats(nats, wanted, bounds):
        yield finding
    async for finding in check_kube(cluster, needs(controllers), bounds):
        yield finding
