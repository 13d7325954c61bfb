"""Reads, writes and deletes secondaries, and decides which primary owns each of them."""

from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any, TypeVar

import msgspec

from natsctl.controller.owners import Owner, OwnerNames
from natsctl.core.compare_and_set import Rewritten, Written, read, rewrite
from natsctl.core.informer import Informer
from natsctl.core.installation import Installation
from natsctl.core.readers import CacheReader, Primary
from natsctl.core.sync import current_sync
from natsctl.core.table import Table, is_read
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
from natsctl.model.kinds import KeptStatus, Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import Metadata, Object
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


class Owners:
    """Which of the *primaries* of this installation an object names as its owner."""

    def __init__(
        self, names: OwnerNames, installation: Installation, primaries: Table[Any]
    ) -> None:
        self.names, self.installation, self.primaries = names, installation, primaries
        self.kind = primaries.kind.name  # as owner labels name it

    def foreign(self, kind: Kind[Any], metadata: Metadata) -> str:
        """Return the other installation that the object belongs to; empty if there is none."""
        own = ("", self.installation.id, *self.installation.adopted)
        named = metadata.annotations.get(self.names.installation, "")
        return named if isinstance(kind, KubeKind) and named not in own else ""

    def named(self, kind: Kind[Any], metadata: Metadata) -> Owner | None:
        """Return the owner that the object names; in a cluster, only with an installation."""
        if isinstance(kind, KubeKind) and not metadata.annotations.get(self.names.installation):
            return None
        return self.names.owner(metadata)

    def key(self, kind: Kind[Any], metadata: Metadata) -> str | None:
        """Return the key of the primary here that the object names; None if it names none."""
        owner = self.named(kind, metadata)
        if owner is None or owner.kind != self.kind or self.foreign(kind, metadata):
            return None
        return owner.key

    def of(self, kind: Kind[Any], stored: Stored) -> str | None:
        """Return what `key` does, but None if the primary can't be in this slot.

        Slots may have parts of a kind. An object whose value is not kept belongs to a primary of
        another process.
        """
        owner = self.key(kind, metadata_of(kind, stored)) if is_read(stored) else None
        return owner if owner is not None and self.primaries.kind.holds(owner) else None


