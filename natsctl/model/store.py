"""The seam between natsctl and the systems that keep objects.

A backend implements `Store`; nothing above this module knows which backend it talks to. Values
cross the seam as bytes, so that nothing is decoded that nobody reads.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import Recorder
from natsctl.model.write_guard import WriteGuard

T = TypeVar("T")


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An object as its store keeps it. `revision` grows with every write to the store."""

    key: str
    revision: int
    value: bytes


class Listing(msgspec.Struct, frozen=True, gc=False):
    """A listing begins; every live object follows as `Applied`, then `Listed`.

    `incarnation` names the store itself: another value than before means that the store was
    replaced, and that revisions of the old one mean nothing now.
    """

    incarnation: str = ""


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The object exists and looks like this."""

    stored: Stored


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """The object is gone; the store says so at this revision.

    `purged` says that its history was forgotten with it.
    """

    key: str
    revision: int
    purged: bool = False


class Listed(msgspec.Struct, frozen=True, gc=False):
    """The listing is complete up to this revision; what follows are live changes."""

    revision: int = 0


class IllegalKey(msgspec.Struct, frozen=True, gc=False):
    """A message of the store has a name that no object can have.

    `key` is that name in printable characters, with all others escaped. `exists` is false if the
    message marks a deletion.
    """

    key: str
    revision: int
    exists: bool = True


WatchEvent: TypeAlias = Listing | Applied | Deleted | IllegalKey | Listed


class ChangeType(Enum):
    """What happened to an object between two looks at it."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class Change(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One object before and after; `initial` marks what a listing found.

    Both are None for an object that was deleted before anyone here saw it. `purged` says of one
    that is gone that its history was forgotten too, where the store told so.
    """

    kind: Kind[T]
    key: str
    before: Stored | None
    after: Stored | None
    initial: bool = False
    purged: bool = False

    @property
    def action(self) -> ChangeType:
        """Added, updated or deleted."""
        if self.after is None:
            return ChangeType.DELETED
        return ChangeType.ADDED if self.before is None else ChangeType.UPDATED

    @property
    def old(self) -> T | None:
        """The object before, decoded at every read."""
        return None if self.before is None else self.kind.decode(self.before.value)

    @property
    def new(self) -> T | None:
        """The object now, decoded at every read."""
        return None if self.after is None else self.kind.decode(self.after.value)


class Store(Protocol):
    """Objects of one kind, kept somewhere that survives us.

    Every call has a deadline of its own and raises a `StoreError`: `StoreTimeoutError` when the
    outcome is unknown, `PermissionDeniedError`, `StoreMissingError`, `InvalidKeyError`,
    `TooLargeError` as they say.
    """

    @property
    def kind(self) -> Kind[Any]:
        """What is kept here."""
        ...

    async def get(self, key: str) -> Stored:
        """Read the object from the store's leader, never from a replica that may lag.

        Raises `NotFoundError`, whose `deleted_at` tells a deletion from a key without a trace.
        """
        ...

    async def create(self, key: str, value: bytes) -> Stored:
        """Add the object; raises `ConflictError` where it exists."""
        ...

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """Replace the object; raises `ConflictError` unless *revision* is the newest."""
        ...

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        """Delete the object; whoever has seen the revision returned, and no older object, saw it.

        With *revision*, raises `ConflictError` unless that is the newest of an existing object;
        with *uid* as well, where the store gives objects one and this object has another. *purge*
        forgets the key's history too, and may be asked of a key already deleted.
        """
        ...

    async def history(self, key: str) -> list[Stored | Deleted]:
        """Return what the store still knows of the key, oldest first."""
        ...

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """List, then follow, in the store's order, until it breaks with `WatchBrokenError`.

        Leaving the context leaves nothing behind at the server.
        """
        ...


@runtime_checkable
class Sequenced(Protocol):
    """A store that can say how far it is without listing anything."""

    async def newest_revision(self) -> int:
        """Return the revision of the newest write to any of the kind's objects, 0 for none.

        Has a deadline of its own, and raises a `StoreError`.
        """
        ...


class ManifestStore(Store, Protocol):
    """A store that lays manifests over its objects itself, and knows who said which field."""

    @property
    def kind(self) -> KubeKind[Any]:
        """What is kept here."""
        ...

    async def locate(self, manifest: Document) -> str:
        """Return the key of the object that *manifest* describes.

        Raises `InvalidObjectError` where it lacks, or has, a namespace against its kind.
        """
        ...

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        """Make the object say what *manifest* says, and no more what *manager* said before.

        *uid* names the object that it must be; where it is empty, none must exist, and one is
        created. Raises `ConflictError` where that is not so, and its `FieldConflictError`, which
        names the others, where other managers say other things of these fields, unless *force*.
        Nothing changes, and the revision stays, where the object says all that already.

        A manager takes over what a manager of its family, which is named alike up to the slash,
        applied to an existing object before: `natsctl/new` from `natsctl/old`.
        """
        ...

    async def managed(self, key: str) -> ManagedFields:
        """Return which manager set which fields of the object; raises `NotFoundError`."""
        ...

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        """Merge *patch* into the object's status (RFC 7396), which only this call can change.

        Raises `NotFoundError`, and `ConflictError` unless *revision*, if given, is the newest.
        """
        ...


class Stores(Protocol):
    """A system that keeps objects of many kinds."""

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the kind's store, made and checked as the kind declares."""
        ...

    def recorder(self, controller: str) -> AbstractAsyncContextManager[Recorder]:
        """Return where events of a controller go; leaving the context sends what is left."""
        ...

    def guarded(self, guard: WriteGuard) -> Self:
        """Return the same system, which asks *guard* before it sends a write or records an event.

        The guard takes the place of an earlier one.
        """
        ...


class ManifestStores(Stores, Protocol):
    """A cluster."""

    async def open(self, kind: Kind[Any]) -> ManifestStore:
        """Return the kind's store; whether the cluster has the kind shows later."""
        ...


@runtime_checkable
class JetStream(Protocol):
    """A system whose JetStream API can be asked for more than buckets."""

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Ask the JetStream API, `STREAM.INFO.orders` for example, and return its JSON answer.

        Raises `NotFoundError` and other `StoreError`s where it refuses, `StoreTimeoutError` where
        nobody answers in time.
        """
        ...
