"""The kinds of a cluster in memory, with their plurals and scopes."""

import msgspec

from natsctl.errors import StoreMissingError
from natsctl.kubernetes.names import guessed, well_known


class MemoryResource(msgspec.Struct, frozen=True):
    """The resource of a kind; a `ResourceType`."""

    plural: str
    namespaced: bool = True
    verbs: frozenset[str] = frozenset({"get", "list", "watch", "create", "update", "delete"})


class MemoryKinds:
    """The resources of all kinds.

    By default, every kind exists, has its well-known or regular plural, and is namespaced unless it
    is a well-known cluster-scoped kind. `define` and `remove` change that for one kind.
    """

    def __init__(self) -> None:
        self.lookups = 0
        self._defined: dict[tuple[str, str], MemoryResource | None] = {}

    def define(self, api_version: str, kind: str, resource: MemoryResource) -> None:
        """Define the resource of a kind."""
        self._defined[api_version, kind] = resource

    def remove(self, api_version: str, kind: str) -> None:
        """Remove a kind until it is defined again."""
        self._defined[api_version, kind] = None

    def resource(self, api_version: str, kind: str) -> MemoryResource:
        """Return the resource of a kind; raises `StoreMissingError` if the kind was removed."""
        self.lookups += 1
        name = well_known(api_version, kind) or guessed(api_version, kind, "")
        regular = MemoryResource(name.plural, name.namespaced is not False)
        resource = self._defined.get((api_version, kind), regular)
        if resource is None:
            raise StoreMissingError(f"there is no kind {kind} in {api_version}")
        return resource
