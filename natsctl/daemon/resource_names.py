"""What kinds are called by the cluster that has them, if that can be asked."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from natsctl.errors import ConnectError, StoreError, StoreMissingError, UsageError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.resources.names import ResourceName, guessed, well_known
from natsctl.model.manifests import KubeKind

if TYPE_CHECKING:
    from natsctl.kubernetes.resources.discovery import Discovery

PATIENCE_S = 5.0  # with a cluster that does not answer

Names = dict[tuple[str, str], ResourceName]  # by API version and kind


async def names_of(kinds: Iterable[KubeKind[Any]], options: KubeOptions | None) -> Names:
    """Return what each kind is called.

    The cluster is asked about kinds that not every cluster has, unless *options* are None. Where
    it does not know one, or cannot be asked, that one's name is guessed. Raises `UsageError` for
    options that name a cluster which cannot be meant.
    """
    wanted = {(kind.api_version, kind.kind) for kind in kinds}
    found = {each: known for each in wanted if (known := well_known(*each)) is not None}
    return {**found, **await _asked(wanted - found.keys(), options)}


async def _asked(wanted: set[tuple[str, str]], options: KubeOptions | None) -> Names:
    if not wanted:
        return {}
    if options is None:
        return _guessed(wanted, "no cluster was asked")
    from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - it takes a third of a second

    try:
        brief = msgspec.structs.replace(options, timeout_s=PATIENCE_S)
        async with connect_kube(brief) as kube:
            return {each: await _found(kube.discovery, *each) for each in wanted}
    except ConnectError as error:
        return _guessed(wanted, str(error))
    except UsageError:
        if options.kubeconfig or options.context:
            raise
        return _guessed(wanted, "there is no cluster to ask")


async def _found(discovery: "Discovery", api_version: str, kind: str) -> ResourceName:
    try:
        found = await discovery.find(api_version, kind)
    except StoreMissingError:
        return guessed(api_version, kind, "the cluster does not have it")
    except StoreError as error:
        return guessed(api_version, kind, str(error))
    return ResourceName(api_version.rpartition("/")[0], found.plural, found.namespaced)


def _guessed(wanted: Iterable[tuple[str, str]], why: str) -> Names:
    return {each: guessed(*each, why) for each in wanted}
