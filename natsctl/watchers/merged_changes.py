"""A change of an object: the call of a watcher, and the merging of changes that wait for one."""

from typing import Any

import msgspec

from natsctl.core.sync import awaitable
from natsctl.model.kinds import Kind
from natsctl.model.store import Store, Stored
from natsctl.watchers.watcher import RecallingWatcher, ResourceAction, ResourceWatcher, Snapshot


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
        """The kind of change."""
        if self.after is None:
            return ResourceAction.DELETE
        return ResourceAction.CREATE if self.before is None else ResourceAction.UPDATE

    @property
    def old(self) -> Snapshot[Any] | None:
        """The object before the change, or None."""
        return self._snapshot(self.before)

    @property
    def new(self) -> Snapshot[Any] | None:
        """The object after the change, or None."""
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
