"""Finds the plural names of Kubernetes kinds, in the cluster if it answers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from natsctl.errors import ConnectError, StoreError, StoreMissingError, UsageError
from natsctl.kubernetes.names import ResourceName, guessed, well_known
from natsctl.kubernetes.options import KubeOptions
from natsctl.model.manifests import KubeKind

if TYPE_CHECKING:
    from natsctl.kubernetes.discovery import Discovery

TIMEOUT_S = 5.0  # of a cluster that does not answer

Names = dict[tuple[str, str], ResourceName]  # by API version and kind


async def names_of(kinds: Iterable[KubeKind[Any]], options: KubeOptions | None) -> Names:
    """Return the plural name and the scope of each kind.

    The names of built-in kinds are known. The cluster is asked for the others, unless *options* is
    None. A name is guessed if the cluster does not have the kind or does not answer. Raises
    `UsageError` if *options* name a cluster that does not exist.
    """
    unique = {(kind.api_version, kind.kind) for kind in kinds}
    built_in = {kind: name for kind in unique if (name := well_known(*kind)) is not None}
    return {**built_in, **await _discovered(unique - built_in.keys(), options)}


async def _discovered(kinds: set[tuple[str, str]], options: KubeOptions | None) -> Names:
    if not kinds:
        return {}
    if options is None:
        return _guessed(kinds, "no cluster was asked")
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - the import takes a third of a second

    try:
        brief = msgspec.structs.replace(options, timeout_s=TIMEOUT_S)
        async with connect_kube(brief) as kube:
            return {kind: await _discover(kube.discovery, *kind) for kind in kinds}
    except ConnectError as error:
        return _guessed(kinds, str(error))
    except UsageError:
        if options.kubeconfig or options.context:
            raise
        return _guessed(kinds, "there is no cluster to ask")


async def _discover(discovery: "Discovery", api_version: str, kind: str) -> ResourceName:
    try:
        resource = await discovery.find(api_version, kind)
    except StoreMissingError:
        return guessed(api_version, kind, "the cluster does not have it")
    except StoreError as error:
        return guessed(api_version, kind, str(error))
    return ResourceName(api_version.rpartition("/")[0], resource.plural, resource.namespaced)


def _guessed(kinds: Iterable[tuple[str, str]], reason: str) -> Names:
    return {kind: guessed(*kind, reason) for kind in kinds}
