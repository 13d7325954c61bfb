"""The kinds of a cluster in memory, with their plurals and scopes."""

import msgspec

from natsctl.errors import StoreMissingError

_CLUSTER_SCOPED = {
    *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "IngressClass"),
    *("Namespace", "Node", "PersistentVolume", "PriorityClass", "StorageClass"),
}


class MemoryResource(msgspec.Struct, frozen=True):
    """The resource of a kind; a `ResourceType`."""

    plural: str
    namespaced: bool = True
    verbs: frozenset[str] = frozenset({"get", "list", "watch", "create", "update", "delete"})


class MemoryKinds:
    """The resources of all kinds.

    By default, every kind exists, has a regular plural, and is namespaced unless it is a well-known
    cluster-scoped kind. `define` and `remove` change that for one kind.
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
        named = api_version, kind
        regular = MemoryResource(_plural(kind.lower()), kind not in _CLUSTER_SCOPED)
        resource = self._defined.get(named, regular)
        if resource is None:
            raise StoreMissingError(f"there is no kind {kind} in {api_version}")
        return resource


def _plural(word: str) -> str:
    if word.endswith(("s", "x", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"
