"""The changes of objects that watchers get: where they come from, and how they merge."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from natsctl.core.informer import Informer, deleted_keys
from natsctl.core.sync import awaitable
from natsctl.errors import InvalidObjectError
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, Store, Stored
from natsctl.watchers.watcher import RecallingWatcher, ResourceAction, ResourceWatcher, Snapshot

Labels = str | Mapping[str, str]


class ObjectChange(msgspec.Struct, frozen=True):
    """A change of an object, with its state before and after.

    Both states are None for an object that was deleted before this process saw it.
    """

    key: str
    kind: Kind[Any]
    store: Store
    before: Stored | None
    after: Stored | None

    @property
    def action(self) -> ResourceAction:
        if self.after is None:
            return ResourceAction.DELETE
        return ResourceAction.CREATE if self.before is None else ResourceAction.UPDATE

    @property
    def old(self) -> Snapshot[Any] | None:
        return self._snapshot(self.before)

    @property
    def new(self) -> Snapshot[Any] | None:
        return self._snapshot(self.after)

    def _snapshot(self, stored: Stored | None) -> Snapshot[Any] | None:
        return None if stored is None else Snapshot(self.kind, stored, self.store)

    def supersedes(self, other: "ObjectChange") -> bool:
        """Return whether this change has another action or desired state than *other*."""
        if self.action is not other.action:
            return True
        this_state, other_state = self.after or self.before, other.after or other.before
        if this_state is None or other_state is None:
            return this_state is not other_state
        return self.kind.differs(other_state.value, this_state.value)


async def notify(watcher: ResourceWatcher, change: ObjectChange) -> None:
    """Call the function of the watcher for the change."""
    match change.old, change.new:
        case None, None:
            if isinstance(watcher, RecallingWatcher):
                await awaitable(watcher.missed, change.key, change.store)
        case None, new if new is not None:
            await awaitable(watcher.add, new)
        case old, None if old is not None:
            await awaitable(watcher.delete, old)
        case old, new if old is not None and new is not None:
            await awaitable(watcher.update, old, new)


def merged(pending: tuple[ObjectChange, ...], change: ObjectChange) -> tuple[ObjectChange, ...]:
    """Return the changes to deliver to a watcher that has processed none of *pending*.

    The result has at most two changes: a delete and the create of a new object. An update starts at
    a state with another desired state, if there is one. So a watcher that failed halfway also gets
    an update that reverts the object to its earlier state.
    """
    if not pending:
        return (change,)
    *earlier_changes, last_change = pending
    match last_change.action, change.action:
        case ResourceAction.DELETE, ResourceAction.DELETE:
            return pending
        case ResourceAction.DELETE, _:
            return (last_change, msgspec.structs.replace(change, before=None))
        case _, ResourceAction.DELETE:
            deleted = msgspec.structs.replace(change, before=change.before or last_change.after)
            return tuple(earlier_changes) or (deleted,)
        case ResourceAction.CREATE, _:
            return (*earlier_changes, msgspec.structs.replace(change, before=None))
        case ResourceAction.UPDATE, _:
            return (_merged_updates(last_change, change),)


def _merged_updates(last: ObjectChange, change: ObjectChange) -> ObjectChange:
    """Return one update for two, from the older state unless both ends are then equal."""
    old, failed, new = last.before, last.after, change.after
    if old is None or failed is None or new is None:
        return change
    reverted = change.kind.differs(old.value, failed.value) and not change.kind.differs(
        old.value, new.value
    )
    return msgspec.structs.replace(change, before=failed if reverted else old)


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
        self.informer: Informer[Any]  # set when the controller opens its stores

    @property
    def part(self) -> tuple[str, ...]:
        """An identifier of the selected objects; equal for equal selections."""
        kind = self.kind
        if isinstance(kind, KubeKind):
            return (kind.name, kind.api_version, kind.namespace or "", str(kind.selector))
        keys = kind.keys if isinstance(kind, KvKind) else ""
        return (kind.name, keys, str(self.selector))

    def has(self, key: str) -> bool:
        """Return whether the table has the object and the selector matches it."""
        return self._selected(self.informer.table.get(key)) is not None

    def change(self, change: Change[Any]) -> ObjectChange | None:
        """Return the change of a selected object, or None if the change is of another object."""
        before, after = self._selected(change.before), self._selected(change.after)
        if before is None and after is None and (change.before or change.after):
            return None
        return self._change(change.key, before, after)

    def creates(self, *keys: str) -> Iterator[ObjectChange]:
        """Yield a create for each selected object with these keys, or for all.

        Other tasks may run in between.
        """
        for key in keys or self.informer.table.keys():
            stored = self._selected(self.informer.table.get(key))
            if stored is not None:
                yield self._change(key, None, stored)

    async def deletes(self, gained: Callable[[str], bool]) -> list[ObjectChange]:
        """Return a delete for each *gained* key with a delete marker."""
        if isinstance(self.kind, KubeKind):
            return []  # a cluster has no delete markers
        keys = await deleted_keys(self.informer.store, gained)
        return [self._change(key, None, None) for key in keys if key not in self.informer.table]

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
