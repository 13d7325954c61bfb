"""Where a kind's objects are at a kube-apiserver: URL paths."""

import re
from urllib.parse import quote

import msgspec

from natsctl.errors import InvalidKeyError, UsageError
from natsctl.kubernetes.resources.discovery import ApiResource
from natsctl.model.manifests import KubeKind, split

_PLAIN = re.compile(r"[A-Za-z0-9._-]+")  # as nearly every name is


class Paths(msgspec.Struct, frozen=True):
    """The paths of one resource, percent-encoded; `root` is that of its group and version."""

    root: str
    plural: str
    namespaced: bool

    def all(self, namespace: str = "") -> str:
        """Return the path of all objects, or of those of a namespace."""
        place = f"/namespaces/{_quoted(namespace)}" if namespace else ""
        return f"{self.root}{place}/{self.plural}"

    def beside(self, key: str) -> str:
        """Return the path of the objects among which *key* is, or would be."""
        return self.all(self.parts(key)[0])

    def one(self, key: str, subresource: str = "") -> str:
        """Return the path of the object with this key, or of a part of it, such as `status`."""
        namespace, name = self.parts(key)
        path = f"{self.all(namespace)}/{_quoted(name)}"
        return f"{path}/{subresource}" if subresource else path

    def parts(self, key: str) -> tuple[str, str]:
        """Return the namespace and the name in a key.

        Raises `InvalidKeyError` where it lacks a namespace, or has one, against its kind.
        """
        namespace, name = split(key)
        if bool(namespace) != self.namespaced:
            rule = "live in namespaces: namespace/name" if self.namespaced else "have no namespace"
            raise InvalidKeyError(f"key {key!r} is none of {self.plural}, which {rule}")
        return namespace, name


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote(name, safe="")


def paths_of(resource: ApiResource, kind: KubeKind[object]) -> Paths:
    """Return the paths of a kind that the server has as *resource*.

    Raises `UsageError` where the kind was declared with a namespace and has none.
    """
    if kind.namespace is not None and not resource.namespaced:
        raise UsageError(
            f"{kind.name} is cluster-scoped: declare it without namespace {kind.namespace!r}"
        )
    prefix = "apis" if "/" in resource.api_version else "api"
    return Paths(f"/{prefix}/{resource.api_version}", resource.plural, resource.namespaced)
