"""Describes the objects on which something depends: one object, or those of a selector."""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

from natsctl.errors import DECODE_ERRORS, InvalidKeyError, UsageError
from natsctl.model.keys import check_key
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import head
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, Stored

T = TypeVar("T")


class Dependency(Generic[T]):
    """A part of a kind that can be watched separately. Equal dependencies can share a watch.

    `kind` contains only the part, as far as the store can select; `selector` selects the rest in
    this process. `key` is the key of a single object, None if there may be several.
    """

    __slots__ = ("_identity", "key", "kind", "selector")

    def __init__(self, kind: Kind[T], selector: Selector, key: str | None = None) -> None:
        self.kind = kind
        self.selector = selector
        self.key = key
        self._identity = (kind.type, *_location(kind), str(selector), key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dependency) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        if self.key is not None:
            return f"{self.kind.name} {self.key}"
        chosen = self.kind.selector if isinstance(self.kind, KubeKind) else self.selector
        return f"{self.kind.name} with {chosen}" if chosen.requirements else f"all {self.kind.name}"

    def selects(self, stored: Stored | None) -> bool:
        """Return whether this object belongs to the dependency."""
        if stored is None or not self.selector.requirements:
            return stored is not None
        try:
            labels = head.decode(stored.value).metadata.labels
        except DECODE_ERRORS:
            return False  # its labels cannot be read
        return self.selector.matches(labels)

    def concerns(self, change: Change[Any]) -> bool:
        """Return whether the object belonged to the dependency before the change, or does now."""
        if change.before is None and change.after is None:
            return True  # its state before the deletion is not known
        return self.selects(change.before) or self.selects(change.after)


def one(kind: Kind[T], key: str) -> Dependency[T]:
    """Return the dependency on the object with this key, which need not exist.

    Raises `InvalidKeyError` if no object of this kind can have the key.
    """
    if isinstance(kind, KubeKind):
        return Dependency(kind.only(key), Selector(), key)
    if isinstance(kind, KvKind):
        if not kind.holds(check_key(key)):
            raise InvalidKeyError(f"key {key!r} is none of {kind.name}: {kind.keys}")
        return Dependency(kind.part(key), Selector(), key)
    raise UsageError(f"{kind.name} is kept neither in NATS nor in Kubernetes")


def those(kind: Kind[T], selector: Selector) -> Dependency[T]:
    """Return the dependency on the objects of this kind that the selector matches.

    Raises `UsageError` if the selector needs labels and the kind has none.
    """
    if isinstance(kind, KubeKind):
        return Dependency(kind.selected(selector), Selector())
    if selector.requirements and kind.type is not bytes:
        kind.require_metadata()
    return Dependency(kind, selector)


def _location(kind: Kind[Any]) -> tuple[Hashable, ...]:
    """Return what distinguishes this part of a system from all other parts."""
    if isinstance(kind, KvKind):
        return "kv", kind.bucket, kind.keys
    if isinstance(kind, KubeKind):
        path = kind.api_version, kind.kind, kind.namespace, kind.object_name
        return "kube", *path, str(kind.selector), kind.metadata_only
    return (kind,)
