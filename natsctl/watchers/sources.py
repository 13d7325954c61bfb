"""Where the watchers of a resource kind have their news from: one informer, or a part of it."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from natsctl.core.cache.cache import Invalid
from natsctl.core.cache.deletion_markers import deleted
from natsctl.core.cache.informer import Informer
from natsctl.errors import InvalidObjectError
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, Store, Stored
from natsctl.watchers.merged_changes import News

Labels = str | Mapping[str, str]


class Source:
    """Objects of one kind, or those that a label selector means.

    A cluster selects itself; from a bucket everything comes, and the rest is passed over here. An
    object whose labels change so that it is not meant any more is deleted, as seen from here.
    """

    def __init__(self, kind: Kind[Any], labels: Labels | None) -> None:
        selector = Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
        if selector.requirements:
            kind.require_metadata()
        self.kind, self.selector = _pushed(kind, selector)
        self.informer: Informer[Any]  # there once opened

    @property
    def part(self) -> tuple[str, ...]:
        """Which objects of which kind are meant; equal for equal parts."""
        kind = self.kind
        if isinstance(kind, KubeKind):
            return (kind.name, kind.api_version, kind.namespace or "", str(kind.selector))
        keys = kind.keys if isinstance(kind, KvKind) else ""
        return (kind.name, keys, str(self.selector))

    def near(self, other: "Source") -> bool:
        """Say whether an object may move between the two: they are parts of one kind."""
        return self.part[0] == other.part[0]

    def opened(
        self,
        store: Store,
        on_invalid: Callable[[Invalid], None],
        on_listed: Callable[[], None],
    ) -> None:
        """Watch this store from now on."""
        self.informer = Informer(store, self.kind, on_invalid=on_invalid, on_listed=on_listed)

    def has(self, key: str) -> bool:
        """Say whether the object is there and meant, as far as is known here."""
        return self._meant(self.informer.cache.get(key)) is not None

    def news(self, change: Change[Any]) -> News | None:
        """Return what the change means to the watchers, None where it is nothing to them."""
        before, after = self._meant(change.before), self._meant(change.after)
        if before is None and after is None and (change.before or change.after):
            return None
        return self._news(change.key, before, after)

    def all(self) -> list[News]:
        """Return what is there now, as if it were new."""
        cache = self.informer.cache
        found = ((key, self._meant(cache.get(key))) for key in sorted(cache.keys()))
        return [self._news(key, None, stored) for key, stored in found if stored is not None]

    def again(self, key: str) -> list[News]:
        """Return the object, where it is there, as if it were new."""
        stored = self._meant(self.informer.cache.get(key))
        return [] if stored is None else [self._news(key, None, stored)]

    async def deleted(self, wanted: Callable[[str], bool]) -> list[News]:
        """Return the *wanted* objects that were deleted, as far as their store remembers that."""
        if isinstance(self.kind, KubeKind):
            return []  # a cluster remembers no deletion
        keys = await deleted(self.informer.store, wanted)
        return [self._news(key, None, None) for key in keys if key not in self.informer.cache]

    def _news(self, key: str, before: Stored | None, after: Stored | None) -> News:
        return News(key, self.kind, self.informer.store, before, after)

    def _meant(self, stored: Stored | None) -> Stored | None:
        if stored is None or not self.selector.requirements:
            return stored
        try:
            labels = self.kind.metadata(stored.value).labels
        except InvalidObjectError:  # valid for its kind, but nobody can read its labels
            return None
        return stored if self.selector.matches(labels) else None


def _pushed(kind: Kind[Any], selector: Selector) -> tuple[Kind[Any], Selector]:
    """Return the kind and what is left to select, where its store does it."""
    if not isinstance(kind, KubeKind) or not selector.requirements:
        return kind, selector
    part = copy.copy(kind)
    part.selector = Selector((*kind.selector.requirements, *selector.requirements))
    return part, Selector()
