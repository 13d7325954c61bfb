"""Connects to the Kubernetes cluster that controllers need."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from natsctl.controller.controller import Controller
from natsctl.daemon.operator import Runnable
from natsctl.daemon.used_kinds import kinds_of
from natsctl.errors import UsageError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.model.manifests import KubeKind

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube


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


def _uses_of_cluster(controller: Controller | Runnable) -> Iterator[str]:
    """Yield the slots and kinds of the controller that are kept in a cluster, for messages."""
    for used in kinds_of(controller):
        if isinstance(used.kind, KubeKind):
            by_name = f"{used.kind.name}, which {controller.name} reads,"
            yield f"{type(controller).__name__}.{used.slot}" if used.slot else by_name
