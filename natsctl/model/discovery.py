"""The seam for looking up the kinds of a cluster."""

from collections.abc import Collection
from typing import Protocol, runtime_checkable

from natsctl.model.store import ManifestStores


class ResourceType(Protocol):
    """A kind as a cluster serves it."""

    @property
    def plural(self) -> str:
        """The plural in paths and permissions, such as `configmaps`."""
        ...

    @property
    def namespaced(self) -> bool:
        """True if every object of the kind is in a namespace."""
        ...

    @property
    def verbs(self) -> Collection[str]:
        """The supported verbs, such as `list` and `watch`."""
        ...


@runtime_checkable
class Discovers(Protocol):
    """A system whose kinds can be looked up."""

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        """Return the resource of *kind* in *api_version*, such as `apps/v1`.

        Raises `StoreMissingError` if the system has no such kind.
        """
        ...


class Cluster(ManifestStores, Discovers, Protocol):
    """A cluster whose kinds may be known only at run time."""
