"""Connects to the Kubernetes cluster that controllers need."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from natsctl.controller.controller import Controller
from natsctl.daemon.operator import Runnable
from natsctl.daemon.used_kinds import kinds_of
from natsctl.errors import NotFoundError, PermissionDeniedError, StoreError, UsageError
from natsctl.kubernetes.options import KubeOptions
from natsctl.model.manifests import KubeKind
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube

log = get_logger(__name__)

PAUSE_S = 2.0  # between two attempts to read the identity of a cluster


@asynccontextmanager
async def cluster_for(
    controllers: Sequence[Controller | Runnable], options: KubeOptions | None, *, wait: bool = False
) -> AsyncIterator["Kube | None"]:
    """Connect to the cluster that the controllers need, while the context lasts.

    Yields None if no controller has a kind in Kubernetes. With *wait*, it waits for a cluster that
    does not answer.

    Raises `UsageError`, with the name of a kind, if a cluster is needed and *options* is None, and
    the errors of `connect_kube`.
    """
    uses = (use for controller in controllers for use in _uses_of_cluster(controller))
    needed = next(uses, None)
    if needed is None:
        yield None
        return
    if options is None:
        raise UsageError(
            f"{needed} is kept in Kubernetes, and --no-kube forbids a connection: remove --no-kube"
        )
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - the import takes a third of a second

    async with connect_kube(options, wait=wait) as kube:
        yield kube


async def clusters_of(
    controllers: Sequence[Controller | Runnable], kube: "Kube | None", *, wait: bool = False
) -> dict[str, str]:
    """Return the identity of the cluster by the name of each controller that needs the cluster.

    With *wait*, it waits for a cluster that does not answer, and returns nothing, after a warning,
    if the user may not read the identity. Raises `StoreError`.
    """
    names = [controller.name for controller in controllers if any(_uses_of_cluster(controller))]
    while kube is not None and names:
        try:
            return dict.fromkeys(names, await kube.identity())
        except StoreError as error:
            if not wait:
                raise
            if isinstance(error, PermissionDeniedError | NotFoundError):
                log.warning("two clusters would not be told apart", error=error)
                break
            log.warning("cannot read the identity of the cluster yet", error=error)
            await asyncio.sleep(PAUSE_S * random.uniform(0.5, 1.0))  # noqa: S311 - jitter only
    return {}


def _uses_of_cluster(controller: Controller | Runnable) -> Iterator[str]:
    """Yield the slots and kinds of the controller that are kept in a cluster, for messages."""
    for used in kinds_of(controller):
        if isinstance(used.kind, KubeKind):
            by_name = f"{used.kind.name}, which {controller.name} reads,"
            yield f"{type(controller).__name__}.{used.slot}" if used.slot else by_name
