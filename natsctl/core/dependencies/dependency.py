"""What somebody may depend on: one object, or those that a selector means."""

import re
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidKeyError, UsageError
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import Head
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, Stored

T = TypeVar("T")

_KEY = re.compile(r"[^.*>\s]+(\.[^.*>\s]+)*")  # one key, whatever else a bucket may ask of it

_head = msgspec.json.Decoder(Head)


class Dependency(Generic[T]):
    """A part of a kind that can be watched by itself. Equal ones can share a watch.

    `kind` has the part and no more, as far as its store can select; `selector` is what is left to
    select here; `key` is that of the one object, None where there may be several.
    """

    __slots__ = ("_identity", "key", "kind", "selector")

    def __init__(self, kind: Kind[T], selector: Selector, key: str | None = None) -> None:
        self.kind = kind
        self.selector = selector
        self.key = key
        self._identity = (kind.type, *_place(kind), str(selector), key)

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

    def means(self, stored: Stored | None) -> bool:
        """Say whether this object is one of those."""
        if stored is None or not self.selector.requirements:
            return stored is not None
        try:
            labels = _head.decode(stored.value).metadata.labels
        except DECODE_ERRORS:
            return False  # nobody can read its labels
        return self.selector.matches(labels)

    def concerns(self, change: Change[Any]) -> bool:
        """Say whether the object was one of those before the change, or is one now."""
        if change.before is None and change.after is None:
            return True  # nobody knows what it was
        return self.means(change.before) or self.means(change.after)


def one(kind: Kind[T], key: str) -> Dependency[T]:
    """Return the dependency on the object with this key, be there one or not.

    Raises `InvalidKeyError` where no object of this kind can have that key.
    """
    if isinstance(kind, KubeKind):
        return Dependency(kind.only(key), Selector(), key)
    if isinstance(kind, KvKind):
        if not _KEY.fullmatch(key) or not kind.holds(key):
            raise InvalidKeyError(f"key {key!r} is none of {kind.name}: {kind.keys}")
        return Dependency(kind.part(key), Selector(), key)
    raise UsageError(f"{kind.name} is kept neither in NATS nor in Kubernetes")


def those(kind: Kind[T], selector: Selector) -> Dependency[T]:
    """Return the dependency on the objects of this kind that the selector means.

    Raises `UsageError` where the selector asks for labels that this kind has not.
    """
    if isinstance(kind, KubeKind):
        return Dependency(kind.selected(selector), Selector())
    if selector.requirements and kind.type is not bytes:
        kind.require_metadata()
    return Dependency(kind, selector)


def _place(kind: Kind[Any]) -> tuple[Hashable, ...]:
    """Return what tells this part of what a system keeps from every other."""
    if isinstance(kind, KvKind):
        return "kv", kind.bucket, kind.keys
    if isinstance(kind, KubeKind):
        where = kind.api_version, kind.kind, kind.namespace, kind.object_name
        return "kube", *where, str(kind.selector), kind.metadata_only
    return (kind,)
