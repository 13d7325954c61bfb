"""Converts kinds to resources, with a cache."""

import asyncio
from weakref import WeakValueDictionary

import msgspec

from natsctl.dynamic.identifier import GroupVersionKind
from natsctl.errors import NoVersionedResourceError, StoreMissingError, UsageError
from natsctl.model.discovery import Discovers


class ObjectCacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The time to live of cached conversions in seconds.

    `gvk_to_gvr_cache_ttl_s` applies to known kinds, ten minutes by default.
    `missing_api_resource_cache_ttl_s` applies to unknown kinds, which are not cached by default,
    because their definition may be added at any moment.
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


class _Lookup(msgspec.Struct, frozen=True):
    until: float
    result: ScopedGVR | NoVersionedResourceError


class Resources:
    """Converts kinds to resources; asks *discovery* for kinds that are not cached.

    Concurrent lookups of the same kind share one request.
    """

    def __init__(self, discovery: Discovers | None, options: ObjectCacheOptions) -> None:
        self._discovery = discovery
        self._options = options
        self._lookups: dict[GroupVersionKind, _Lookup] = {}
        self._locks: WeakValueDictionary[GroupVersionKind, asyncio.Lock] = WeakValueDictionary()

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource of a kind.

        Raises `NoVersionedResourceError` if the cluster does not have the kind, and `StoreError` if
        the lookup fails.
        """
        if gvk.in_nats:
            return ScopedGVR(gvk.group, gvk.version, gvk.kind, namespaced=True)
        lock = self._locks.get(gvk)
        if lock is None:
            lock = self._locks[gvk] = asyncio.Lock()
        async with lock:
            lookup = self._lookups.get(gvk)
            if lookup is None or asyncio.get_running_loop().time() >= lookup.until:
                lookup = self._lookups[gvk] = await self._look_up(gvk)
        if isinstance(lookup.result, NoVersionedResourceError):
            raise lookup.result.with_traceback(None)
        return lookup.result

    def cached(self, gvk: GroupVersionKind) -> ScopedGVR | None:
        """Return the cached resource of the kind, even if expired, or None."""
        lookup = self._lookups.get(gvk)
        return lookup.result if lookup and isinstance(lookup.result, ScopedGVR) else None

    def clear(self) -> None:
        """Remove all entries."""
        self._lookups.clear()

    async def _look_up(self, gvk: GroupVersionKind) -> _Lookup:
        if self._discovery is None:
            raise UsageError(f"{gvk} is kept in Kubernetes, and no cluster is given: pass kube=")
        now = asyncio.get_running_loop().time()
        try:
            served = await self._discovery.resource(gvk.api_version, gvk.kind)
        except StoreMissingError as missing:
            error = NoVersionedResourceError(f"the resource version was not found: {missing}")
            error.__cause__ = missing
            return _Lookup(now + self._options.missing_api_resource_cache_ttl_s, error)
        resource = ScopedGVR(gvk.group, gvk.version, served.plural, served.namespaced)
        return _Lookup(now + self._options.gvk_to_gvr_cache_ttl_s, resource)
