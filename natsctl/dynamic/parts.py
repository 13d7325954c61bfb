"""Which part of which store an identifier means, and what is read from it."""

from contextlib import suppress
from typing import Any

from natsctl.core.dependencies.dependency import Dependency, one, those
from natsctl.core.dependencies.watches import DependencyWatch
from natsctl.dynamic.cache import Objects
from natsctl.dynamic.identifier import GroupVersionKind, ObjectIdentifier, kv_kind
from natsctl.dynamic.resources import Resources, ScopedGVR
from natsctl.errors import InvalidInputError, InvalidKeyError, InvalidObjectError, UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, joined
from natsctl.model.selectors import Selector
from natsctl.model.store import ManifestStores, Store, Stored, Stores


class Parts:
    """Finds what identifiers name.

    Args:
        resources: says which kinds there are in the cluster, and whether they have namespaces.
        nats: where buckets are.
        kube: the cluster.
        metadata_only: of objects of the cluster, only metadata is needed.
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
        self._nats, self._kube = nats, kube
        self._metadata_only = metadata_only

    async def of(self, identifier: ObjectIdentifier) -> Dependency[Any]:
        """Return what it names.

        Raises `InvalidInputError` for what can name nothing, and what `Resources.gvk_to_gvr`
        raises.
        """
        identifier.validate()
        resource = await self._resources.gvk_to_gvr(identifier.group_version_kind())
        return self._part(identifier, resource)

    def known(self, identifier: ObjectIdentifier) -> Dependency[Any]:
        """Return the same, as far as that is known without asking anybody."""
        identifier.validate()
        resource = self._resources.known(identifier.group_version_kind())
        return self._part(identifier, resource)

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the store of a part; raises `UsageError` where its system was not given."""
        if isinstance(kind, KubeKind):
            if self._kube is None:
                raise UsageError(f"{kind.name} is kept in Kubernetes, and no cluster is given")
            return await self._kube.open(kind)
        if self._nats is None:
            raise UsageError(f"{kind.name} is kept in NATS, and no connection is given: pass nats=")
        return await self._nats.open(kind)

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
        """Pass over a namespace of a kind that has none."""
        namespaced = resource is None or resource.namespaced
        namespace = identifier.namespace if namespaced else ""
        if identifier.name and namespaced and not namespace:
            raise InvalidInputError(
                f"a namespace must be given, for this kind has them: {identifier}"
            )
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


def object_from(watch: DependencyWatch[Any]) -> Document | None:
    """Return the object that the watch is of, as a document that may be changed at will.

    None where it does not exist. Raises `InvalidObjectError` where it is no JSON object.
    """
    gvk = _gvk_of(watch.on)
    return next((_document(gvk, stored) for stored in watch.objects()), None)


def objects_from(*watches: DependencyWatch[Any]) -> Objects:
    """Return the objects that the watches are of, each once; what is no JSON object is left out."""
    found: dict[tuple[GroupVersionKind, str], Document] = {}
    for watch in watches:
        gvk = _gvk_of(watch.on)
        for stored in watch.objects():
            with suppress(InvalidObjectError):
                found[gvk, stored.key] = _document(gvk, stored)
    return list(found.values())


def _document(gvk: GroupVersionKind, stored: Stored) -> Document:
    """Let what is in a bucket look like what is in a cluster: with its kind, name and revision."""
    document = documents.parse(stored.value)
    if not gvk.in_nats:
        return document
    own = {"name": stored.key, "resourceVersion": str(stored.revision)}
    metadata = {**documents.metadata_of(document), **own}
    return {**document, "apiVersion": gvk.api_version, "kind": gvk.kind, "metadata": metadata}


def _gvk_of(on: Dependency[Any]) -> GroupVersionKind:
    if isinstance(on.kind, KvKind):
        return kv_kind(on.kind.bucket)
    if isinstance(on.kind, KubeKind):
        group, _, version = on.kind.api_version.rpartition("/")
        return GroupVersionKind(group, version, on.kind.kind)
    raise UsageError(f"{on} is kept neither in NATS nor in Kubernetes")


def _part_of_bucket(identifier: ObjectIdentifier) -> Dependency[bytes]:
    """Return what it names, of a bucket that is there already, whatever is in it."""
    bucket = KvKind(bytes, bucket=identifier.kind, create=False)
    bucket.name = identifier.kind
    if identifier.name:
        return one(bucket, identifier.key)
    part = bucket.part(f"{identifier.namespace}.>") if identifier.namespace else bucket
    return those(part, Selector.parse(identifier.selector))
