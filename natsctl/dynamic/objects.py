"""Names of objects in Kubernetes and NATS, the resources of their kinds, and a cache by name."""

import copy
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from natsctl.errors import (
    InvalidInputError,
    NoCacheEntryError,
    NoVersionedResourceError,
    StoreMissingError,
    UsageError,
)
from natsctl.model.documents import Document
from natsctl.model.kept import KeptAnswers
from natsctl.model.manifests import joined
from natsctl.model.selectors import Selector
from natsctl.model.store import Discovers

Objects: TypeAlias = list[Document]

EVERYTHING = Selector()

KV_GROUP = "nats"
KV_VERSION = "kv"


class GroupVersionKind(msgspec.Struct, frozen=True, order=True):
    """A kind: `("apps", "v1", "Deployment")`, or `("nats", "kv", BUCKET)`.

    Its string form is `apps/v1, Kind=Deployment`.
    """

    group: str
    version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.group}/{self.version}, Kind={self.kind}"

    @property
    def api_version(self) -> str:
        """The `apiVersion` of manifests of this kind: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def in_nats(self) -> bool:
        """True if the kind is a bucket."""
        return (self.group, self.version) == (KV_GROUP, KV_VERSION)


def kv_kind(bucket: str) -> GroupVersionKind:
    """Return the kind of the objects in a JetStream KV bucket."""
    return GroupVersionKind(KV_GROUP, KV_VERSION, bucket)


class ObjectIdentifier(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """Names one object, the objects that a label selector matches, or all objects of a kind.

    For Kubernetes, the fields have their usual meaning. For NATS, the group is `nats`, the version
    is `kv`, and the kind is the bucket. `name` is the key without its first tokens, if `namespace`
    has them: the object `team-a.shop` is `shop` in the namespace `team-a`, or just `team-a.shop`.

    An identifier has exactly one of these:

    - `name`: identifies one object.
    - `selector`: identifies the objects whose labels match, in the syntax of `kubectl -l`.
    - `everything=True`: identifies all objects.

    The last two are limited to `namespace` if that is set.

    Seed: stolostron kubernetes-dependency-watches v0.5.2.
    """

    group: str = ""
    version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    selector: str = ""
    everything: bool = False

    def __str__(self) -> str:
        selector = "(everything)" if self.everything else self.selector
        gvk, place = self.group_version_kind(), f"Namespace={self.namespace}, Name={self.name}"
        return f"{gvk}, {place}, Selector={selector}"

    def group_version_kind(self) -> GroupVersionKind:
        return GroupVersionKind(self.group, self.version, self.kind)

    @property
    def key(self) -> str:
        """The key of a named object in its store; empty for other identifiers."""
        if not self.name:
            return ""
        if self.group_version_kind().in_nats:
            return f"{self.namespace}.{self.name}" if self.namespace else self.name
        return joined(self.namespace, self.name)

    def validate(self) -> None:
        """Raise `InvalidInputError` if the identifier is incomplete or contradicts itself."""
        if not self.version or not self.kind:
            raise InvalidInputError(f"an object identifier needs a version and a kind: {self}")
        if (bool(self.name), bool(self.selector), self.everything).count(True) != 1:
            needs = "needs exactly one of name, selector and everything=True"
            raise InvalidInputError(f"an object identifier {needs}: {self}")
        try:
            Selector.parse(self.selector)
        except UsageError as error:
            raise InvalidInputError(f"{self}: {error}") from error


def named(gvk: GroupVersionKind, namespace: str, name: str) -> ObjectIdentifier:
    """Return the identifier of one object; raises `InvalidInputError` without a name."""
    if not name:
        raise InvalidInputError(f"the name of an object of {gvk} is missing")
    return ObjectIdentifier(**msgspec.structs.asdict(gvk), namespace=namespace, name=name)


def selected(gvk: GroupVersionKind, namespace: str, selector: Selector) -> ObjectIdentifier:
    """Return the identifier of the objects that the selector matches.

    An empty namespace means all namespaces, and an empty selector matches everything.
    """
    text, fields = str(selector), msgspec.structs.asdict(gvk)
    return ObjectIdentifier(**fields, namespace=namespace, selector=text, everything=not text)


class ObjectCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The time to live of cached conversions in seconds.

    `gvk_to_gvr_cache_ttl_s` applies to known kinds, ten minutes by default.
    `missing_api_resource_cache_ttl_s` applies to unknown kinds. By default they aren't cached,
    because somebody may define them at any moment.
    """

    gvk_to_gvr_cache_ttl_s: float = 600.0
    missing_api_resource_cache_ttl_s: float = 0.0


class ScopedGVR(msgspec.Struct, frozen=True):
    """A resource, as in paths of the API, and whether it is namespaced.

    The resource of a bucket is the bucket.
    """

    group: str
    version: str
    resource: str
    namespaced: bool


