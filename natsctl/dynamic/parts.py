"""Finds the part of a store that an identifier selects, and reads its objects."""

from contextlib import suppress
from typing import Any

from natsctl.core.backends import Backends
from natsctl.core.dependencies import Dependency, DependencyWatch, one, those
from natsctl.dynamic.cache import Objects
from natsctl.dynamic.identifier import GroupVersionKind, ObjectIdentifier, identified, kv_kind
from natsctl.dynamic.resources import Resources, ScopedGVR
from natsctl.errors import InvalidInputError, InvalidKeyError, InvalidObjectError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.selectors import Selector
from natsctl.model.store import ManifestStores, Store, Stored, Stores


class Parts:
    """Finds the objects that identifiers select.

    If *metadata_only*, only the metadata of objects in the cluster is watched.
    """

    def __init__(
        self,
        resources: Resources,
        *,
        nats: Stores | None,
        kube: ManifestStores | None,
        metadata_only: bool,
    ) -> None:
        self._resources = resources
        self._backends = Backends(nats=nats, kube=kube)
        self._metadata_only = metadata_only

    async def dependency_on(self, identifier: ObjectIdentifier) -> Dependency[Any]:
        """Return the dependency for an identifier.

        Raises `InvalidInputError` for an invalid identifier, and the errors of
        `Resources.gvk_to_gvr`.
        """
        identifier.validate()
        resource = await self._resources.gvk_to_gvr(identifier.group_version_kind())
        return self._part(identifier, resource)

    def cached_dependency_on(self, identifier: ObjectIdentifier) -> Dependency[Any]:
        """Return the dependency from the cache of resources, without a request to the cluster."""
        identifier.validate()
        resource = self._resources.cached(identifier.group_version_kind())
        return self._part(identifier, resource)

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the store of *kind*; raises `UsageError` without a connection to its system."""
        return await self._backends.open(kind)

    def _part(self, identifier: ObjectIdentifier, resource: ScopedGVR | None) -> Dependency[Any]:
        try:
            if identifier.group_version_kind().in_nats:
                return _part_of_bucket(identifier)
            return self._part_of_cluster(identifier, resource)
        except InvalidKeyError as error:
            raise InvalidInputError(f"{identifier}: {error}") from error

    def _part_of_cluster(
        self, identifier: ObjectIdentifier, resource: ScopedGVR | None
    ) -> Dependency[Any]:
        """Return the dependency; ignores the namespace if the kind is not namespaced."""
        namespaced = resource is None or resource.namespaced
        namespace = identifier.namespace if namespaced else ""
        if identifier.name and namespaced and not namespace:
            raise InvalidInputError(f"this kind is namespaced: set a namespace: {identifier}")
        kind = KubeKind[Document](
            dict[str, Any],
            identifier.group_version_kind().api_version,
            identifier.kind,
            namespace=namespace or None,
            metadata_only=self._metadata_only,
        )
        if identifier.name:
            return one(kind, joined(namespace, identifier.name))
        return those(kind, Selector.parse(identifier.selector))


def identifier_of(dependency: Dependency[Any]) -> ObjectIdentifier:
    """Return an identifier of the objects of a dependency."""
    gvk, kind, key = _gvk_of(dependency), dependency.kind, dependency.key
    namespace, name, selector = "", key or "", dependency.selector
    if isinstance(kind, KubeKind):
        namespace, name, selector = kind.namespace or "", name.rpartition("/")[2], kind.selector
    elif isinstance(kind, KvKind) and key is None and kind.keys != ">":
        namespace = kind.keys.removesuffix(".>")
    return identified(gvk, namespace, name=name, selector=str(selector))


def kind_of(identifier: ObjectIdentifier) -> Kind[Any]:
    """Return the kind of the identified object, for a recording."""
    gvk = identifier.group_version_kind()
    if gvk.in_nats:
        return KvKind(bytes, bucket=gvk.kind, create=False)
    return KubeKind[Document](dict[str, Any], gvk.api_version, gvk.kind)


def object_from(watch: DependencyWatch[Any]) -> Document | None:
    """Return a copy of the watched object as a document, or None if it does not exist.

    Raises `InvalidObjectError` if the object is not a JSON object.
    """
    gvk = _gvk_of(watch.dependency)
    return next((_document(gvk, stored) for stored in watch.objects()), None)


def objects_from(*watches: DependencyWatch[Any]) -> Objects:
    """Return each object of the watches once; skips values that are not JSON objects."""
    objects: dict[tuple[GroupVersionKind, str], Document] = {}
    for watch in watches:
        gvk = _gvk_of(watch.dependency)
        for stored in watch.objects():
            with suppress(InvalidObjectError):
                objects[gvk, stored.key] = _document(gvk, stored)
    return list(objects.values())


def _document(gvk: GroupVersionKind, stored: Stored) -> Document:
    """Return the object as a document; one of a bucket gets kind, name and revision too."""
    document = documents.parse(stored.value)
    if not gvk.in_nats:
        return document
    identity = {"name": stored.key, "resourceVersion": str(stored.revision)}
    metadata = {**documents.metadata_of(document), **identity}
    return {**document, "apiVersion": gvk.api_version, "kind": gvk.kind, "metadata": metadata}


def _gvk_of(dependency: Dependency[Any]) -> GroupVersionKind:
    if isinstance(dependency.kind, KvKind):
        return kv_kind(dependency.kind.bucket)
    if isinstance(dependency.kind, KubeKind):
        group, _, version = dependency.kind.api_version.rpartition("/")
        return GroupVersionKind(group, version, dependency.kind.kind)
    raise UsageError(f"{dependency} is kept neither in NATS nor in Kubernetes")


def _part_of_bucket(identifier: ObjectIdentifier) -> Dependency[bytes]:
    """Return the dependency on objects of an existing bucket with any values."""
    bucket = KvKind(bytes, bucket=identifier.kind, create=False)
    bucket.name = identifier.kind
    if identifier.name:
        return one(bucket, identifier.key)
    part = bucket.part(f"{identifier.namespace}.>") if identifier.namespace else bucket
    return those(part, Selector.parse(identifier.selector))
