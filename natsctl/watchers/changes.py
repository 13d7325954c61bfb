"""The changes of objects that watchers get: where they come from, and how they merge."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from natsctl.core.dependencies import Dependency, those
from natsctl.core.informer import Informer, deleted_keys
from natsctl.core.sync import awaitable
from natsctl.model.kinds import Kind
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

    def snapshot(self, stored: Stored | None) -> Snapshot[Any] | None:
        return None if stored is None else Snapshot(self.kind, stored, self.store)

    @property
    def newest(self) -> Snapshot[Any] | None:
        return self.snapshot(self.after or self.before)

    def supersedes(self, other: "ObjectChange") -> bool:
        """Return whether this change has another action or desired state than *other*."""
        this, that = self.after or self.before, other.after or other.before
        if self.action is not other.action or this is None or that is None:
            return self.action is not other.action or this is not that
        return self.kind.differs(that.value, this.value)

    def since(self, last: "ObjectChange") -> "ObjectChange":
        """Return one update for two, from the older state unless both ends are then equal."""
        old, failed, new, differs = last.before, last.after, self.after, self.kind.differs
        if old is None or failed is None or new is None:
            return self
        reverted = differs(old.value, failed.value) and not differs(old.value, new.value)
        return msgspec.structs.replace(self, before=failed if reverted else old)

    async def notify(self, watcher: ResourceWatcher) -> None:
        old, new = self.snapshot(self.before), self.snapshot(self.after)
        if old is not None and new is not None:
            await awaitable(watcher.update, old, new)
        elif new is not None:
            await awaitable(watcher.add, new)
        elif old is not None:
            await awaitable(watcher.delete, old)
        elif isinstance(watcher, RecallingWatcher):
            await awaitable(watcher.missed, self.key, self.store)


def merged(pending: tuple[ObjectChange, ...], change: ObjectChange) -> tuple[ObjectChange, ...]:
    """Return the changes to deliver to a watcher that has processed none of *pending*.

    The result has at most two changes: a delete and the create of a new object. An update starts at
    a state with another desired state, if there is one. So a watcher that failed halfway also gets
    an update that reverts the object to its earlier state.
    """
    if not pending:
        return (change,)
    *earlier, last = pending
    match last.action, change.action:
        case ResourceAction.DELETE, ResourceAction.DELETE:
            return pending
        case ResourceAction.DELETE, _:
            return (last, msgspec.structs.replace(change, before=None))
        case _, ResourceAction.DELETE:
            deleted = msgspec.structs.replace(change, before=change.before or last.after)
            return tuple(earlier) or (deleted,)
        case ResourceAction.CREATE, _:
            return (*earlier, msgspec.structs.replace(change, before=None))
        case _:
            return (change.since(last),)


class Source:
    """The objects of one kind, or those that a label selector matches.

    A cluster applies the selector on the server; for a bucket, the source applies it. If an
    object's labels no longer match, the source reports a delete.
    """

    informer: Informer[Any]  # set when the controller opens its stores

    def __init__(self, kind: Kind[Any], labels: Labels | None) -> None:
        selector = Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
        if selector.requirements:
            kind.require_metadata()
        self.part: Dependency[Any] = those(kind, selector)
        self.kind = self.part.kind

    def has(self, key: str) -> bool:
        return self.part.selects(self.informer.table.get(key))

    def change(self, change: Change[Any]) -> ObjectChange | None:
        """Return the change of a selected object, or None if the change is of another object."""
        before = change.before if self.part.selects(change.before) else None
        after = change.after if self.part.selects(change.after) else None
        if before is None and after is None and (change.before or change.after):
            return None
        return self._change(change.key, before, after)

    def creates(self, *keys: str) -> Iterator[ObjectChange]:
        """Yield a create for each selected object with these keys, or for all.

        Other tasks may run in between.
        """
        for key in keys or self.informer.table.keys():
            stored = self.informer.table.get(key)
            if self.part.selects(stored):
                yield self._change(key, None, stored)

    async def deletes(self, gained: Callable[[str], bool]) -> list[ObjectChange]:
        """Return a delete for each *gained* key with a delete marker."""
        if isinstance(self.kind, KubeKind):
            return []  # a cluster has no delete markers
        keys = await deleted_keys(self.informer.store, gained)
        return [self._change(key, None, None) for key in keys if key not in self.informer.table]

    def _change(self, key: str, before: Stored | None, after: Stored | None) -> ObjectChange:
        return ObjectChange(key, self.kind, self.informer.store, before, after)