class Resources:
    """Converts kinds to resources; asks *discovery* for kinds that are not cached."""

    def __init__(self, discovery: Discovers | None, options: ObjectCacheOptions) -> None:
        self._discovery, self._options = discovery, options
        self._kept = KeptAnswers(self._look_up)

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource of a kind.

        Raises `NoVersionedResourceError` if the cluster does not have the kind, and `StoreError` if
        the lookup fails.
        """
        if gvk.in_nats:
            return ScopedGVR(gvk.group, gvk.version, gvk.kind, namespaced=True)
        known_s = self._options.gvk_to_gvr_cache_ttl_s
        missing_s = self._options.missing_api_resource_cache_ttl_s
        found = await self._kept.get(
            gvk, lambda it: known_s if isinstance(it, ScopedGVR) else missing_s
        )
        if isinstance(found, ScopedGVR):
            return found
        text = f"the resource version was not found: {found}"
        raise NoVersionedResourceError(text) from found.with_traceback(None)

    def cached(self, gvk: GroupVersionKind) -> ScopedGVR | None:
        """Return the cached resource of the kind, even if expired, or None."""
        found = self._kept.last(gvk)
        return found if isinstance(found, ScopedGVR) else None

    def clear(self) -> None:
        self._kept = KeptAnswers(self._look_up)

    async def _look_up(self, gvk: GroupVersionKind) -> ScopedGVR | StoreMissingError:
        if self._discovery is None:
            raise UsageError(f"{gvk} is kept in Kubernetes, and no cluster is given: pass kube=")
        try:
            served = await self._discovery.resource(gvk.api_version, gvk.kind)
        except StoreMissingError as missing:
            return missing
        return ScopedGVR(gvk.group, gvk.version, served.plural, served.namespaced)


class ObjectCache:
    """A cache of documents that you fill and empty yourself.

    Entries and results are copies, and an entry stays until you remove it. An object and a list
    that contains it are separate entries. Nothing is watched here; a `DynamicWatcher` does that.

    Args:
        discovery: the cluster that `gvk_to_gvr` asks for kinds.
        options: the time to live of its answers.

    Seed: stolostron kubernetes-dependency-watches v0.5.2, `NewObjectCache`.
    """

    def __init__(
        self, discovery: Discovers | None = None, *, options: ObjectCacheOptions | None = None
    ) -> None:
        self._resources = Resources(discovery, options or ObjectCacheOptions())
        self._objects: dict[ObjectIdentifier, Objects] = {}

    def get(self, gvk: GroupVersionKind, namespace: str, name: str) -> Document | None:
        """Return the object, or None if it is cached as absent.

        Raises `NoCacheEntryError` if the object isn't cached.
        """
        return next(iter(self.from_object_identifier(named(gvk, namespace, name))), None)

    def list(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = EVERYTHING
    ) -> Objects:
        """Return the objects of the list, which may be empty.

        Raises `NoCacheEntryError` if the list isn't cached.
        """
        return self.from_object_identifier(selected(gvk, namespace, selector))

    def from_object_identifier(self, identifier: ObjectIdentifier) -> Objects:
        """Return the objects cached for the identifier, which may be none.

        Raises `NoCacheEntryError` if nothing is cached for the identifier.
        """
        try:
            return copy.deepcopy(self._objects[identifier])
        except KeyError:
            raise NoCacheEntryError(f"nothing is cached for {identifier}") from None

    def cache_list(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector, objects: Sequence[Document]
    ) -> None:
        self.cache_from_object_identifier(selected(gvk, namespace, selector), objects)

    def cache_object(
        self, gvk: GroupVersionKind, namespace: str, name: str, obj: Document | None
    ) -> None:
        """Cache the object; None caches that it doesn't exist."""
        objects = [] if obj is None else [obj]
        self.cache_from_object_identifier(named(gvk, namespace, name), objects)

    def cache_from_object_identifier(
        self, identifier: ObjectIdentifier, objects: Sequence[Document]
    ) -> None:
        self._objects[identifier] = copy.deepcopy([*objects])

    def uncache_object(self, gvk: GroupVersionKind, namespace: str, name: str) -> None:
        """Remove the object, if it is cached."""
        self.uncache_from_object_identifier(named(gvk, namespace, name))

    def uncache_list(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = EVERYTHING
    ) -> None:
        """Remove the list, but not objects that are cached by name."""
        self.uncache_from_object_identifier(selected(gvk, namespace, selector))

    def uncache_from_object_identifier(self, identifier: ObjectIdentifier) -> None:
        """Remove the entry of the identifier, if there is one."""
        self._objects.pop(identifier, None)

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource of a kind; see `Resources.gvk_to_gvr`."""
        return await self._resources.gvk_to_gvr(gvk)

    def clear(self) -> None:
        self._objects.clear()
        self._resources.clear()
