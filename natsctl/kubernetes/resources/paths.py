"""Builds the URL paths of a kind's objects."""

import re
from functools import lru_cache
from urllib.parse import quote

import msgspec

from natsctl.errors import InvalidKeyError, UsageError
from natsctl.kubernetes.resources.discovery import ApiResource
from natsctl.model.manifests import KubeKind, split

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")  # needs no percent-encoding


class Paths(msgspec.Struct, frozen=True):
    """The percent-encoded paths of one resource; `root` is the path of its group and version."""

    root: str
    plural: str
    namespaced: bool

    def all(self, namespace: str = "") -> str:
        """Return the path of all objects, or of the objects in a namespace."""
        place = f"/namespaces/{_quoted(namespace)}" if namespace else ""
        return f"{self.root}{place}/{self.plural}"

    def collection(self, key: str) -> str:
        """Return the path of the collection that contains *key*."""
        return self.all(self.parts(key)[0])

    def one(self, key: str, subresource: str = "") -> str:
        """Return the path of the object with this key, or of a subresource such as `status`."""
        path = _object_path(self, key)
        return f"{path}/{subresource}" if subresource else path

    def parts(self, key: str) -> tuple[str, str]:
        """Return the namespace and the name of a key.

        Raises `InvalidKeyError` if a namespaced kind's key has no namespace, or a cluster-scoped
        kind's key has one.
        """
        namespace, name = split(key)
        if bool(namespace) != self.namespaced:
            form = "namespace/name" if self.namespaced else "name, without a namespace"
            raise InvalidKeyError(f"invalid key {key!r}: a key of {self.plural} is {form}")
        return namespace, name


@lru_cache(maxsize=1024)  # an apply asks for the path of its object twice
def _object_path(paths: Paths, key: str) -> str:
    namespace, name = paths.parts(key)
    return f"{paths.all(namespace)}/{_quoted(name)}"


@lru_cache(maxsize=1024)
def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


@lru_cache(maxsize=256)
def _paths(api_version: str, plural: str, *, namespaced: bool) -> Paths:
    prefix = "apis" if "/" in api_version else "api"
    return Paths(f"/{prefix}/{api_version}", plural, namespaced)


def paths_of(resource: ApiResource, kind: KubeKind[object]) -> Paths:
    """Return the paths of a kind's *resource*.

    Raises `UsageError` if the kind is declared with a namespace but is cluster-scoped.
    """
    if kind.namespace is not None and not resource.namespaced:
        raise UsageError(
            f"{kind.name} is cluster-scoped: declare it without namespace {kind.namespace!r}"
        )
    return _paths(resource.api_version, resource.plural, namespaced=resource.namespaced)
