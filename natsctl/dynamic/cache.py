"""A cache of documents by object or list identifier."""

import copy
from collections.abc import Sequence
from typing import TypeAlias

from natsctl.dynamic.identifier import GroupVersionKind, ObjectIdentifier, identified
from natsctl.dynamic.resources import ObjectCacheOptions, Resources, ScopedGVR
from natsctl.errors import InvalidInputError, NoCacheEntryError
from natsctl.model.discovery import Discovers
from natsctl.model.documents import Document
from natsctl.model.selectors import Selector

Objects: TypeAlias = list[Document]

_EVERYTHING = Selector()


class ObjectCache:
    """A cache of documents that callers fill and empty by themselves.

    Entries and results are copies. An entry stays until it is removed. An object and a list that
    contains it are separate entries. The cache does not watch objects; a `DynamicWatcher` does.

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

        Raises `NoCacheEntryError` if the object is not cached.
        """
        return next(iter(self.from_object_identifier(named(gvk, namespace, name))), None)

    def list(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = _EVERYTHING
    ) -> Objects:
        """Return the objects of the list, which may be empty.

        Raises `NoCacheEntryError` if the list is not cached.
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
        """Cache the objects of a list."""
        self.cache_from_object_identifier(selected(gvk, namespace, selector), objects)

    def cache_object(
        self, gvk: GroupVersionKind, namespace: str, name: str, obj: Document | None
    ) -> None:
        """Cache the object; None caches that it does not exist."""
        objects = [] if obj is None else [obj]
        self.cache_from_object_identifier(named(gvk, namespace, name), objects)

    def cache_from_object_identifier(
        self, identifier: ObjectIdentifier, objects: Sequence[Document]
    ) -> None:
        """Cache the objects of the identifier."""
        self._objects[identifier] = copy.deepcopy([*objects])

    def uncache_object(self, gvk: GroupVersionKind, namespace: str, name: str) -> None:
        """Remove the object, if it is cached."""
        self.uncache_from_object_identifier(named(gvk, namespace, name))

    def uncache_list(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = _EVERYTHING
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
        """Remove all entries, including those of kinds."""
        self._objects.clear()
        self._resources.clear()


def named(gvk: GroupVersionKind, namespace: str, name: str) -> ObjectIdentifier:
    """Return the identifier of one object; raises `InvalidInputError` without a name."""
    if not name:
        raise InvalidInputError(f"the name of an object of {gvk} is missing")
    return identified(gvk, namespace, name=name)


def selected(gvk: GroupVersionKind, namespace: str, selector: Selector) -> ObjectIdentifier:
    """Return the identifier of the objects that the selector matches.

    An empty namespace means all namespaces, and an empty selector matches everything.
    """
    return identified(gvk, namespace, selector=str(selector))
