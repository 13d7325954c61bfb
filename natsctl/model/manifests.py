"""Kubernetes kinds and their manifests.

A manifest is a JSON document as for `kubectl apply`. A stored object is the same document with
more fields.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_origin

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidKeyError, InvalidObjectError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.objects import Metadata, Object
from natsctl.model.selectors import Selector

Manifest = dict[str, Any]

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    D = DefaultedTypeVar("D", default=Manifest)
else:
    D = TypeVar("D")  # Python 3.13 is the first with a default
Propagation = Literal["Background", "Foreground", "Orphan"]
OnImmutable = Literal["fail", "recreate"]

_DOTS = (".", "..")
_KEY = re.compile(r"(?:([^/%\s]{1,253})/)?([^/%\s]{1,253})")


class KubeMetadata(Metadata, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The metadata of an object in a cluster; `creation_timestamp` is RFC 3339."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None


class KubeObject(Object, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of types for objects in a cluster; subclasses add fields such as `spec` or `data`.

    Example:
        class ConfigMap(KubeObject, frozen=True):
            data: dict[str, str] = {}
    """

    api_version: str = ""
    kind: str = ""
    metadata: KubeMetadata = KubeMetadata()


class Reference(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A reference to an object in a cluster, as in events and owner references."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Head(msgspec.Struct, frozen=True):
    metadata: KubeMetadata = KubeMetadata()


_head = msgspec.json.Decoder(_Head)


class KubeKind(Kind[D]):
    """A kind of a Kubernetes cluster, built in or a custom resource.

    Example: `configs = secondary(kube("v1", "ConfigMap", namespace="default"))`

    Args:
        api_version: such as `v1`, `apps/v1`, `example.com/v1alpha1`.
        kind: such as `ConfigMap`, `Deployment`, `Widget`.
        namespace: only objects in this namespace; None means all namespaces, and is required for
            cluster-scoped kinds.
        name: only objects with this name; without *namespace*, in every namespace.
        labels: only objects that this label selector selects: text as for `kubectl -l`, or the
            labels that the objects must have. The server selects.
        type: the type that objects decode to: a dict by default, or a subclass of `KubeObject`, or
            any struct with `metadata`.
        metadata_only: watch and cache only metadata, for large or secret objects.
        managed_fields: keep `metadata.managedFields`, which say who manages each field. By default
            they're dropped, because they're larger than most objects.
        propagation: the propagation policy for dependents when an object is deleted.
        optional: the controller works while the cluster doesn't have this kind, for example before
            its CustomResourceDefinition is installed. Reads find nothing, writes of secondaries do
            nothing, and every primary is synced when the kind appears.

    Without *optional*, a controller waits for a kind that the cluster doesn't have. Raises
    `UsageError` if the selector or the type is invalid.

    `name` is `Kind.group`, as in `Deployment.apps`. A key is `namespace/name`, or `name` if the
    kind is cluster-scoped.
    """

    def __init__(
        self,
        api_version: str,
        kind: str,
        *,
        namespace: str | None = None,
        name: str | None = None,
        labels: str | Mapping[str, str] | None = None,
        type: type[D] | None = None,  # noqa: A002 - a public option
        metadata_only: bool = False,
        managed_fields: bool = False,
        propagation: Propagation = "Background",
        optional: bool = False,
    ) -> None:
        object_type: Any = Manifest if type is None else type
        if not issubclass(get_origin(object_type) or object_type, dict | Object):
            raise UsageError(f"{object_type.__name__} has no metadata: subclass KubeObject")
        group = api_version.rpartition("/")[0]
        super().__init__(object_type, f"{kind}.{group}" if group else kind)
        self.plain = False
        self.api_version = api_version
        self.kind = kind
        self.namespace = namespace
        self.object_name = name
        self.selector = (
            Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
        )
        self.metadata_only = metadata_only
        self.managed_fields = managed_fields
        self.propagation: Propagation = propagation
        self.optional = optional
        self._read: tuple[bytes | None, KubeMetadata] = (None, KubeMetadata())  # the last value

    def labelled(self, labels: Mapping[str, str]) -> "KubeKind[D]":
        return self.selected(Selector.of(labels))

    def selected(self, selector: Selector) -> "KubeKind[D]":
        """Return this kind, limited further to objects that *selector* selects."""
        requirements = (*self.selector.requirements, *selector.requirements)
        return self._changed(selector=Selector(requirements))

    def only(self, key: str) -> "KubeKind[D]":
        """Return this kind, limited to the object with this key.

        Raises `InvalidKeyError` if no object of this kind can have that key.
        """
        namespace, name = split(key)
        if not self.holds(key):
            raise InvalidKeyError(f"key {key!r} is outside of the declared part of {self.name}")
        return self._changed(namespace=namespace or None, object_name=name)

    def unnamed(self) -> "KubeKind[D]":
        return self._changed(object_name=None)

    def metadata(self, value: bytes) -> KubeMetadata:
        # the same value is decoded once
        last, metadata = self._read
        if value is last:
            return metadata
        try:
            metadata = _head.decode(value).metadata
        except DECODE_ERRORS as error:
            raise InvalidObjectError(f"invalid metadata: {error}") from error
        self._read = value, metadata
        return metadata

    def metadata_of(self, obj: D) -> Metadata:
        if isinstance(obj, Object):
            return obj.metadata
        if isinstance(obj, dict):
            return msgspec.convert(obj.get("metadata", {}), KubeMetadata)
        raise UsageError(f"{self.name} holds {self.type.__name__}, not {type(obj).__name__}")

    def require_writable(self) -> None:
        super().require_writable()
        if self.metadata_only:
            raise UsageError(f"{self.name} is watched in part only, so it cannot be written back")

    def overlay(self, current: bytes | None, obj: D) -> Document:
        document: Document = {} if current is None else documents.parse(current)
        if isinstance(obj, msgspec.Struct):
            return documents.overlay(document, obj)
        return documents.merge_patch(document, documents.plain(obj))

    def encode(self, current: bytes | None, obj: D) -> bytes:
        document = self.overlay(current, obj)
        if current is not None and documents.same(document, documents.parse(current)):
            return current
        return documents.render(document)

    def holds(self, key: str) -> bool:
        namespace, _, name = key.rpartition("/")
        if self.namespace is not None and self.namespace != namespace:
            return False
        return self.object_name is None or self.object_name == name

    def describes(self, obj: object) -> bool:
        if isinstance(obj, dict):
            return (obj.get("apiVersion"), obj.get("kind")) == (self.api_version, self.kind)
        return super().describes(obj)

    def key_of(self, manifest: Document) -> str:
        """Return the key of the manifest's object, which a store checks before it sends anything.

        A manifest without a namespace is in the namespace of this kind, if it has any.
        """
        metadata = documents.metadata_of(manifest)
        namespace = metadata.get("namespace") or self.namespace or ""
        return joined(str(namespace), str(metadata.get("name") or ""))

    def reference(self, value: bytes) -> Reference:
        metadata = self.metadata(value)
        return Reference(
            api_version=self.api_version,
            kind=self.kind,
            name=metadata.name,
            namespace=metadata.namespace,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
        )

    def manifest(self, obj: Manifest | msgspec.Struct) -> Manifest:
        """Return *obj* as a manifest of this kind, in the form in which a cluster stores it.

        Raises `InvalidObjectError` if it's of another kind, has no name, or has another namespace
        than this kind.
        """
        manifest: Manifest = documents.plain(obj)
        if not isinstance(manifest, dict):
            raise InvalidObjectError(f"a manifest of {self.name} is a JSON object, not {obj!r:.60}")
        for name, expected in (("apiVersion", self.api_version), ("kind", self.kind)):
            value = manifest.get(name) or expected
            if value != expected:
                raise InvalidObjectError(f"{self.name} has {name} {expected}, not {value}")
        metadata = {k: v for k, v in documents.metadata_of(manifest).items() if v}
        if not metadata.get("name"):
            raise InvalidObjectError(f"a manifest of {self.name} has no metadata.name")
        if "/" in str(metadata["name"]):
            raise InvalidObjectError(
                f"{metadata['name']!r} can't be the name of a {self.kind}: a key may hold slashes, "
                "a name in Kubernetes may not"
            )
        namespace = metadata.get("namespace") or self.namespace
        if self.namespace is not None and namespace != self.namespace:
            raise InvalidObjectError(
                f"{self.name} {metadata['name']} is in namespace {namespace}, not {self.namespace}"
            )
        if namespace is not None:
            metadata["namespace"] = namespace
        identity = {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata}
        manifest = {**manifest, **identity}
        if (self.api_version, self.kind) == ("v1", "Secret") and manifest.get("stringData"):
            texts: dict[str, str] = manifest.pop("stringData")  # which is write-only
            data = {name: b64encode(text.encode()).decode() for name, text in texts.items()}
            manifest["data"] = {**manifest.get("data", {}), **data}
        return manifest


def split(key: str) -> tuple[str, str]:
    """Return the namespace and the name of a key; the namespace may be empty.

    Raises `InvalidKeyError` if no object in a cluster can have this key.
    """
    parts = _KEY.fullmatch(key)
    if parts is None or parts[1] in _DOTS or parts[2] in _DOTS:
        raise InvalidKeyError(f"key {key!r} is neither a name nor namespace/name")
    return parts[1] or "", parts[2]


def joined(namespace: str, name: str) -> str:
    """Return the key of an object; *namespace* is empty if the kind is cluster-scoped."""
    return f"{namespace}/{name}" if namespace else name


kube = KubeKind
