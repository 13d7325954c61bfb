"""Kubernetes kinds: one sort of object of a cluster, and what its manifests say.

A manifest is a JSON document as `kubectl apply` takes it; what a cluster keeps is the same
document with more in it.
"""

import copy
import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_origin, overload

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidKeyError, InvalidObjectError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.objects import Metadata, Object
from natsctl.model.selectors import Selector

T = TypeVar("T")

Manifest = dict[str, Any]
Propagation = Literal["Background", "Foreground", "Orphan"]
OnImmutable = Literal["fail", "recreate"]

_NAME = re.compile(r"[^/%\s]{1,253}")


class KubeMetadata(Metadata, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What every object of a cluster says about itself.

    `resource_version` names this state of it, `creation_timestamp` is RFC 3339.
    """

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None


class KubeObject(Object, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of structs for objects of a cluster; subclasses add `spec`, `data` and the like.

    Example:
        class ConfigMap(KubeObject, frozen=True):
            data: dict[str, str] = {}
    """

    api_version: str = ""
    kind: str = ""
    metadata: KubeMetadata = KubeMetadata()


class Reference(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object of a cluster, as events and owner references name it."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Head(msgspec.Struct, frozen=True):
    metadata: KubeMetadata = KubeMetadata()


_head = msgspec.json.Decoder(_Head)


class KubeKind(Kind[T]):
    """Objects of one kind in a cluster, or those of a namespace, of a name, or with certain labels.

    `name` is `Kind.group`, as in `Deployment.apps`. Keys are `namespace/name`, or `name` where the
    kind is cluster-scoped.
    """

    def __init__(
        self,
        of: type[T],
        api_version: str,
        kind: str,
        *,
        namespace: str | None = None,
        object_name: str | None = None,
        selector: Selector | None = None,
        metadata_only: bool = False,
        managed_fields: bool = False,
        propagation: Propagation = "Background",
        optional: bool = False,
    ) -> None:
        group = api_version.rpartition("/")[0]
        super().__init__(of, f"{kind}.{group}" if group else kind)
        self.plain = False
        self.api_version = api_version
        self.kind = kind
        self.namespace = namespace
        self.object_name = object_name
        self.selector = Selector() if selector is None else selector
        self.metadata_only = metadata_only
        self.managed_fields = managed_fields
        self.propagation: Propagation = propagation
        self.optional = optional

    def labelled(self, labels: Mapping[str, str]) -> "KubeKind[T]":
        """Return the part of this kind whose objects have these labels as well."""
        return self.selected(Selector.of(labels))

    def selected(self, selector: Selector) -> "KubeKind[T]":
        """Return the part of this kind that *selector* means as well."""
        part: KubeKind[T] = copy.copy(self)
        part.selector = Selector((*self.selector.requirements, *selector.requirements))
        return part

    def only(self, key: str) -> "KubeKind[T]":
        """Return the part of this kind that is the object with this key, if it exists.

        Raises `InvalidKeyError` where no object of this kind can have that key.
        """
        namespace, name = split(key)
        if not self.holds(key):
            raise InvalidKeyError(f"key {key!r} is none of this part of {self.name}")
        part: KubeKind[T] = copy.copy(self)
        part.namespace, part.object_name = namespace or None, name
        return part

    def metadata(self, value: bytes) -> KubeMetadata:
        """See `Kind.metadata`."""
        try:
            return _head.decode(value).metadata
        except DECODE_ERRORS as error:
            raise InvalidObjectError(f"no valid metadata: {error}") from error

    def metadata_of(self, obj: T) -> Metadata:
        """See `Kind.metadata_of`."""
        if isinstance(obj, Object):
            return obj.metadata
        if isinstance(obj, dict):
            return msgspec.convert(obj.get("metadata", {}), KubeMetadata)
        raise UsageError(f"{self.name} holds {self.type.__name__}, not {type(obj).__name__}")

    def overlay(self, current: bytes | None, obj: T) -> Document:
        """See `Kind.overlay`."""
        document: Document = {} if current is None else documents.parse(current)
        if isinstance(obj, msgspec.Struct):
            return documents.overlay(document, obj)
        return documents.merge_patch(document, documents.plain(obj))

    def encode(self, current: bytes | None, obj: T) -> bytes:
        """Return the current object with what *obj* says laid over it."""
        document = self.overlay(current, obj)
        if current is not None and documents.same(document, documents.parse(current)):
            return current
        return documents.render(document)

    def holds(self, key: str) -> bool:
        """Say whether *key* may be one of this kind's: of its namespace, and of its name."""
        namespace, _, name = key.rpartition("/")
        return self.namespace in {None, namespace} and self.object_name in {None, name}

    def describes(self, obj: object) -> bool:
        """See `Kind.describes`."""
        if isinstance(obj, dict):
            return (obj.get("apiVersion"), obj.get("kind")) == (self.api_version, self.kind)
        return super().describes(obj)

    def reference(self, value: bytes) -> Reference:
        """Return what names the stored object to others."""
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
        """Return *obj* as a manifest of this kind, in the form in which a cluster keeps it.

        Raises `InvalidObjectError` where it is of another kind, has no name, or is of another
        namespace than this kind's.
        """
        manifest: Manifest = documents.plain(obj)
        if not isinstance(manifest, dict):
            raise InvalidObjectError(f"a manifest of {self.name} is a JSON object, not {obj!r:.60}")
        for name, ours in (("apiVersion", self.api_version), ("kind", self.kind)):
            theirs = manifest.get(name) or ours
            if theirs != ours:
                raise InvalidObjectError(f"{self.name} has {name} {ours}, not {theirs}")
        metadata = {k: v for k, v in documents.metadata_of(manifest).items() if v}
        if not metadata.get("name"):
            raise InvalidObjectError(f"a manifest of {self.name} has no metadata.name")
        namespace = metadata.get("namespace") or self.namespace
        if self.namespace is not None and namespace != self.namespace:
            raise InvalidObjectError(
                f"{self.name} {metadata['name']} is of namespace {namespace}, not {self.namespace}"
            )
        placed = metadata if namespace is None else {**metadata, "namespace": namespace}
        own = {"apiVersion": self.api_version, "kind": self.kind, "metadata": placed}
        return _stored_form({**manifest, **own})


def split(key: str) -> tuple[str, str]:
    """Return the namespace and the name in a key; the namespace is empty where it has none.

    Raises `InvalidKeyError` where the key can name no object of a cluster.
    """
    namespace, slash, name = key.rpartition("/")
    legal = _NAME.fullmatch(name) and (not slash or _NAME.fullmatch(namespace))
    if not legal or {".", ".."} & {namespace, name}:
        raise InvalidKeyError(f"key {key!r} is neither a name nor namespace/name")
    return namespace, name


def joined(namespace: str, name: str) -> str:
    """Return the key of an object; *namespace* is empty where the kind is cluster-scoped."""
    return f"{namespace}/{name}" if namespace else name


def _stored_form(manifest: Manifest) -> Manifest:
    """Return the manifest without write-only fields: a Secret's text becomes its data."""
    if (manifest["apiVersion"], manifest["kind"]) != ("v1", "Secret") or not manifest.get(
        "stringData"
    ):
        return manifest
    result = dict(manifest)
    texts: dict[str, str] = result.pop("stringData")
    encoded = {name: b64encode(text.encode()).decode() for name, text in texts.items()}
    result["data"] = {**result.get("data", {}), **encoded}
    return result


@overload
def kube(
    api_version: str,
    kind: str,
    *,
    namespace: str | None = None,
    name: str | None = None,
    labels: str | Mapping[str, str] | None = None,
    type: None = None,
    metadata_only: bool = False,
    managed_fields: bool = False,
    propagation: Propagation = "Background",
    optional: bool = False,
) -> KubeKind[Manifest]: ...


@overload
def kube(
    api_version: str,
    kind: str,
    *,
    namespace: str | None = None,
    name: str | None = None,
    labels: str | Mapping[str, str] | None = None,
    type: type[T],
    metadata_only: bool = False,
    managed_fields: bool = False,
    propagation: Propagation = "Background",
    optional: bool = False,
) -> KubeKind[T]: ...


def kube(
    api_version: str,
    kind: str,
    *,
    namespace: str | None = None,
    name: str | None = None,
    labels: str | Mapping[str, str] | None = None,
    type: Any = None,  # noqa: A002 - what it is
    metadata_only: bool = False,
    managed_fields: bool = False,
    propagation: Propagation = "Background",
    optional: bool = False,
) -> KubeKind[Any]:
    """Declare objects of a Kubernetes cluster, custom resources included.

    Args:
        api_version: `v1`, `apps/v1`, `example.com/v1alpha1`.
        kind: `ConfigMap`, `Deployment`, `Widget`.
        namespace: only objects of this namespace; None means all, and kinds without namespaces.
        name: only the object of this name, or those where there is one in each namespace.
        labels: only objects that this label selector means: as `kubectl -l` takes it, or the
            labels that they have. The server selects.
        type: what objects decode to: by default the document as a dict; else a subclass of
            `KubeObject`, or any struct with `metadata`.
        metadata_only: only metadata is watched and cached; for large or secret objects.
        managed_fields: keep `metadata.managedFields`, which tell who set which fields; by default
            they are dropped, being larger than most objects.
        propagation: what becomes of dependents when an object is deleted.
        optional: the controller works without this kind while the cluster does not have it, as
            when its CustomResourceDefinition is not installed. Reads find no objects, writes of
            secondaries do nothing, and every primary is synced when the kind appears.

    Without *optional*, a controller waits for a kind that the cluster does not have. Raises
    `UsageError` for a selector or a type that cannot be.
    """
    of = dict[str, Any] if type is None else type
    if not issubclass(get_origin(of) or of, dict | Object):
        raise UsageError(f"{of.__name__} has no metadata: make it a subclass of KubeObject")
    selector = Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
    return KubeKind(
        of,
        api_version,
        kind,
        namespace=namespace,
        object_name=name,
        selector=selector,
        metadata_only=metadata_only,
        managed_fields=managed_fields,
        propagation=propagation,
        optional=optional,
    )