class Owned(CacheReader[T]):
    """The secondaries of one kind; subclasses write them.

    The owner is the key that is being synced. Outside a sync handler, a write raises `UsageError`.
    """

    def __init__(self, informer: Informer[T], writes: Writes, owners: Owners) -> None:
        super().__init__(informer, writes)
        self.kind.require_metadata()
        self.owners = owners

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
        current = await self._newest(key) or await read(self._store, key)
        if current is not None:
            kept = await self.delete_owned(owner.key, current)
            if kept is not None:
                self._refuse_foreign(kept, owner)

    async def delete_owned(self, key: str, stored: Stored) -> Stored | None:
        """Delete the object if the primary *key* owns it; else return its newest state."""
        owner = Owner(self.owners.kind, key)
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
            if sync := current_sync.get():
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
        owner, primary_of = Owner(self.owners.kind, key), self.informer.table.primary_of

        def belongs(stored: Stored) -> bool:
            if is_read(stored):
                return self.owner_of(stored) == owner
            return primary_of(stored.key) == key

        return list(filter(belongs, self._writes.read_all(self.informer, names)))

    def is_terminating(self, stored: Stored) -> bool:  # noqa: ARG002 - NATS deletes at once
        """Return whether the object is marked deleted and held by finalizers."""
        return False

    def metadata(self, stored: Stored) -> Metadata:
        return metadata_of(self.kind, stored)

    def foreign(self, stored: Stored) -> str:
        return self.owners.foreign(self.kind, self.metadata(stored))

    def owner_of(self, stored: Stored) -> Owner | None:
        return self.owners.named(self.kind, self.metadata(stored))

    async def owns(self, owner: Owner, stored: Stored) -> bool:
        """Return whether *owner* owns the object: it names the owner, or did before an edit.

        If the object names no owner, or one that does not exist, the store's history decides, and
        then its annotations, because labels get lost more easily.
        """
        owners, named = self.owners, self.owner_of(stored)
        if self.foreign(stored):
            return False
        if named == owner:
            return True
        if named is not None and (named.kind != owners.kind or named.key in owners.primaries):
            return False
        earlier = await self.earlier_owner(stored)
        return (earlier or owners.names.claimed(self.metadata(stored))) == owner

    async def lost_owner(self, stored: Stored) -> Owner | None:
        """Return the primary that an object which names no owner was made for; None if none was."""
        if self.owner_of(stored) is not None or self.foreign(stored):
            return None
        metadata, names = self.metadata(stored), self.owners.names
        owner = await self.earlier_owner(stored)
        owner = owner or names.owner(metadata) or names.claimed(metadata)
        return owner if owner is not None and owner.kind == self.owners.kind else None

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

    async def _newest(self, key: str) -> Stored | None:
        """Return the object as cached, or as stored if only its key is cached."""
        seen = self._writes.newest(self.informer, key)
        return seen if seen is None or is_read(seen) else await read(self._store, key)

    def _owner(self) -> Owner:
        sync = current_sync.get()
        if sync is None:
            raise UsageError(
                f"{self.kind.name} is written only within a sync handler, for the key being synced"
            )
        return Owner(self.owners.kind, sync.key)

    def _refuse_foreign(self, current: Stored, owner: Owner) -> None:
        named = self.owner_of(current)
        message = MESSAGE_EXISTS % f'"{current.key}"'
        who = "nobody" if named is None else named
        foreign = hidden(self.foreign(current), limit=VALUE_MAX)  # an annotation may hold any text
        if foreign:
            raise ExistsError(
                f"{message}: it is owned by {who} of installation {foreign}; if that "
                f"installation is lost, `natsctl repair installation adopt {foreign}` takes its "
                "objects over"
            )
        if named != owner:
            raise ExistsError(f"{message}: it is owned by {who}; adopt=True takes it over")

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
        owner = Owner(self.owners.kind, key)

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
            seen = await self._newest(key)
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
        value = None
        if current is not None:
            try:
                self.kind.decode(current.value)
                value = current.value
            except NewerVersionError:
                raise
            except InvalidObjectError:
                pass  # it's replaced
        before, names = None if value is None else self.kind.document(value), self.owners.names
        merged = self.kind.overlay(value, obj)
        owned = documents.with_labels(merged, names.labels(owner), names.annotations(owner))
        stamped = documents.stamp(before, owned)
        if value is not None and stamped == before:
            return value
        return self.kind.render(stamped, value)


class MirroredPrimary(Primary[T]):
    """The objects of a read-only mirror, each with the status that this controller gave it.

    What you want flows down, and the status flows up: each is an object of the same key in a
    bucket of its own. It's a secondary of the primary, so it's collected after the primary.
    """

    statuses: Secondary[KeptStatus]  # set as soon as its slot is open, which needs this one

    def get(self, key: str) -> T | None:
        obj = super().get(key)
        return None if obj is None else self._with_status(obj, self.statuses.get(key))

    async def read(self, key: str) -> T | None:
        obj = await super().read(key)
        return None if obj is None else self._with_status(obj, await self.statuses.read(key))

    async def update_status(self, key: str, status: msgspec.Struct | Document) -> int:
        stored = self._writes.read(self.informer, key)
        if stored is None:
            raise NotFoundError(f"{key} does not exist")
        observed = self._observed(key, self.kind.document(stored.value))
        return await self.statuses.report(key, {**observed, **documents.plain(status)})

    def _decoded(self, keys: Collection[str]) -> dict[str, T]:
        return {
            key: self._with_status(obj, self.statuses.get(key))
            for key, obj in super()._decoded(keys).items()
        }

    def _with_status(self, obj: T, kept: KeptStatus | None) -> T:
        if kept is None or not isinstance(obj, Object):
            return obj
        try:
            status = msgspec.convert(kept.status, _status_type(type(obj)))
        except msgspec.ValidationError:
            return obj  # somebody else has written it; the next `update_status` mends it
        return msgspec.structs.replace(obj, status=status)


@cache  # each read of an object asks for it
def _status_type(object_type: type[Object]) -> Any:
    return {field.name: field.type for field in msgspec.structs.fields(object_type)}["status"]
