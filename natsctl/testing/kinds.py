"""Which kinds a cluster in memory has, and what it calls them."""

import msgspec

from natsctl.errors import StoreMissingError

_CLUSTER_SCOPED = {
    *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "IngressClass"),
    *("Namespace", "Node", "PersistentVolume", "PriorityClass", "StorageClass"),
}


class MemoryResource(msgspec.Struct, frozen=True):
    """A kind as the cluster has it; a `ResourceType`."""

    plural: str
    namespaced: bool = True
    verbs: frozenset[str] = frozenset({"get", "list", "watch", "create", "update", "delete"})


class MemoryKinds:
    """Every kind with a regular plural, in namespaces but for the well-known that are not.

    `define` and `remove` make exceptions.
    """

    def __init__(self) -> None:
        self.lookups = 0
        self._defined: dict[tuple[str, str], MemoryResource | None] = {}

    def define(self, api_version: str, kind: str, resource: MemoryResource) -> None:
        """Have the kind be this resource."""
        self._defined[api_version, kind] = resource

    def remove(self, api_version: str, kind: str) -> None:
        """Have no such kind, until it is defined again."""
        self._defined[api_version, kind] = None

    def resource(self, api_version: str, kind: str) -> MemoryResource:
        """Return what the kind is; raises `StoreMissingError` where it was removed."""
        self.lookups += 1
        named = api_version, kind
        regular = MemoryResource(_plural(kind.lower()), kind not in _CLUSTER_SCOPED)
        found = self._defined.get(named, regular)
        if found is None:
            raise StoreMissingError(f"there is no kind {kind} in {api_version}")
        return found


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"
