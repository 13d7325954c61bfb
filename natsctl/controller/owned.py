"""Reads, writes and deletes secondaries, and decides which primary owns each of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from natsctl.controller.owners import Owner, OwnerNames
from natsctl.core.compare_and_set import Rewritten, Written, read, rewrite
from natsctl.core.informer import Informer
from natsctl.core.readers import CacheReader
from natsctl.core.sync import current_sync
from natsctl.core.table import is_read
from natsctl.core.writes import Writes
from natsctl.errors import (
    ConflictError,
    ExistsError,
    InvalidObjectError,
    NewerVersionError,
    NotFoundError,
    UsageError,
)
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.objects import Metadata
from natsctl.model.store import Change, Deleted, Stored
from natsctl.telemetry.hiding import VALUE_MAX, hidden

T = TypeVar("T")

OWNER_INDEX = "natsctl/owner"
MESSAGE_EXISTS = "Resource %s already exists and is not managed by this controller"


def metadata_of(kind: Kind[Any], stored: Stored) -> Metadata:
    """Return the object's metadata; empty metadata if it does not decode."""
    try:
        metadata: Metadata = kind.metadata(stored.value)
    except InvalidObjectError:
        return Metadata()
    return metadata


class Owned(CacheReader[T]):
    """The secondaries of one kind; subclasses write them.

    The owner is the key that is being synced. Outside a sync handler, a write raises `UsageError`.
    """

    def __init__(
        self,
        informer: Informer[T],
        writes: Writes,
        names: OwnerNames,
        owner_kind: str,
        *,
        exists: Callable[[str], bool] = lambda _: True,
    ) -> None:
        super().__init__(informer, writes)
        self._exists = exists  # returns whether a primary is in the table
        self.kind.require_metadata()
        self._names = names
        self.owner_kind = owner_kind

    def see(self, change: Change[Any]) -> None:
        """Take a change of an object of the kind, which may be an own write."""
        self._writes.see(self.informer, change)

    async def delete(self, key: str) -> None:
        """Delete the object if this owner owns it; does nothing if the object does not exist.

        Raises `ExistsError` if the object belongs to another owner.
        """
        owner = self._owner()
        if not self.available:
            return
        current = self._writes.newest(self.informer, key)
        if current is None or not is_read(current):
            current = await read(self._store, key)
        if current is not None:
            kept = await self.delete_owned(owner.key, current)
            if kept is not None:
                self._refuse_foreign(kept, owner)

    async def delete_owned(self, key: str, stored: Stored) -> Stored | None:
        """Delete the object if the primary *key* owns it; else return its newest state."""
        owner = Owner(self.owner_kind, key)
        current: Stored | None = stored
        while current is not None and await self.owns(owner, current):
            try:
                await self.delete_stored(current)
            except ConflictError:
                current = await read(self._store, stored.key)
            except NotFoundError:
                return None
            else:
                return None
        return current

    async def delete_stored(self, stored: Stored) -> None:
        """Delete exactly this revision of the object; raises `ConflictError` if it changed."""
        key, base = stored.key, stored.revision
        with self._writes.writing(self.informer, key):
            uid = self.metadata(stored).uid
            revision = await self._store.delete(key, revision=base, uid=uid)
            self._writes.landed(self.informer, key, Written(revision, None), base=base)
            sync = current_sync.get()
            if sync is not None:
                sync.deleted += 1

    def owned(self, key: str | None = None) -> dict[str, T]:
        """Return the objects that the primary *key* owns; by default, the key of the sync.

        Raises `UnreadError` if another process syncs the *key*, and the values are not read yet.
        """
        owned = self.owned_stored(self._owner().key if key is None else key)
        return {stored.key: self._decode(stored) for stored in owned}

    def owned_stored(self, key: str) -> list[Stored]:
        """Return the objects that the primary *key* owns, undecoded, in the order of keys.

        If another process syncs the *key*, the values may not be here, see `Unread`.
        """
        cached = self._writes.query(self.informer, OWNER_INDEX, key)
        names = sorted(self._writes.written_keys(self.informer).union(cached))
        newest = self._writes.read_all(self.informer, names)
        owner = Owner(self.owner_kind, key)
        primary_of = self.informer.table.primary_of
        return [
            stored
            for stored in newest
            if (
                self.owner_of(stored) == owner if is_read(stored) else primary_of(stored.key) == key
            )
        ]

    def is_terminating(self, stored: Stored) -> bool:  # noqa: ARG002 - NATS deletes at once
        """Return whether the object is marked deleted and held by finalizers."""
        return False

    def metadata(self, stored: Stored) -> Metadata:
        """Return the object's metadata; empty metadata if it does not decode."""
        return metadata_of(self.kind, stored)

    def foreign(self, stored: Stored) -> str:  # noqa: ARG002 - NATS holds one installation
        """Return the other installation that the object belongs to; empty if there is none."""
        return ""

    def owner_of(self, stored: Stored) -> Owner | None:
        """Return the owner that the object names; None if it names none."""
        return self._names.owner(self.metadata(stored))

    async def owns(self, owner: Owner, stored: Stored) -> bool:
        """Return whether *owner* owns the object: it names the owner, or did before an edit.

        If the object names no owner, or one that does not exist, the store's history decides, and
        then its annotations, because labels get lost more easily.
        """
        named = self.owner_of(stored)
        if named == owner:
            return True
        if named is not None and (named.kind != self.owner_kind or self._exists(named.key)):
            return False
        earlier = await self.earlier_owner(stored)
        return (earlier or self._names.claimed(self.metadata(stored))) == owner

    async def lost_owner(self, stored: Stored) -> Owner | None:
        """Return the primary that an object which names no owner was made for; None if none was."""
        if self.owner_of(stored) is not None or self.foreign(stored):
            return None
        metadata = self.metadata(stored)
        owner = await self.earlier_owner(stored)
        owner = owner or self._names.owner(metadata) or self._names.claimed(metadata)
        return owner if owner is not None and owner.kind == self.owner_kind else None

    async def earlier_owner(self, stored: Stored) -> Owner | None:
        """Return the owner that the object named last, other than the one that it names now.

        Returns None if the store's history shows no such owner.
        """
        named = self.owner_of(stored)
        for state in reversed(await self._store.history(stored.key)):
            if isinstance(state, Deleted):
                return None
            owner = self.owner_of(state)
            if owner not in {None, named}:
                return owner
        return None

    def _owner(self) -> Owner:
        sync = current_sync.get()
        if sync is None:
            raise UsageError(
                f"{self.kind.name} is written only within a sync handler, for the key being synced"
            )
        return Owner(self.owner_kind, sync.key)

    def _refuse_foreign(self, current: Stored, owner: Owner) -> None:
        named_owner = self.owner_of(current)
        message = MESSAGE_EXISTS % f'"{current.key}"'
        owned_by = "nobody" if named_owner is None else str(named_owner)
        foreign = self.foreign(current)
        if foreign:
            foreign = hidden(foreign, limit=VALUE_MAX)  # an annotation may hold any text
            raise ExistsError(
                f"{message}: it is owned by {owned_by} of installation {foreign}; if that "
                f"installation is lost, `natsctl repair installation adopt {foreign}` takes its "
                "objects over"
            )
        if named_owner != owner:
            raise ExistsError(f"{message}: it is owned by {owned_by}; adopt=True takes it over")

    def _note_write(self, result: Rewritten) -> int:
        stored, base, sync = result.stored, result.base, current_sync.get()
        if base is not None and sync is not None:
            written = Written(stored.revision, stored)
            self._writes.landed(self.informer, stored.key, written, base=base)
            if base == 0:
                sync.created += 1
            else:
                sync.updated += 1
        return stored.revision


