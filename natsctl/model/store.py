"""The seam between natsctl and the systems that store objects.

A backend implements `Store`, and no module above this one depends on a backend. Values cross the
seam as bytes: what nobody reads is never decoded.
"""

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from enum import Enum
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.errors import NotStoredError, WatchBrokenError
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind, Reference

T = TypeVar("T")


class WriteGuard:
    """Permits every write; subclasses forbid some.

    `Stores.guarded` returns stores that check the guard before they send a write. Reads and watches
    are always permitted.
    """

    dry_run = False  # whether the server only checks each write, if it can

    def check(self, kind: Kind[Any] | None) -> None:
        """Raise a `StoreError` if a write of an object of this kind may not be sent now.

        *kind* is None for a request to the JetStream API that changes something.
        """

    def send(self, kind: Kind[Any] | None, write: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Call *write*, which may wait before it sends something, and return its result.

        Raises what `check` raises. A subclass that forbids writes after a while cancels *write*
        instead of letting it go on after that.
        """
        self.check(kind)
        return write()

    def may_record(self, key: str) -> bool:  # noqa: ARG002 - every key
        """Return whether events about this key of the controller may be recorded now."""
        return True

    def may_create(self, kind: KvKind[Any]) -> bool:  # noqa: ARG002 - every kind
        """Return whether the bucket of this kind may be created if it doesn't exist."""
        return True


class DryRunGuard(WriteGuard):
    """Stores nothing: a cluster checks each write, and a write to NATS raises `NotStoredError`."""

    dry_run = True

    def check(self, kind: Kind[Any] | None) -> None:
        name = "the JetStream API" if kind is None else kind.name
        raise NotStoredError(f"a plan writes nothing to {name}")

    def send(self, kind: Kind[Any] | None, write: Callable[[], Awaitable[T]]) -> Awaitable[T]:  # noqa: ARG002 - every kind
        return write()  # the server checks it, and stores nothing

    def may_record(self, key: str) -> bool:  # noqa: ARG002 - no key
        return False

    def may_create(self, kind: KvKind[Any]) -> bool:  # noqa: ARG002 - no kind
        return False


UNGUARDED = WriteGuard()
DRY_RUN = DryRunGuard()


class Guarded:
    """A system or a recorder that asks its `guard` before each write."""

    guard: WriteGuard = UNGUARDED

    def guarded(self, guard: WriteGuard) -> Self:
        """Return this system with *guard* instead of its present guard; see `Stores.guarded`."""
        guarded = copy.copy(self)
        guarded.guard = guard
        return guarded


class EventType(Enum):
    """The importance of an event, as in Kubernetes."""

    NORMAL = "Normal"
    WARNING = "Warning"


class SyncNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A sync that an event is about, and how many secondaries it created, updated and deleted."""

    operation: str  # the reason for the sync
    started: datetime
    duration_s: float
    revision: int | None = None  # of the object; None if it didn't exist
    created: int = 0
    updated: int = 0
    deleted: int = 0
    failures: int = 0  # in a row, with this one; 0 if it succeeded
    handler: str = ""  # its name, if several handlers get the key


class Recorder(Protocol):
    """Records events and sends them in the background; never blocks and never raises."""

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the name in Kubernetes
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
        *,
        sync: SyncNote | None = None,
    ) -> None:
        """Record an event about the primary *key* and about its objects in a cluster.

        *reason* is a short CamelCase word for programs, *message* is for people, and *regarding*
        refers to the key's secondaries in a cluster. *sync* is the sync that the event is about.
        """
        ...


@runtime_checkable
class RemembersSyncs(Protocol):
    """A recorder whose events can be read, also those of earlier processes."""

    async def past_failures(self, key: str, handler: str = "") -> int:
        """Return the failures in a row with the last recorded sync of the key by a handler.

        Raises `StoreError` if the events can't be read.
        """
        ...


@runtime_checkable
class CountsEvents(Protocol):
    """A recorder that counts its events."""

    def counted(self) -> Mapping[tuple[str, str], int]:
        """Return the number of events by system and outcome.

        The systems are `nats` and `kubernetes`, the outcomes `sent`, `merged` and `dropped`.
        """
        ...


FIRST_PLANNED = 1 << 52  # above every stored revision, and exact as a JavaScript number


def planned_revision(revision: int) -> bool:
    """Return whether a plan, not a store, has assigned the revision."""
    return revision > FIRST_PLANNED


class Stored(msgspec.Struct, frozen=True, gc=False):
    """An object in a store. `revision` grows with every write to the store."""

    key: str
    revision: int
    value: bytes


class Listing(msgspec.Struct, frozen=True, gc=False):
    """The start of a list: an `Applied` for every existing object follows, then `Listed`.

    `incarnation` identifies the store. If it differs from the one before, the store was replaced,
    and revisions of the old store are no longer valid.
    """

    incarnation: str = ""


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The object exists in this state."""

    stored: Stored

    @property
    def states(self) -> list[Stored]:
        return [self.stored]


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Several objects exist in these states, which follow each other."""

    states: list[Stored]


class Deleted(msgspec.Struct, frozen=True, gc=False):
    """The object was deleted at this revision; `purged` means that its history was deleted too."""

    key: str
    revision: int
    purged: bool = False


class Listed(msgspec.Struct, frozen=True, gc=False):
    """The end of a list, which is complete up to this revision. Live changes follow.

    Without a `Listing` before it, the watch has continued where the reader's last one broke, and
    has yielded every change since.
    """

    revision: int = 0


class IllegalKey(msgspec.Struct, frozen=True, gc=False):
    """A message of the store whose name isn't a legal key.

    `key` is the name with unprintable characters escaped. `exists` is False if the message is a
    delete marker.
    """

    key: str
    revision: int
    exists: bool = True


WatchEvent: TypeAlias = Listing | Applied | Batch | Deleted | IllegalKey | Listed


class ChangeType(Enum):
    """The type of a `Change`."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class Change(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object before and after a change.

    A state is None if the object doesn't exist. Both are None if the object was deleted before it
    was first seen.

    Attributes:
        initial: whether a list, not a live change, produced the change.
        purged: whether the history was deleted too, as far as the store reports it.
    """

    kind: Kind[T]
    key: str
    before: Stored | None
    after: Stored | None
    initial: bool = False
    purged: bool = False

    @property
    def action(self) -> ChangeType:
        if self.after is None:
            return ChangeType.DELETED
        return ChangeType.ADDED if self.before is None else ChangeType.UPDATED

    @property
    def old(self) -> T | None:
        """The object before the change; each access decodes it."""
        return None if self.before is None else self.kind.decode(self.before.value)

    @property
    def new(self) -> T | None:
        return None if self.after is None else self.kind.decode(self.after.value)


class Store(Protocol):
    """The objects of one kind in persistent storage.

    Every call has a deadline and raises `StoreError`s: `StoreTimeoutError` if the outcome is
    unknown, `PermissionDeniedError`, `StoreMissingError`, `InvalidKeyError`, `TooLargeError`.
    """

    @property
    def kind(self) -> Kind[Any]: ...

    async def get(self, key: str) -> Stored:
        """Read the object from the store's leader, never from a replica that may lag.

        Raises `NotFoundError`. Its `deleted_at` is set if the store has a delete marker of the key.
        """
        ...

    async def create(self, key: str, value: bytes) -> Stored:
        """Create the object; raises `ConflictError` if it exists."""
        ...

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """Replace the object; raises `ConflictError` unless *revision* is the newest one."""
        ...

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        """Delete the object.

        Returns a revision: a reader that has seen this revision, and sees no older state of the
        object, has seen the deletion.

        With *revision*, raises `ConflictError` unless it's the newest revision of an existing
        object. With *uid*, raises `ConflictError` if the store assigns uids and the object has
        another one. *purge* also deletes the key's history, even if the object was deleted before.
        """
        ...

    async def history(self, key: str) -> list[Stored | Deleted]:
        """Return the states and deletions of the key that the store still has, oldest first."""
        ...

    def watch(
        self, shown: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """Yield the existing objects and then every change, in the store's order.

        The next watch of the same view may yield only the changes since the last one, and `Listed`,
        if the store proves that there are no others.

        *shown* is a live view of the keys of the objects that exist by the events that the reader
        has taken, for a watch that compares them with the store. Such a watch keeps the keys itself
        if the reader has no view. Only a reader with a view gets states as a `Batch`.

        Iterating raises `WatchBrokenError` if the watch breaks. Leaving the context removes
        everything that the watch created at the server.
        """
        ...


OpenStore: TypeAlias = Callable[[Kind[Any]], Awaitable[Store]]
"""Returns the store of a kind, or of a part of it."""


LISTINGS = 5  # watches that may break, one after the other, while objects are listed


async def listed(
    watch: Callable[[], AbstractAsyncContextManager[AsyncIterator[WatchEvent]]],
    illegal: dict[str, None] | None = None,
) -> dict[str, Stored]:
    """Return the objects that a new *watch* lists, by key.

    *illegal* gets the names of the values whose names aren't keys. Raises `WatchBrokenError` if
    `LISTINGS` watches break.
    """
    others = {} if illegal is None else illegal
    for attempt in range(1, LISTINGS + 1):
        others.clear()
        try:
            async with watch() as events:
                return await _first_listing(events, others)
        except WatchBrokenError:
            if attempt == LISTINGS:
                raise
    raise AssertionError


async def _first_listing(
    events: AsyncIterator[WatchEvent], illegal: dict[str, None]
) -> dict[str, Stored]:
    objects: dict[str, Stored] = {}
    async for event in events:
        match event:
            case Listing():
                objects.clear()
                illegal.clear()
            case Applied(stored):
                objects[stored.key] = stored
            case Batch(states):
                objects.update((stored.key, stored) for stored in states)
            case Deleted(key):
                objects.pop(key, None)
            case IllegalKey(key, exists=True):
                illegal[key] = None
            case Listed():
                break
            case _:
                pass
    return objects


@runtime_checkable
class Sequenced(Protocol):
    """A store that returns its newest revision without a list."""

    async def last_revision(self) -> int:
        """Return the highest revision that the store has given to an object of any kind.

        It stays if the object is deleted or purged. Has a deadline, and raises `StoreError`s.
        """
        ...

    async def newest_revision(self) -> int:
        """Return the revision of the newest write to any object of the kind, or 0 if there is none.

        Has a deadline, and raises `StoreError`s.
        """
        ...


class ManifestStore(Store, Protocol):
    """A store with server-side apply, which tracks the manager of each field."""

    @property
    def kind(self) -> KubeKind[Any]: ...

    async def locate(self, manifest: Document) -> str:
        """Return the key of the manifest's object.

        Raises `InvalidObjectError` if a manifest of a namespaced kind has no namespace, or one of a
        cluster-scoped kind has a namespace.
        """
        ...

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        """Set the fields of *manifest*, and remove fields that only *manager* set before.

        *uid* is the uid of the object to change; if it's empty, the object mustn't exist yet, and
        is created. If nothing changes, the object keeps its revision.

        A manager takes over the fields that other managers of its family applied before. Managers
        are of one family if their names are equal up to the slash: `natsctl/new`, `natsctl/old`.

        Raises `ConflictError` if the object is another one than *uid* requires, and
        `FieldConflictError` if other managers set these fields to other values; *force* takes the
        fields over instead.
        """
        ...

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        """Let the server check the creation of the manifest's object, and store nothing.

        Raises what the creation would raise, for example the error of an admission webhook.
        """
        ...

    async def managed(self, key: str) -> ManagedFields:
        """Return the field managers of the object; raises `NotFoundError`."""
        ...

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        """Merge *patch* into the object's status (RFC 7396). Only this call changes a status.

        Raises `NotFoundError`; with *revision*, `ConflictError` unless it's the newest one.
        """
        ...


class Stores(Protocol):
    """A system that stores objects of many kinds."""

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the kind's store, created if necessary and checked against the declaration."""
        ...

    def recorder(self, controller: str) -> AbstractAsyncContextManager[Recorder]:
        """Yield a recorder for a controller; leaving the context sends the pending events."""
        ...

    def guarded(self, guard: WriteGuard) -> Self:
        """Return this system with *guard*, which permits or forbids each write and each event.

        The guard replaces an earlier guard.
        """
        ...


class ManifestStores(Stores, Protocol):
    """A system whose stores all have server-side apply, such as a Kubernetes cluster."""

    async def open(self, kind: Kind[Any]) -> ManifestStore:
        # calls of the store raise `StoreMissingError` while the kind is missing
        ...


@runtime_checkable
class JetStream(Protocol):
    """A system with a JetStream API."""

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Send a JetStream API request, such as `STREAM.INFO.orders`; return the JSON response.

        Raises `NotFoundError` and other `StoreError`s for an error response, and
        `StoreTimeoutError` if there is no response in time.
        """
        ...


@runtime_checkable
class Requester(Protocol):
    """A system that carries requests to services, and their answers."""

    async def request(
        self, subject: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        """Return the answer of one service.

        Raises `StoreTimeoutError` if none answers within *timeout_s*, `TooLargeError` for a body
        above the limit, and `StoreError` if nobody listens or the service reports an error.
        """
        ...


class ResourceType(Protocol):
    """A kind as a cluster serves it."""

    @property
    def plural(self) -> str:
        """The plural in paths and permissions, such as `configmaps`."""
        ...

    @property
    def namespaced(self) -> bool: ...

    @property
    def verbs(self) -> Collection[str]: ...


@runtime_checkable
class Discovers(Protocol):
    """A system whose kinds can be looked up."""

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        """Return the resource of *kind* in *api_version*, such as `apps/v1`.

        Raises `StoreMissingError` if the system has no such kind.
        """
        ...


class Cluster(ManifestStores, Discovers, Protocol):
    """A cluster whose kinds may be known only at run time."""
