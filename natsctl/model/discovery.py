"""The seam for asking a system which kinds it has, and what it calls them."""

from collections.abc import Collection
from typing import Protocol

from natsctl.model.store import ManifestStores


class ResourceType(Protocol):
    """A kind as a system has it."""

    @property
    def plural(self) -> str:
        """What its objects are called in paths, such as `configmaps`."""
        ...

    @property
    def namespaced(self) -> bool:
        """Whether each of its objects is in a namespace."""
        ...

    @property
    def verbs(self) -> Collection[str]:
        """What the system can do with it, such as `list` and `watch`."""
        ...


class Discovers(Protocol):
    """A system that can be asked which kinds it has."""

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        """Return what the system has as *kind* of *api_version*, such as `apps/v1`.

        Raises `StoreMissingError` where it has no such kind.
        """
        ...


class Cluster(ManifestStores, Discovers, Protocol):
    """A cluster, as whoever meets its kinds only while running needs it."""