class Secondary(Owned[T]):
    """The secondaries of a kind in NATS; each write labels the object with its owner."""

    async def apply(self, key: str, obj: T, *, adopt: bool = False) -> int:
        """Create the object, or change it to *obj*, and return its revision.

        Fields that *obj*'s type doesn't know stay. Nothing is sent if nothing would change. An
        invalid object is replaced. Raises `ExistsError` if the object exists and isn't this
        owner's, unless *adopt*, and `NewerVersionError` if a newer version of its type stored it,
        and this one can't read it.
        """
        owner = self._owner()
        return await self._rewrite(key, owner, partial(self._owned_value, obj, owner), adopt=adopt)

    async def report(self, key: str, status: Document) -> int:
        """Merge *status* into the status that the object has for the primary *key*.

        Creates the object, or replaces an invalid one, and returns the revision.
        """
        owner = Owner(self.owner_kind, key)

        def value(current: Stored | None) -> bytes:
            owned = self._owned_value(self.kind.type(), owner, current)
            document = documents.parse(owned)
            changed = documents.with_status(document, status)
            return owned if changed == document else documents.render(changed)

        return await self._rewrite(key, owner, value)

    async def _rewrite(
        self,
        key: str,
        owner: Owner,
        value: Callable[[Stored | None], bytes],
        *,
        adopt: bool = False,
    ) -> int:
        with self._writes.writing(self.informer, key):
            seen = self._writes.newest(self.informer, key)
            if seen is not None and not is_read(seen):
                seen = await read(self._store, key)
            ours = seen is not None and await self.owns(owner, seen)

            def change(current: Stored | None) -> bytes:
                if current is not None and not (adopt or (ours and current == seen)):
                    self._refuse_foreign(current, owner)
                return value(current)

            return self._note_write(await rewrite(self._store, key, change, seen=seen))

    async def create(self, key: str, obj: T) -> int:
        """Create the object and return its revision.

        Raises `ConflictError` if it exists and this owner owns it, `ExistsError` if it exists
        otherwise.
        """
        owner = self._owner()
        with self._writes.writing(self.informer, key):
            try:
                stored = await self._store.create(key, self._owned_value(obj, owner, None))
            except ConflictError:
                current = await read(self._store, key)
                if current is not None:
                    self._refuse_foreign(current, owner)
                raise
            return self._note_write(Rewritten(stored, 0))

    def _owned_value(self, obj: T, owner: Owner, current: Stored | None) -> bytes:
        current = self._valid(current)
        before = None if current is None else self.kind.document(current.value)
        merged = self.kind.overlay(None if current is None else current.value, obj)
        owned = documents.with_labels(
            merged, self._names.labels(owner), self._names.annotations(owner)
        )
        stamped = documents.stamp(before, owned)
        if current is not None and stamped == before:
            return current.value
        return self.kind.render(stamped, None if current is None else current.value)

    def _valid(self, current: Stored | None) -> Stored | None:
        """Return the object, None if it is invalid; raises `NewerVersionError`."""
        if current is not None:
            try:
                self.kind.decode(current.value)
            except NewerVersionError:
                raise
            except InvalidObjectError:
                return None
        return current
