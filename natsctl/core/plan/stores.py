"""Stores whose writes stay in memory, above the stored objects, for NATS and for a cluster.

Reads and watches show the planned states above the stored ones, so the tables of a plan have both,
and whatever runs over them needs no second way. The planned states of a bucket lie in one
`Overlay`.
"""

import asyncio
import copy
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Generic, Self, TypeAlias, TypeVar, cast
from uuid import uuid4

import msgspec

from natsctl.core.plan.record import PlanRecord, place_of
from natsctl.core.task_group import together
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    NotStoredError,
    StoreError,
    StoreMissingError,
    WatchBrokenError,
)
from natsctl.model import documents
from natsctl.model.documents import VOLATILE, Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.objects import Metadata
from natsctl.model.store import (
    DRY_RUN,
    FIRST_PLANNED,
    UNGUARDED,
    Applied,
    Deleted,
    Discovers,
    EventType,
    Guarded,
    JetStream,
    Listed,
    Listing,
    ManifestStore,
    ManifestStores,
    Requester,
    ResourceType,
    Sequenced,
    Store,
    Stored,
    Stores,
    SyncNote,
    WatchEvent,
    WriteGuard,
    planned_revision,
)
from natsctl.model.times import time_text

S = TypeVar("S", bound=Stores)

MISSING = "missing"  # the incarnation of a store that does not exist
RECORDS = "natsctl"  # the bucket of natsctl's own records, whose planned writes are no actions
REOPEN_S = 5.0  # between two attempts to open a store that does not exist
HISTORY_MAX = 64  # states of a key, as many as any bucket keeps

State: TypeAlias = Stored | Deleted

_IDENTITY = ("uid", "creationTimestamp")


class PlannedState(msgspec.Struct, frozen=True):
    """The planned state of a key."""

    state: State
    base: int  # the stored revision that it replaces; 0 if the key was not stored
    fresh: bool  # whether the object is created in the plan, so that no server has it
    states: tuple[State, ...]  # the planned states so far, oldest first
    since: int  # the revision of the first planned state


class Inbox:
    """The planned events that a watch has not delivered yet, and one event of the store."""

    def __init__(self) -> None:
        self.events = asyncio.Queue[WatchEvent | StoreError]()
        self.busy = True  # whether the reader works on an event
        self.listed = 0  # the newest planned revision that the end of a list has shown

    async def forward(self, events: AsyncIterator[WatchEvent]) -> None:
        """Add each event of the store once the reader has taken all before it."""
        try:
            async for event in events:
                await self.events.join()
                self.events.put_nowait(event)
            self.events.put_nowait(WatchBrokenError("the watch of the store has ended"))
        except StoreError as error:
            self.events.put_nowait(error)


class Overlay:
    """The planned states of one bucket, or of one kind in a cluster, called *place*."""

    def __init__(self, place: str, revisions: Iterator[int]) -> None:
        self.place = place
        self.records: set[PlanRecord] = set()  # of the controllers that write here
        self.entries: dict[str, PlannedState] = {}
        self.appliers: dict[str, str] = {}  # keys that only one field manager has planned
        self.revisions = revisions
        self.inboxes: set[Inbox] = set()

    @property
    def settled(self) -> bool:
        return not any(inbox.busy or not inbox.events.empty() for inbox in self.inboxes)

    def put(self, state: State, *, base: int, fresh: bool) -> None:
        """Plan a state above the stored revision *base*, and show it to every watch."""
        known = self.entries.get(state.key)
        since = state.revision if known is None else known.since
        before = () if known is None else known.states[1 - HISTORY_MAX :]
        if isinstance(state, Deleted) and state.purged:
            before = ()
        self.entries[state.key] = PlannedState(state, base, fresh, (*before, state), since)
        for inbox in self.inboxes:
            inbox.events.put_nowait(_event(state))

    def supersedes(self, key: str, revision: int) -> bool:
        """Return whether a stored state replaces the planned one, which is then dropped.

        A stored state is newer than the plan if its revision is above the one that was planned on.
        """
        planned = self.entries.get(key)
        if planned is None:
            return True
        if revision <= planned.base:
            return False
        del self.entries[key]
        for record in self.records:
            record.superseded(self.place, key)
        return True


