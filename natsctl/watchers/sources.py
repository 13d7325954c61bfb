"""Sources of changes for watchers: the objects of an informer that a selector matches."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from natsctl.core.informer import Informer, deleted_keys
from natsctl.core.table import Invalid
from natsctl.errors import InvalidObjectError
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, Store, Stored
from natsctl.watchers.merged_changes import ObjectChange

Labels = str | Mapping[str, str]


class Source:
    """The objects of one kind, or those that a label selector matches.

    A cluster applies the selector on the server; for a bucket, the source applies it. If an
    object's labels no longer match, the source reports a delete.
    """

    def __init__(self, kind: Kind[Any], labels: Labels | None) -> None:
        selector = Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
        if selector.requirements:
            kind.require_metadata()
            if isinstance(kind, KubeKind):
                kind, selector = kind.selected(selector), Selector()
        self.kind, self.selector = kind, selector
        self.informer: Informer[Any]  # set by `opened`

    @property
    def part(self) -> tuple[str, ...]:
        """An identifier of the selected objects; equal for equal selections."""
        kind = self.kind
        if isinstance(kind, KubeKind):
            return (kind.name, kind.api_version, kind.namespace or "", str(kind.selector))
        keys = kind.keys if isinstance(kind, KvKind) else ""
        return (kind.name, keys, str(self.selector))

    def shares_kind(self, other: "Source") -> bool:
        """Return whether an object may move between the two, because they share a kind."""
        return self.part[0] == other.part[0]

    def opened(
        self, store: Store, on_invalid: Callable[[Invalid], None], on_listed: Callable[[], None]
    ) -> None:
        """Make the informer for *store*."""
        self.informer = Informer(store, self.kind, on_invalid=on_invalid, on_listed=on_listed)

    def has(self, key: str) -> bool:
        """Return whether the cache has the object and the selector matches it."""
        return self._selected(self.informer.cache.get(key)) is not None

    def change(self, change: Change[Any]) -> ObjectChange | None:
        """Return the change of a selected object, or None if the change is of another object."""
        before, after = self._selected(change.before), self._selected(change.after)
        if before is None and after is None and (change.before or change.after):
            return None
        return self._change(change.key, before, after)

    def creates(self) -> Iterator[ObjectChange]:
        """Yield a create for each selected object; other tasks may run in between."""
        for key in self.informer.cache.keys():  # noqa: SIM118 - a cache is no mapping
            yield from self.create(key)

    def create(self, key: str) -> list[ObjectChange]:
        """Return a create for the object; none if it does not exist or is not selected."""
        stored = self._selected(self.informer.cache.get(key))
        return [] if stored is None else [self._change(key, None, stored)]

    async def deletes(self, gained: Callable[[str], bool]) -> list[ObjectChange]:
        """Return a delete for each *gained* key with a delete marker."""
        if isinstance(self.kind, KubeKind):
            return []  # a cluster has no delete markers
        keys = await deleted_keys(self.informer.store, gained)
        return [self._change(key, None, None) for key in keys if key not in self.informer.cache]

    def _change(self, key: str, before: Stored | None, after: Stored | None) -> ObjectChange:
        return ObjectChange(key, self.kind, self.informer.store, before, after)

    def _selected(self, stored: Stored | None) -> Stored | None:
        if stored is None or not self.selector.requirements:
            return stored
        try:
            labels = self.kind.metadata(stored.value).labels
        except InvalidObjectError:  # the value is valid for its kind, but its labels are not
            return None
        return stored if self.selector.matches(labels) else None
