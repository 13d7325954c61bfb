"""Objects and lists that somebody put by, under what they were asked for by."""

import copy
from collections.abc import Sequence
from typing import TypeAlias

from natsctl.dynamic.identifier import GroupVersionKind, ObjectIdentifier
from natsctl.dynamic.resources import ObjectCacheOptions, Resources, ScopedGVR
from natsctl.errors import InvalidInputError, NoCacheEntryError
from natsctl.model.discovery import Discovers
from natsctl.model.documents import Document
from natsctl.model.selectors import Selector

Objects: TypeAlias = list[Document]

_EVERYTHING = Selector()


class ObjectCache:
    """A cache of documents, for whoever asks for the same objects again and again.

    What goes in and what comes out are copies. It keeps what it is given until it is told to let
    go: what is asked for under other words (a list, and an object of it) is kept twice, and
    nothing follows the objects; a `DynamicWatcher` does.

    Args:
        discovery: a cluster that can be asked for its kinds, for `gvk_to_gvr`.
        options: how long its answers are believed.

    Seed: stolostron kubernetes-dependency-watches v0.5.2, `NewObjectCache`.
    """

    def __init__(
        self, discovery: Discovers | None = None, *, options: ObjectCacheOptions | None = None
    ) -> None:
        self._resources = Resources(discovery, options or ObjectCacheOptions())
        self._objects: dict[ObjectIdentifier, Objects] = {}

    def get(self, gvk: GroupVersionKind, namespace: str, name: str) -> Document | None:
        """Return the object, None where it is cached that there is none.

        Raises `NoCacheEntryError` where nothing is cached of it.
        """
        return next(iter(self.from_object_identifier(named(gvk, namespace, name))), None)

    def list(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = _EVERYTHING
    ) -> Objects:
        """Return the objects of the list, which may be none.

        Raises `NoCacheEntryError` where nothing is cached of it.
        """
        return self.from_object_identifier(selected(gvk, namespace, selector))

    def from_object_identifier(self, identifier: ObjectIdentifier) -> Objects:
        """Return the objects that were cached for the identifier, which may be none.

        Raises `NoCacheEntryError` where nothing is cached of it.
        """
        try:
            return copy.deepcopy(self._objects[identifier])
        except KeyError:
            raise NoCacheEntryError(f"nothing is cached of {identifier}") from None

    def cache_list(
        self,
        gvk: GroupVersionKind,
        namespace: str,
        selector: Selector,
        objects: Sequence[Document],
    ) -> None:
        """Keep the objects as what the list is."""
        self.cache_from_object_identifier(selected(gvk, namespace, selector), objects)

    def cache_object(
        self, gvk: GroupVersionKind, namespace: str, name: str, obj: Document | None
    ) -> None:
        """Keep the object; None, that there is none."""
        objects = [] if obj is None else [obj]
        self.cache_from_object_identifier(named(gvk, namespace, name), objects)

    def cache_from_object_identifier(
        self, identifier: ObjectIdentifier, objects: Sequence[Document]
    ) -> None:
        """Keep the objects as those that the identifier names."""
        self._objects[identifier] = copy.deepcopy([*objects])

    def uncache_object(self, gvk: GroupVersionKind, namespace: str, name: str) -> None:
        """Let go of the object; one that is not cached is fine."""
        self.uncache_from_object_identifier(named(gvk, namespace, name))

    def uncache_list(
        self, gvk: GroupVersionKind, namespace: str, selector: Selector = _EVERYTHING
    ) -> None:
        """Let go of the list, not of objects that were cached by their names."""
        self.uncache_from_object_identifier(selected(gvk, namespace, selector))

    def uncache_from_object_identifier(self, identifier: ObjectIdentifier) -> None:
        """Let go of what was cached for the identifier."""
        self._objects.pop(identifier, None)

    async def gvk_to_gvr(self, gvk: GroupVersionKind) -> ScopedGVR:
        """Return the resource that a kind is; see `Resources.gvk_to_gvr`."""
        return await self._resources.gvk_to_gvr(gvk)

    def clear(self) -> None:
        """Let go of everything, what is known of kinds too."""
        self._objects.clear()
        self._resources.clear()


def named(gvk: GroupVersionKind, namespace: str, name: str) -> ObjectIdentifier:
    """Return the identifier of one object; raises `InvalidInputError` without a name."""
    if not name:
        raise InvalidInputError(f"an object of {gvk} is asked for without its name")
    return ObjectIdentifier(
        group=gvk.group, version=gvk.version, kind=gvk.kind, namespace=namespace, name=name
    )


def selected(gvk: GroupVersionKind, namespace: str, selector: Selector) -> ObjectIdentifier:
    """Return the identifier of the objects that the selector matches.

    An empty namespace means all namespaces, and an empty selector matches everything.
    """
    text = str(selector)
    return ObjectIdentifier(
        group=gvk.group,
        version=gvk.version,
        kind=gvk.kind,
        namespace=namespace,
        selector=text,
        everything=not text,
    )