class PlanningStore:
    """The objects of one kind, with planned writes in an overlay; a `Store`.

    *Guarantees.* No write is stored. A write is accepted or rejected as the store would do it: a
    stored object is compared at the store's leader, a planned one in the overlay. Reads and watches
    of all stores over the same overlay show the planned writes. If another client changes an object
    in the store, its planned state is dropped.

    Args:
        stored: the store below, whose writes are dry runs; None if it does not exist.
        record: records every planned write; None for natsctl's own records.
        reopen: returns the store below if it exists now; by default it never does.
    """

    def __init__(
        self,
        kind: Kind[Any],
        stored: Store | None,
        overlay: Overlay,
        record: PlanRecord | None,
        *,
        guard: WriteGuard = UNGUARDED,
        reopen: Callable[[], Awaitable[Store | None]] | None = None,
    ) -> None:
        self.kind = kind
        self._stored = stored
        self._overlay = overlay
        self._record = record
        if record is not None:
            overlay.records.add(record)
        self._guard = guard
        self._reopen = reopen

    # ---- reads

    async def get(self, key: str) -> Stored:
        state, planned = await self._current(key)
        if isinstance(state, Stored):
            return state
        cause = "" if planned is None else ": the plan deletes it"
        raise NotFoundError(
            f"{self.kind.name} has no {key}{cause}", deleted_at=state.revision or None
        )

    async def _current(
        self, key: str, revision: int | None = None
    ) -> tuple[State, PlannedState | None]:
        """Return the state of the object, planned or stored, and its planned state.

        An object that isn't stored is deleted, at revision 0 without a delete marker. Raises
        `ConflictError` if the state isn't of the *revision*.
        """
        planned, state = self._overlay.entries.get(key), cast("State", Deleted(key, 0))
        if planned is not None:
            state = planned.state
        elif self._stored is not None:
            try:
                state = await self._stored.get(key)
            except NotFoundError as missing:
                state = Deleted(key, missing.deleted_at or 0)
        if revision not in {None, state.revision}:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        return state, planned

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`; the planned states follow the stored ones."""
        planned = self._overlay.entries.get(key)
        if planned is not None and getattr(planned.states[0], "purged", False):
            return list(planned.states)
        stored = [] if self._stored is None else await self._stored.history(key)
        return [*stored, *(() if planned is None else planned.states)][-HISTORY_MAX:]

    async def last_revision(self) -> int:
        last = 0
        if isinstance(self._stored, Sequenced):
            last = await self._stored.last_revision()
        return self._newest_planned(last)

    async def newest_revision(self) -> int:
        newest = 0
        if isinstance(self._stored, Sequenced):
            newest = await self._stored.newest_revision()
        return self._newest_planned(newest)

    def _newest_planned(self, newest: int) -> int:
        planned = (planned.state for planned in self._overlay.entries.values())
        revisions = (state.revision for state in planned if self.kind.holds(state.key))
        return max(revisions, default=newest)

    # ---- writes

    async def create(self, key: str, value: bytes) -> Stored:
        self._guard.check(self.kind)
        current, planned = await self._current(key)
        if isinstance(current, Stored):
            raise ConflictError(f"{key} of {self.kind.name} exists")
        base = current.revision if planned is None else planned.base
        new = await self._checked_create(key, value, base=base)
        return cast("Stored", self._plan(key, None, new, planned, base=base, fresh=True))

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        self._guard.check(self.kind)
        current, planned = await self._current(key, revision)
        base, fresh = (revision, False) if planned is None else (planned.base, planned.fresh)
        before = current.value if isinstance(current, Stored) else None
        if fresh or before is None:
            fresh, new = True, await self._checked_create(key, value, base=base)
        else:
            new = await self._checked(value, lambda it: it.update(key, value, revision=base))
        return cast("Stored", self._plan(key, before, new, planned, base=base, fresh=fresh))

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        self._guard.check(self.kind)
        current, planned = await self._current(key, revision)
        gone = isinstance(current, Deleted) and not (purge and current.revision)
        if gone and revision is None:
            await self.get(key)  # raises
        base = current.revision if planned is None else planned.base
        if planned is None or not planned.fresh:
            await self._checked(b"", lambda it: it.delete(key, revision=base, uid=uid, purge=purge))
        return self._remove(current, planned, base=base, purge=purge)

    def _remove(
        self, current: State, planned: PlannedState | None, *, base: int, purge: bool
    ) -> int:
        before = current.value if isinstance(current, Stored) else None
        return self._plan(current.key, before, None, planned, base=base, purge=purge).revision

    def _plan(
        self,
        key: str,
        before: bytes | None,
        value: bytes | None,
        planned: PlannedState | None,
        *,
        base: int,
        fresh: bool = False,
        purge: bool = False,
    ) -> State:
        """Plan the next value of an object, or its deletion, above its planned state *planned*.

        Raises `ConflictError` if another sync has planned a state of the key since.
        """
        overlay, record = self._overlay, self._record
        if overlay.entries.get(key) is not planned:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        if record is not None:
            record.check(overlay.place, self.kind, key)
        revision, state = next(overlay.revisions), None
        if value is not None:
            value = self._numbered(value, revision)
            state = Stored(key, revision, value)
        overlay.put(state or Deleted(key, revision, purge), base=base, fresh=fresh)
        if record is not None and not (before is None and value is None):
            record.wrote(overlay.place, self.kind, key, before, value)
        return state or Deleted(key, revision, purge)

    def _numbered(self, value: bytes, revision: int) -> bytes:  # noqa: ARG002 - NATS keeps the revision apart
        """Return the value as the store would return it at the planned revision."""
        return value

    async def _checked(self, value: bytes, write: Callable[[Store], Awaitable[Any]]) -> bytes:
        """Send a dry run; return the value that the server would store, else the *value*."""
        if self._stored is not None:
            try:
                answer = await write(self._stored)
            except NotStoredError:
                return value
            return answer.value if isinstance(answer, Stored) else value
        return value

    async def _checked_create(self, key: str, value: bytes, *, base: int) -> bytes:  # noqa: ARG002 - of a deleted object
        return await self._checked(value, lambda stored: stored.create(key, value))

    # ---- watch

    @asynccontextmanager
    async def watch(
        self,
        shown: Collection[str] | None = None,  # noqa: ARG002 - the store has fewer keys
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        below = aclosing(self._missing()) if self._stored is None else self._stored.watch()
        inbox = Inbox()
        self._overlay.inboxes.add(inbox)
        try:
            async with (
                below as stored,
                together() as group,
                aclosing(self._events(inbox)) as events,
            ):
                forwarding = group.create_task(inbox.forward(stored), name="changes below a plan")
                try:
                    yield events
                finally:
                    forwarding.cancel()
        finally:
            self._overlay.inboxes.discard(inbox)

    async def _missing(self) -> AsyncGenerator[WatchEvent, None]:
        """Yield an empty list, and the events of the store as soon as it exists."""
        yield Listing(MISSING)
        yield Listed(0)
        while self._stored is None:
            await asyncio.sleep(REOPEN_S)
            if self._reopen is not None:
                self._stored = await self._reopen()
        async with self._stored.watch() as events:
            async for event in events:
                yield event

    async def _events(self, inbox: Inbox) -> AsyncGenerator[WatchEvent, None]:
        """Yield what a watch shows; the end of a list shows every planned state."""
        while True:
            inbox.busy = False
            event = await inbox.events.get()
            inbox.busy = True
            inbox.events.task_done()
            if isinstance(event, StoreError):
                raise event
            for shown in self._show(event, inbox):
                yield shown

    def _show(self, event: WatchEvent, inbox: Inbox) -> Iterator[WatchEvent]:
        """Yield what a watch shows for an event of the store or of the plan."""
        entries = self._overlay.entries
        match event:
            case Applied(Stored(key=key, revision=revision)) | Deleted(key=key, revision=revision):
                if not planned_revision(revision):
                    if not entries or self._overlay.supersedes(key, revision):
                        yield event
                elif key in entries and revision >= max(entries[key].since, inbox.listed + 1):
                    yield from self._planned_event(event)  # it was neither dropped nor shown
            case Listed(revision=revision):
                for planned in list(entries.values()):
                    yield from self._planned_event(_event(planned.state))
                    inbox.listed = max(inbox.listed, planned.state.revision)
                yield Listed(max(revision, inbox.listed))
            case _:
                yield event

    def _planned_event(self, event: Applied | Deleted) -> Iterator[WatchEvent]:
        """Yield the event of a planned state, unless the object belongs to another kind."""
        if self.kind.holds(event.stored.key if isinstance(event, Applied) else event.key):
            yield event


def _event(state: State) -> Applied | Deleted:
    return Applied(state) if isinstance(state, Stored) else state


class PlanningManifestStore(PlanningStore):
    """The objects of one kind of a cluster, with planned writes above them; a `ManifestStore`.

    Every write is sent as a dry run, so its result has the defaults of the server, and admission
    and field conflicts are the server's. The server knows nothing of earlier planned writes: it
    checks each one against the stored object. An object that the plan deletes and creates again is
    not checked.
    """

    kind: KubeKind[Any]
    _stored: ManifestStore

    async def locate(self, manifest: Document) -> str:
        return await self._stored.locate(manifest)

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        self._guard.check(self.kind)
        await self._stored.check_create(manifest, manager=manager)

    async def managed(self, key: str) -> ManagedFields:
        """See `ManifestStore.managed`; of a planned object, nothing is known."""
        if key in self._overlay.entries:
            raise NotFoundError(f"{key} of {self.kind.name} has planned changes")
        return await self._stored.managed(key)

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        self._guard.check(self.kind)
        key = await self.locate(manifest)
        state, planned = await self._current(key)
        current = state if isinstance(state, Stored) else None
        if ("" if current is None else self._uid(current)) != uid:
            raise ConflictError(f"{key} of {self.kind.name} is a different object now, or deleted")
        alone = planned is None or self._overlay.appliers.get(key) == manager
        if (planned is not None and planned.fresh and planned.base) or _deleted(planned):
            new = _recreated(current, manifest)
        else:
            fresh = planned is not None and planned.fresh
            answer = documents.parse(
                (
                    await self._stored.apply(
                        manifest, manager=manager, uid="" if fresh else uid, force=force
                    )
                ).value
            )
            new = await self._combined(key, current, answer, alone=alone, fresh=fresh)
        stored = self._replace(key, current, new, planned)
        if alone:
            self._overlay.appliers[key] = manager
        return stored

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        # an object that is marked deleted goes with its last finalizer
        stored = await super().update(key, value, revision=revision)
        self._overlay.appliers.pop(key, None)
        metadata = self.kind.metadata(stored.value)
        if metadata.deletion_timestamp is not None and not metadata.finalizers:
            planned = self._overlay.entries[key]
            super()._remove(stored, planned, base=planned.base, purge=False)
        return stored

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        self._guard.check(self.kind)
        current = await self.get(key)
        if revision not in {None, current.revision}:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        planned = self._overlay.entries.get(key)
        if planned is None or not planned.fresh:
            await self._stored.patch_status(key, patch)
        new = documents.with_status(documents.parse(current.value), patch)
        self._overlay.appliers.pop(key, None)
        return self._replace(key, current, new, planned)

    def _replace(
        self, key: str, current: Stored | None, new: Document, planned: PlannedState | None
    ) -> Stored:
        """Plan the new state of an object, unless it is the present one."""
        if current is not None:
            states = (documents.parse(current.value), new)
            if documents.same(*(documents.without_metadata(state, VOLATILE) for state in states)):
                return current
        before = None if current is None else current.value
        base = 0 if current is None else current.revision
        fresh = current is None
        if planned is not None:
            base, fresh = planned.base, planned.fresh or fresh
        new_value = documents.render(new)
        return cast("Stored", self._plan(key, before, new_value, planned, base=base, fresh=fresh))

    async def _combined(
        self, key: str, current: Stored | None, answer: Document, *, alone: bool, fresh: bool
    ) -> Document:
        """Return the planned state with the change that the server's answer makes."""
        if current is None or (alone and not fresh):
            return answer
        planned = documents.parse(current.value)
        if fresh:
            own = {name: documents.metadata_of(planned).get(name) for name in _IDENTITY}
            combined = answer if alone else documents.merge_patch(planned, answer)
            return {**combined, "metadata": {**documents.metadata_of(combined), **own}}
        stored = documents.parse((await self._stored.get(key)).value)
        return documents.merge_patch(planned, documents.patch_between(stored, answer))

    def _remove(
        self, current: State, planned: PlannedState | None, *, base: int, purge: bool
    ) -> int:
        # finalizers hold the object, which is then marked deleted
        metadata = Metadata()
        if isinstance(current, Stored):
            metadata = self.kind.metadata(current.value)
        if not (isinstance(current, Stored) and metadata.finalizers):
            return super()._remove(current, planned, base=base, purge=purge)
        if metadata.deletion_timestamp is not None:
            return current.revision - 1
        marked = documents.marked_deleted(documents.parse(current.value))
        self._replace(current.key, current, marked, planned)
        return current.revision

    async def _current(
        self, key: str, revision: int | None = None
    ) -> tuple[State, PlannedState | None]:
        current, planned = await super()._current(key, revision)
        if revision is not None and not isinstance(current, Stored):
            raise ConflictError(f"{key} of {self.kind.name} was deleted in the meantime")
        return current, planned

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        current, _ = await self._current(key, revision)
        if uid and isinstance(current, Stored) and uid != self._uid(current):
            raise ConflictError(f"{key} of {self.kind.name} is a different object now")
        return await super().delete(key, revision=revision, uid=uid, purge=purge)

    def _numbered(self, value: bytes, revision: int) -> bytes:
        document = documents.parse(value)
        metadata = {**documents.metadata_of(document), "resourceVersion": str(revision)}
        return documents.render({**document, "metadata": metadata})

    async def _checked_create(self, key: str, value: bytes, *, base: int) -> bytes:
        if base:  # the server still has the object that the plan deletes
            return documents.render(_recreated(None, documents.parse(value)))
        return await super()._checked_create(key, value, base=base)

    def _planned_event(self, event: Applied | Deleted) -> Iterator[WatchEvent]:
        for shown in super()._planned_event(event):
            if isinstance(shown, Applied):
                labels = self.kind.metadata(shown.stored.value).labels
                if not self.kind.selector.matches(labels):
                    yield Deleted(shown.stored.key, shown.stored.revision)
                    continue
            yield shown

    def _uid(self, stored: Stored) -> str:
        return self.kind.metadata(stored.value).uid


def _deleted(planned: PlannedState | None) -> bool:
    return planned is not None and isinstance(planned.state, Deleted)


def _recreated(current: Stored | None, document: Document) -> Document:
    """Return the object of a manifest that no server has checked."""
    before = {} if current is None else documents.parse(current.value)
    created = {"uid": str(uuid4()), "creationTimestamp": time_text(datetime.now(UTC))}
    merged = documents.merge_patch(before, document)
    return {**merged, "metadata": {**created, **documents.metadata_of(merged)}}


class NoRecorder:
    """Drops events; a `Recorder`."""

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
        pass


class _Planning(Guarded, Generic[S]):
    """The overlays of the kinds of a system, the record of their planned writes, and the guard."""

    forgets = True  # no record of failing keys

    def __init__(self, stores: S, record: PlanRecord, revisions: Iterator[int]) -> None:
        self._stores = stores.guarded(DRY_RUN)
        self._record = record
        self._revisions = revisions
        self._overlays: dict[str, Overlay] = {}

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        return all(overlay.settled for overlay in self._overlays.values())

    def recorded(self, record: PlanRecord) -> Self:
        recorded = copy.copy(self)
        recorded._record = record  # noqa: SLF001 - of a copy of this object
        return recorded

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[NoRecorder]:  # noqa: ARG002 - no event is recorded
        yield NoRecorder()

    def _overlay(self, place: str) -> Overlay:
        return self._overlays.setdefault(place, Overlay(place, self._revisions))


class PlanningStores(_Planning[Stores]):
    """The buckets of a NATS system, with planned writes above them; a `Stores`.

    A bucket that does not exist is empty, and is not created, unless its kind forbids that.
    """

    def __init__(self, stores: Stores, record: PlanRecord, revisions: Iterator[int]) -> None:
        super().__init__(stores, record, revisions)
        self.missing: set[str] = set()  # the opened buckets that do not exist

    async def open(self, kind: Kind[Any]) -> PlanningStore:
        stored = await self._opened(kind)
        if stored is None and isinstance(kind, KvKind) and not kind.create:
            stored = await self._stores.open(kind)  # raises that the bucket does not exist
        return self._overlay_store(kind, stored, partial(self._opened, kind))

    def over(self, kind: KvKind[Any], stored: Store | None) -> PlanningStore:
        """Return a store with the planned writes of the kind's bucket above *stored*.

        *stored* is None if the bucket does not exist. Its writes must be dry runs.
        """
        return self._overlay_store(kind, stored, None)

    def _overlay_store(
        self,
        kind: Kind[Any],
        stored: Store | None,
        reopen: Callable[[], Awaitable[Store | None]] | None,
    ) -> PlanningStore:
        bucket = place_of(kind)
        record = None if bucket == RECORDS else self._record
        return PlanningStore(
            kind, stored, self._overlay(bucket), record, guard=self.guard, reopen=reopen
        )

    async def _opened(self, kind: Kind[Any]) -> Store | None:
        try:
            store = await self._stores.open(kind)
        except StoreMissingError:
            self.missing.add(place_of(kind))
            return None
        self.missing.discard(place_of(kind))
        return store

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        if not isinstance(self._stores, JetStream):
            raise StoreMissingError("these stores have no JetStream API")
        return await self._stores.api(endpoint, body)

    async def request(
        self, subject: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        if not isinstance(self._stores, Requester):
            raise StoreError("these stores carry no requests")
        return await self._stores.request(subject, body, headers=headers, timeout_s=timeout_s)


class PlanningManifestStores(_Planning[ManifestStores]):
    """The kinds of a cluster, with planned writes above them; a `Cluster`.

    The server checks every write by a dry run (`dryRun=All`). See `PlanningStores`.
    """

    async def open(self, kind: Kind[Any]) -> PlanningManifestStore:
        stored = await self._stores.open(kind)
        declared: KubeKind[Any] = stored.kind
        overlay = self._overlay(place_of(declared))
        return PlanningManifestStore(declared, stored, overlay, self._record, guard=self.guard)

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        if not isinstance(self._stores, Discovers):
            raise StoreMissingError("this cluster cannot look kinds up")
        return await self._stores.resource(api_version, kind)


class Planned(msgspec.Struct, frozen=True):
    """The stores of a plan, and the record of the writes of one controller."""

    record: PlanRecord
    nats: PlanningStores
    kube: PlanningManifestStores | None

    @property
    def settled(self) -> bool:
        return self.nats.settled and (self.kube is None or self.kube.settled)

    def of_another(
        self, key_of: Callable[[], str], *, cluster: ManifestStores | None = None
    ) -> "Planned":
        """Return the same planned states with a record for another controller.

        *cluster* is the cluster of the other controller if this plan has none.
        """
        record = PlanRecord(key_of, continuous=self.record.continuous)
        kube = None if self.kube is None else self.kube.recorded(record)
        if kube is None and cluster is not None:
            kube = PlanningManifestStores(cluster, record, count(FIRST_PLANNED + 1))
        return Planned(record, self.nats.recorded(record), kube)


def planned(
    *,
    nats: Stores,
    kube: ManifestStores | None,
    key_of: Callable[[], str],
    continuous: bool = False,
) -> Planned:
    """Return stores over *nats* and *kube* whose writes are recorded and not stored.

    *key_of* returns the key of the present sync. See `PlanRecord` about *continuous* plans.
    """
    record, revisions = PlanRecord(key_of, continuous=continuous), count(FIRST_PLANNED + 1)
    return Planned(
        record,
        PlanningStores(nats, record, revisions),
        None if kube is None else PlanningManifestStores(kube, record, revisions),
    )
