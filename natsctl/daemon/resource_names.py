"""Finds the plural names of Kubernetes kinds, in the cluster if it answers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from natsctl.errors import ConnectError, StoreError, StoreMissingError, UsageError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.resources.names import ResourceName, guessed, well_known
from natsctl.model.manifests import KubeKind

if TYPE_CHECKING:
    from natsctl.kubernetes.resources.discovery import Discovery

TIMEOUT_S = 5.0  # of a cluster that does not answer

Names = dict[tuple[str, str], ResourceName]  # by API version and kind


async def names_of(kinds: Iterable[KubeKind[Any]], options: KubeOptions | None) -> Names:
    """Return the plural name and the scope of each kind.

    Kinds that every cluster has are known. The cluster is asked for the others, unless *options* is
    None. A name is guessed if the cluster does not have the kind or does not answer. Raises
    `UsageError` if *options* name a cluster that does not exist.
    """
    wanted = {(kind.api_version, kind.kind) for kind in kinds}
    known = {kind: name for kind in wanted if (name := well_known(*kind)) is not None}
    return {**known, **await _discovered(wanted - known.keys(), options)}


async def _discovered(wanted: set[tuple[str, str]], options: KubeOptions | None) -> Names:
    if not wanted:
        return {}
    if options is None:
        return _guessed(wanted, "no cluster was asked")
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - the import takes a third of a second

    try:
        brief = msgspec.structs.replace(options, timeout_s=TIMEOUT_S)
        async with connect_kube(brief) as kube:
            return {kind: await _discover(kube.discovery, *kind) for kind in wanted}
    except ConnectError as error:
        return _guessed(wanted, str(error))
    except UsageError:
        if options.kubeconfig or options.context:
            raise
        return _guessed(wanted, "there is no cluster to ask")


async def _discover(discovery: "Discovery", api_version: str, kind: str) -> ResourceName:
    try:
        resource = await discovery.find(api_version, kind)
    except StoreMissingError:
        return guessed(api_version, kind, "the cluster does not have it")
    except StoreError as error:
        return guessed(api_version, kind, str(error))
    return ResourceName(api_version.rpartition("/")[0], resource.plural, resource.namespaced)


def _guessed(wanted: Iterable[tuple[str, str]], why: str) -> Names:
    return {kind: guessed(*kind, why) for kind in wanted}
