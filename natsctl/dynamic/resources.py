"""Which resource a kind is, remembered for a while."""

import asyncio
from weakref import WeakValueDictionary

import msgspec

from natsctl.dynamic.identifier import GroupVersionKind
from natsctl.errors import NoVersionedResourceError, StoreMissingError, UsageError
from natsctl.model.discovery import Discovers

WATCHED_BY = ("list", "watch")


class ObjectCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How long conversions of kinds to resources are believed, in seconds.

    `gvk_to_gvr_cache_ttl_s` is for what was found, ten minutes; `missing_api_resource_cache_ttl_s`
    for what was not: by default it is looked for each time, because its definition may come any
    moment.
    """

    gvk_to_gvr_cache_ttl_s: float = 600.0
    missing_api_resource_cache_ttl_s: float = 0.0


class ScopedGVR(msgspec.Struct, frozen=True):
    """A resource, as paths name it, and whether its objects may be in namespaces.

    That of a bucket is the bucket.
    """

    group: str
    version: str
    resource: str
    namespaced: bool


class _Looked(msgspec.Struct, frozen=True):
    until: float
    found: ScopedGVR | NoVersionedResourceError


class Resources:
    """Converts kinds to resources; asks *discovery* for what is not known, or not any more.

    Whoever asks while a lookup of the same kind is on its way shares its answer.
    """

    def __init__(self, discovery: Discovers | None, options: ObjectCacheOptions) -> None:
        self._discovery = discovery
        self._options = options
        self._looked: dict[GroupVersionKind, _Looked] = {}
        self._locks: WeakValueDictionary[GroupVersionKind, asyncio.Lock] = WeakValueDictionary()

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource that a kind is.

        Raises `NoVersionedResourceError` where the cluster has none, and the `StoreError` that
        says why it cannot tell.
        """
        if gvk.in_nats:
            return ScopedGVR(gvk.group, gvk.version, gvk.kind, namespaced=True)
        lock = self._locks.get(gvk)
        if lock is None:
            lock = self._locks[gvk] = asyncio.Lock()
        async with lock:
            looked = self._looked.get(gvk)
            if looked is None or asyncio.get_running_loop().time() >= looked.until:
                looked = self._looked[gvk] = await self._look(gvk)
        if isinstance(looked.found, NoVersionedResourceError):
            raise looked.found.with_traceback(None)
        return looked.found

    def known(self, gvk: GroupVersionKind) -> ScopedGVR | None:
        """Return what the kind was found to be, be it long ago."""
        looked = self._looked.get(gvk)
        return looked.found if looked and isinstance(looked.found, ScopedGVR) else None

    def clear(self) -> None:
        """Forget everything."""
        self._looked.clear()

    async def _look(self, gvk: GroupVersionKind) -> _Looked:
        if self._discovery is None:
            raise UsageError(f"{gvk} is kept in Kubernetes, and no cluster is given: pass kube=")
        now = asyncio.get_running_loop().time()
        try:
            found = await self._discovery.resource(gvk.api_version, gvk.kind)
        except StoreMissingError as missing:
            error = NoVersionedResourceError(f"the resource version was not found: {missing}")
            error.__cause__ = missing
            return _Looked(now + self._options.missing_api_resource_cache_ttl_s, error)
        resource = ScopedGVR(gvk.group, gvk.version, found.plural, found.namespaced)
        return _Looked(now + self._options.gvk_to_gvr_cache_ttl_s, resource)
