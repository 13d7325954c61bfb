"""Stores whose writes stay in memory, above the stored objects, for NATS and for a cluster.

Reads and watches show the planned states above the stored ones, so the tables of a plan have both,
and whatever runs over them needs no second way. The planned states of a bucket lie in one
`Overlay`.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Self, TypeAlias, TypeVar, cast
from uuid import uuid4

import msgspec

from natsctl.core.plan.record import PlanRecord
from natsctl.core.tape import place_of
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
from natsctl.model.manifests import KubeKind
from natsctl.model.store import (
    DRY_RUN,
    FIRST_PLANNED,
    UNGUARDED,
    Applied,
    Deleted,
    Guarded,
    Listed,
    Listing,
    ManifestStores,
    Sequenced,
    Store,
    Stored,
    Stores,
    WatchEvent,
    WriteGuard,
    planned_revision,
)
from natsctl.model.times import time_text

S = TypeVar("S", bound=Stores)

MISSING = "missing"  # the incarnation of a store that does not exist
RECORDS = "kv/natsctl"  # the place of natsctl's own records, whose planned writes are no actions
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


class Inbox(asyncio.Queue[WatchEvent | StoreError]):
    """The planned events that a watch has not delivered yet, and one event of the store."""

    busy = True  # whether the reader works on an event
    listed = 0  # the newest planned revision that the end of a list has shown


class Overlay:
    """The planned states of one bucket, or of one kind in a cluster, called *place*."""

    def __init__(self, place: str, revisions: Iterator[int]) -> None:
        self.place = place
        self.records: set[PlanRecord] = set()  # of the controllers that write here
        self.entries: dict[str, PlannedState] = {}
        self.appliers: dict[str, str] = {}  # keys that only one field manager has planned
        self.revisions = revisions
        self.inboxes: set[Inbox] = set()

    def put(self, state: State, *, base: int, fresh: bool) -> None:
        """Plan a state above the stored revision *base*, and show it to every watch."""
        known = self.entries.get(state.key)
        since = state.revision if known is None else known.since
        before = () if known is None else known.states[1 - HISTORY_MAX :]
        if isinstance(state, Deleted) and state.purged:
            before = ()
        self.entries[state.key] = PlannedState(state, base, fresh, (*before, state), since)
        for inbox in self.inboxes:
            inbox.put_nowait(_event(state))

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
    """The objects of one kind, with planned writes in an overlay; a `Store` or a `ManifestStore`.

    *Guarantees.* No write is stored. A write is accepted or rejected as the store would do it: a
    stored object is compared at the store's leader, a planned one in the overlay. Reads and watches
    of all stores over the same overlay show the planned writes. If another client changes an object
    in the store, its planned state is dropped.

    Every write to a cluster is sent as a dry run, so its result has the defaults of the server, and
    admission and field conflicts are the server's. The server knows nothing of earlier planned
    writes: it checks each one against the stored object. An object that the plan deletes and
    creates again is not checked.

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
        self.kind: Any = kind
        self._in_cluster = isinstance(kind, KubeKind)
        self._stored: Any = stored
        self._overlay, self._record, self._guard, self._reopen = overlay, record, guard, reopen
        if record is not None:
            overlay.records.add(record)

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
        if revision not in {None, state.revision} or (
            revision is not None and self._in_cluster and isinstance(state, Deleted)
        ):
            raise self._changed(key)
        return state, planned

    def _changed(self, key: str) -> ConflictError:
        return ConflictError(f"{key} of {self.kind.name} changed since it was read")

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`; the planned states follow the stored ones."""
        planned = self._overlay.entries.get(key)
        if planned is not None and getattr(planned.states[0], "purged", False):
            return list(planned.states)
        stored = [] if self._stored is None else await self._stored.history(key)
        return [*stored, *(() if planned is None else planned.states)][-HISTORY_MAX:]

    async def last_revision(self) -> int:
        store = self._stored
        return self._newest(await store.last_revision() if isinstance(store, Sequenced) else 0)

    async def newest_revision(self) -> int:
        store = self._stored
        return self._newest(await store.newest_revision() if isinstance(store, Sequenced) else 0)

    def _newest(self, stored: int) -> int:
        states = (planned.state for planned in self._overlay.entries.values())
        revisions = (state.revision for state in states if self.kind.holds(state.key))
        return max(revisions, default=stored)

    async def locate(self, manifest: Document) -> str:
        return cast("str", await self._stored.locate(manifest))

    async def managed(self, key: str) -> ManagedFields:
        """See `ManifestStore.managed`; of a planned object, nothing is known."""
        if key in self._overlay.entries:
            raise NotFoundError(f"{key} of {self.kind.name} has planned changes")
        return cast("ManagedFields", await self._stored.managed(key))

    # ---- writes

    async def create(self, key: str, value: bytes) -> Stored:
        self._guard.check(self.kind)
        current, planned = await self._current(key)
        if isinstance(current, Stored):
            raise ConflictError(f"{key} of {self.kind.name} exists")
        base = current.revision if planned is None else planned.base
        new = await self._checked_create(key, value, base=base)
        return cast("Stored", self._plan(current, new, planned, base=base, fresh=True))

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        self._guard.check(self.kind)
        current, planned = await self._current(key, revision)
        base = revision if planned is None else planned.base
        fresh = (planned is not None and planned.fresh) or isinstance(current, Deleted)
        if fresh:
            new = await self._checked_create(key, value, base=base)
        else:
            new = await self._checked(value, lambda it: it.update(key, value, revision=base))
        stored = cast("Stored", self._plan(current, new, planned, base=base, fresh=fresh))
        if self._in_cluster:  # an object that is marked deleted goes with its last finalizer
            self._overlay.appliers.pop(key, None)
            metadata = self.kind.metadata(stored.value)
            if metadata.deletion_timestamp is not None and not metadata.finalizers:
                planned = self._overlay.entries[key]
                self._plan(stored, None, planned, base=planned.base)
        return stored

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        self._guard.check(self.kind)
        current, planned = await self._current(key, revision)
        if isinstance(current, Stored):
            if uid and self._in_cluster and uid != self._uid(current):
                raise ConflictError(f"{key} of {self.kind.name} is a different object now")
        elif not (purge and current.revision) and revision is None:
            await self.get(key)  # raises
        base = current.revision if planned is None else planned.base
        if planned is None or not planned.fresh:
            await self._checked(b"", lambda it: it.delete(key, revision=base, uid=uid, purge=purge))
        if self._in_cluster and isinstance(current, Stored):
            metadata = self.kind.metadata(current.value)
            if metadata.finalizers and metadata.deletion_timestamp is not None:
                return current.revision - 1
            if metadata.finalizers:  # they hold the object, which is then marked deleted
                marked = documents.marked_deleted(documents.parse(current.value))
                self._replace(current, marked, planned)
                return current.revision
        return self._plan(current, None, planned, base=base, purge=purge).revision

    def _plan(
        self,
        current: State,
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
        overlay, record, key = self._overlay, self._record, current.key
        before = current.value if isinstance(current, Stored) else None
        if overlay.entries.get(key) is not planned:
            raise self._changed(key)
        if record is not None:
            record.check(overlay.place, self.kind, key)
        revision = next(overlay.revisions)
        if value is not None and self._in_cluster:
            document = documents.parse(value)
            metadata = {**documents.metadata_of(document), "resourceVersion": str(revision)}
            value = documents.render({**document, "metadata": metadata})
        deleted = Deleted(key, revision, purge)
        state = deleted if value is None else Stored(key, revision, value)
        overlay.put(state, base=base, fresh=fresh)
        if record is not None and not (before is None and value is None):
            record.wrote(overlay.place, self.kind, key, before, value)
        return state

    async def _checked(self, value: bytes, write: Callable[[Any], Awaitable[Any]]) -> bytes:
        """Send a dry run; return the value that the server would store, else the *value*."""
        answer = None
        if self._stored is not None:
            with suppress(NotStoredError):
                answer = await write(self._stored)
        return answer.value if isinstance(answer, Stored) else value

    async def _checked_create(self, key: str, value: bytes, *, base: int) -> bytes:
        if base and self._in_cluster:  # the server still has the object that the plan deletes
            return documents.render(_recreated(None, documents.parse(value)))
        return await self._checked(value, lambda stored: stored.create(key, value))

    def _uid(self, stored: Stored) -> str:
        return cast("str", self.kind.metadata(stored.value).uid)

    # ---- writes of manifests

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        self._guard.check(self.kind)
        await self._stored.check_create(manifest, manager=manager)

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
        fresh = planned is not None and planned.fresh
        if planned is not None and ((fresh and planned.base) or current is None):
            new = _recreated(current, manifest)
        else:
            answer = await self._stored.apply(
                manifest, manager=manager, uid="" if fresh else uid, force=force
            )
            new = documents.parse(answer.value)
            if current is not None and (fresh or not alone):
                new = await self._combined(current, new, alone=alone, fresh=fresh)
        stored = self._replace(state, new, planned)
        if alone:
            self._overlay.appliers[key] = manager
        return stored

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        self._guard.check(self.kind)
        current = await self.get(key)
        if revision not in {None, current.revision}:
            raise self._changed(key)
        planned = self._overlay.entries.get(key)
        if planned is None or not planned.fresh:
            await self._stored.patch_status(key, patch)
        new = documents.with_status(documents.parse(current.value), patch)
        self._overlay.appliers.pop(key, None)
        return self._replace(current, new, planned)

    def _replace(self, current: State, new: Document, planned: PlannedState | None) -> Stored:
        """Plan the new state of an object, unless it is the present one."""
        base, fresh = 0, True
        if isinstance(current, Stored):
            states = (documents.parse(current.value), new)
            if documents.same(*(documents.without_metadata(state, VOLATILE) for state in states)):
                return current
            base, fresh = current.revision, False
        if planned is not None:
            base, fresh = planned.base, planned.fresh or fresh
        value = documents.render(new)
        return cast("Stored", self._plan(current, value, planned, base=base, fresh=fresh))

    async def _combined(
        self, current: Stored, answer: Document, *, alone: bool, fresh: bool
    ) -> Document:
        """Return the planned state with the change that the server's answer makes."""
        planned = documents.parse(current.value)
        if fresh:
            own = {name: documents.metadata_of(planned).get(name) for name in _IDENTITY}
            combined = answer if alone else documents.merge_patch(planned, answer)
            return {**combined, "metadata": {**documents.metadata_of(combined), **own}}
        stored = documents.parse((await self._stored.get(current.key)).value)
        return documents.merge_patch(planned, documents.patch_between(stored, answer))

    # ---- watch

    @asynccontextmanager
    async def watch(self, _shown: object = None) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        # the store has fewer keys than the reader was shown
        below = aclosing(self._missing()) if self._stored is None else self._stored.watch()
        inbox = Inbox()

        async def forward(events: AsyncIterator[WatchEvent]) -> None:
            try:
                async for event in events:
                    await inbox.join()  # the reader has taken all before it
                    inbox.put_nowait(event)
                inbox.put_nowait(WatchBrokenError("the watch of the store has ended"))
            except StoreError as error:
                inbox.put_nowait(error)

        self._overlay.inboxes.add(inbox)
        try:
            async with (
                below as stored,
                together() as group,
                aclosing(self._events(inbox)) as events,
            ):
                forwarding = group.create_task(forward(stored), name="changes below a plan")
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
            event = await inbox.get()
            inbox.busy = True
            inbox.task_done()
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
        stored = event.stored if isinstance(event, Applied) else None
        key = event.key if isinstance(event, Deleted) else event.stored.key
        if not self.kind.holds(key):
            return
        if stored is not None and self._in_cluster:
            labels = self.kind.metadata(stored.value).labels
            if not self.kind.selector.matches(labels):
                yield Deleted(key, stored.revision)
                return
        yield event


def _event(state: State) -> Applied | Deleted:
    return Applied(state) if isinstance(state, Stored) else state


def _recreated(current: Stored | None, document: Document) -> Document:
    """Return the object of a manifest that no server has checked."""
    before = {} if current is None else documents.parse(current.value)
    created = {"uid": str(uuid4()), "creationTimestamp": time_text(datetime.now(UTC))}
    merged = documents.merge_patch(before, document)
    return {**merged, "metadata": {**created, **documents.metadata_of(merged)}}


class NoRecorder:
    """Drops events; a `Recorder`."""

    def event(self, *_args: object, **_fields: object) -> None:
        pass


class PlanningStores(Guarded):
    """The kinds of a system, with planned writes above them; a `Stores`, or a `Cluster`.

    A bucket that does not exist is empty, and is not created, unless its kind forbids that. The
    server of a cluster checks every write by a dry run (`dryRun=All`).
    """

    forgets = True  # no record of failing keys
    api: Any
    request: Any
    resource: Any

    def __init__(self, stores: Stores, record: PlanRecord, revisions: Iterator[int]) -> None:
        self.missing: set[str] = set()  # the opened buckets that do not exist
        self._stores: Any = stores.guarded(DRY_RUN)
        for name in ("api", "request", "resource"):  # a system has some of them
            if hasattr(stores, name):
                setattr(self, name, getattr(self._stores, name))
        self._record, self._revisions = record, revisions
        self._overlays: dict[str, Overlay] = {}

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        inboxes = (inbox for overlay in self._overlays.values() for inbox in overlay.inboxes)
        return not any(inbox.busy or not inbox.empty() for inbox in inboxes)

    def recorded(self, record: PlanRecord) -> Self:
        recorded = copy.copy(self)
        recorded._record = record  # noqa: SLF001 - of a copy of this object
        return recorded

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[NoRecorder]:  # noqa: ARG002 - no event is recorded
        yield NoRecorder()

    async def open(self, kind: Kind[Any]) -> PlanningStore:
        stored = await self._opened(kind)
        declared = stored.kind if stored is not None and isinstance(kind, KubeKind) else kind
        return self.over(declared, stored, partial(self._opened, kind))

    def over(
        self,
        kind: Kind[Any],
        stored: Store | None,
        reopen: Callable[[], Awaitable[Store | None]] | None = None,
    ) -> PlanningStore:
        """Return a store with the planned writes of the kind's bucket above *stored*.

        *stored* is None if the bucket does not exist. Its writes must be dry runs.
        """
        place = place_of(kind)
        overlay = self._overlays.setdefault(place, Overlay(place, self._revisions))
        record = None if place == RECORDS else self._record
        return PlanningStore(kind, stored, overlay, record, guard=self.guard, reopen=reopen)

    async def _opened(self, kind: Kind[Any]) -> Store | None:
        try:
            store: Store = await self._stores.open(kind)
        except StoreMissingError:
            if not isinstance(kind, KvKind) or not kind.create:
                raise
            self.missing.add(kind.bucket)
            return None
        if isinstance(kind, KvKind):
            self.missing.discard(kind.bucket)
        return store


class Planned(msgspec.Struct, frozen=True):
    """The stores of a plan, and the record of the writes of one controller."""

    record: PlanRecord
    nats: PlanningStores
    kube: PlanningStores | None

    @property
    def settled(self) -> bool:
        return self.nats.settled and (self.kube is None or self.kube.settled)

    def of_another(self, *, cluster: ManifestStores | None = None) -> "Planned":
        """Return the same planned states with a record for another controller.

        *cluster* is the cluster of the other controller if this plan has none.
        """
        record = PlanRecord(continuous=self.record.continuous)
        kube = None if self.kube is None else self.kube.recorded(record)
        if kube is None and cluster is not None:
            kube = PlanningStores(cluster, record, count(FIRST_PLANNED + 1))
        return Planned(record, self.nats.recorded(record), kube)


def planned(*, nats: Stores, kube: ManifestStores | None, continuous: bool = False) -> Planned:
    """Return stores over *nats* and *kube* whose writes are recorded and not stored.

    See `PlanRecord` about *continuous* plans.
    """
    record, revisions = PlanRecord(continuous=continuous), count(FIRST_PLANNED + 1)
    return Planned(
        record,
        PlanningStores(nats, record, revisions),
        None if kube is None else PlanningStores(kube, record, revisions),
    )
