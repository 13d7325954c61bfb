"""Whether controllers need a cluster, and the connection to it."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import slots
from natsctl.daemon.operator import Guest, Runnable
from natsctl.errors import UsageError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.model.manifests import KubeKind

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube


@asynccontextmanager
async def cluster_for(
    controllers: Sequence[Controller | Runnable],
    options: KubeOptions | None,
    *,
    wait: bool = False,
) -> AsyncIterator["Kube | None"]:
    """Connect to the cluster that the controllers need, for as long as the context lasts.

    Nothing is looked for, and None given, where none of them has kinds of a cluster. *options* of
    None forbid to look; raises `UsageError`, naming what needs one, where one is needed then, and
    else as `connect_kube`, which is told to *wait*.
    """
    needed = next((each for one in controllers for each in _kept_there(one)), None)
    if needed is None:
        yield None
        return
    if options is None:
        raise UsageError(
            f"{needed} is kept in Kubernetes, and --no-kube says not to look for a cluster"
        )
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - it takes a third of a second

    async with connect_kube(options, wait=wait) as kube:
        yield kube


def _kept_there(controller: Controller | Runnable) -> Iterator[str]:
    """Return what the controller works with in a cluster, as people know it."""
    if isinstance(controller, Controller):
        for slot in slots(type(controller)):
            if isinstance(slot.kind, KubeKind):
                yield f"{type(controller).__name__}.{slot.name}"
    if isinstance(controller, Controller | Guest):
        for kind in controller.kinds:
            if isinstance(kind, KubeKind):
                yield f"{kind.name}, which {controller.name} reads,"
