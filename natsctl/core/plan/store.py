"""A store whose writes stay in memory, above the stored objects."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from itertools import count
from typing import Any, TypeAlias

import msgspec

from natsctl.core.plan.record import PlanRecord
from natsctl.core.task_group import together
from natsctl.errors import (
    ConflictError,
    NotFoundError,
    NotStoredError,
    StoreError,
    WatchBrokenError,
)
from natsctl.model.kinds import Kind
from natsctl.model.store import (
    FIRST_PLANNED,
    UNGUARDED,
    Applied,
    Deleted,
    Listed,
    Listing,
    Sequenced,
    Store,
    Stored,
    WatchEvent,
    WriteGuard,
    planned_revision,
)

MISSING = "missing"  # the incarnation of a store that does not exist
ENDED = "the watch of the store has ended"
REOPEN_S = 5.0  # between two attempts to open a store that does not exist
HISTORY_MAX = 64  # states of a key, as many as any bucket keeps
BUFFER_MAX = 1000  # events of the store that wait for a watch

State: TypeAlias = Stored | Deleted


class PlannedState(msgspec.Struct, frozen=True):
    """The planned state of a key."""

    state: State
    base: int  # the stored revision that it replaces; 0 if the key was not stored
    fresh: bool  # whether the object is created in the plan, so that no server has it
    states: tuple[State, ...]  # the planned states so far, oldest first
    since: int  # the revision of the first planned state


def planned_revisions() -> Iterator[int]:
    """Return the revisions of the planned writes in all stores of a plan."""
    return count(FIRST_PLANNED + 1)


class Inbox:
    """The events that a watch has not delivered yet, of the store and of the plan."""

    def __init__(self) -> None:
        self.busy = True  # whether the reader works on an event
        self._events: deque[WatchEvent | StoreError] = deque()
        self._moved = asyncio.Event()  # an event was added or taken

    @property
    def empty(self) -> bool:
        """True if the reader has taken every event and waits for the next one."""
        return not (self._events or self.busy)

    def add(self, event: WatchEvent | StoreError) -> None:
        """Add an event, or the end of the watch."""
        self._events.append(event)
        self._moved.set()

    async def forward(self, events: AsyncIterator[WatchEvent]) -> None:
        """Add the events of the store; waits while the reader is behind."""
        try:
            async for event in events:
                while len(self._events) >= BUFFER_MAX:
                    await self._wait()
                self.add(event)
        except StoreError as error:
            self.add(error)
        else:
            self.add(WatchBrokenError(ENDED))

    async def next(self) -> WatchEvent:
        """Wait for the next event and return it; raises the error that ended the watch."""
        self.busy = False
        while not self._events:
            await self._wait()
        self.busy = True
        self._moved.set()
        event = self._events.popleft()
        if isinstance(event, StoreError):
            raise event
        return event

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()


class Overlay:
    """The planned states of one bucket, or of one kind in a cluster, called *place*."""

    def __init__(self, place: str, revisions: Iterator[int]) -> None:
        self.place = place
        self.records: set[PlanRecord] = set()  # of the controllers that write here
        self.entries: dict[str, PlannedState] = {}
        self.appliers: dict[str, str] = {}  # keys that only one field manager has planned
        self._revisions = revisions
        self._inboxes: set[Inbox] = set()

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        return all(inbox.empty for inbox in self._inboxes)

    def put(
        self, key: str, value: Callable[[int], bytes], *, base: int, fresh: bool = False
    ) -> Stored:
        """Plan the value that *value* returns for its revision; *base* is the stored revision."""
        revision = next(self._revisions)
        stored = Stored(key, revision, value(revision))
        self._set(stored, base=base, fresh=fresh)
        return stored

    def remove(self, key: str, *, base: int, purged: bool) -> Deleted:
        """Plan the deletion of a key."""
        deleted = Deleted(key, next(self._revisions), purged)
        self._set(deleted, base=base, fresh=False)
        return deleted

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

    def holds(self, key: str, revision: int) -> bool:
        """Return whether the planned state of this revision was not dropped since."""
        planned = self.entries.get(key)
        return planned is not None and revision >= planned.since

    @contextmanager
    def subscribed(self) -> Iterator[Inbox]:
        """Yield an inbox that gets every planned state from now on."""
        inbox = Inbox()
        self._inboxes.add(inbox)
        try:
            yield inbox
        finally:
            self._inboxes.discard(inbox)

    def _set(self, state: State, *, base: int, fresh: bool) -> None:
        known = self.entries.get(state.key)
        since = state.revision if known is None else known.since
        before = () if known is None else known.states[1 - HISTORY_MAX :]
        if isinstance(state, Deleted) and state.purged:
            before = ()
        self.entries[state.key] = PlannedState(state, base, fresh, (*before, state), since)
        event: WatchEvent = Applied(state) if isinstance(state, Stored) else state
        for inbox in self._inboxes:
            inbox.add(event)


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
        planned = self._overlay.entries.get(key)
        if planned is None:
            return await self._get_stored(key)
        if isinstance(planned.state, Deleted):
            raise self._not_found(planned.state)
        return planned.state

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
        planned, marker = self._overlay.entries.get(key), 0
        if planned is None:
            try:
                await self._get_stored(key)
            except NotFoundError as missing:
                marker = missing.deleted_at or 0
            else:
                raise ConflictError(f"{key} of {self.kind.name} exists")
        elif isinstance(planned.state, Stored):
            raise ConflictError(f"{key} of {self.kind.name} exists")
        base = marker if planned is None else planned.base
        checked = await self._checked_create(key, value, base=base)
        new = value if checked is None else checked
        return self._plan(key, new, None, planned, base=base, fresh=True)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        self._guard.check(self.kind)
        current, planned = await self._expected(key, revision)
        base, fresh = (revision, False) if planned is None else (planned.base, planned.fresh)
        fresh = fresh or not isinstance(current, Stored)
        if fresh:
            checked = await self._checked_create(key, value, base=base)
        else:
            checked = await self._checked(lambda stored: stored.update(key, value, revision=base))
        before = current.value if isinstance(current, Stored) else None
        new = value if checked is None else checked
        return self._plan(key, new, before, planned, base=base, fresh=fresh)

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        self._guard.check(self.kind)
        current, planned = await self._to_delete(key, revision, uid, purge=purge)
        base = current.revision if planned is None else planned.base
        if planned is None or not planned.fresh:
            await self._checked(
                lambda stored: stored.delete(key, revision=base, uid=uid, purge=purge)
            )
        return self._remove(current, planned, base=base, purge=purge)

    def _remove(
        self, current: State, planned: PlannedState | None, *, base: int, purge: bool
    ) -> int:
        self._expect_planned(current.key, planned)
        deleted = self._overlay.remove(current.key, base=base, purged=purge)
        if isinstance(current, Stored):
            self._wrote(current.key, current.value, None)
        return deleted.revision

    def _plan(
        self,
        key: str,
        value: bytes,
        before: bytes | None,
        planned: PlannedState | None,
        *,
        base: int,
        fresh: bool,
    ) -> Stored:
        """Plan the value of an object whose present planned state is *planned*."""
        self._expect_planned(key, planned)
        stored = self._overlay.put(
            key, lambda revision: self._numbered(value, revision), base=base, fresh=fresh
        )
        self._wrote(key, before, stored.value)
        return stored

    def _wrote(self, key: str, before: bytes | None, after: bytes | None) -> None:
        if self._record is not None:
            self._record.wrote(self._overlay.place, self.kind, key, before, after)

    def _numbered(self, value: bytes, revision: int) -> bytes:  # noqa: ARG002 - NATS keeps the revision apart
        """Return the value as the store would return it at the planned revision."""
        return value

    # ---- checks of the store below

    async def _checked(self, write: Callable[[Store], Awaitable[Any]]) -> bytes | None:
        """Send a dry run; return the value that the server would store, None if it has none."""
        if self._stored is None:
            return None
        try:
            answer = await write(self._stored)
        except NotStoredError:
            return None
        return answer.value if isinstance(answer, Stored) else None

    async def _checked_create(self, key: str, value: bytes, *, base: int) -> bytes | None:  # noqa: ARG002 - of a deleted object
        return await self._checked(lambda stored: stored.create(key, value))

    # ---- watch

    @asynccontextmanager
    async def watch(
        self,
        shown: Collection[str] | None = None,  # noqa: ARG002 - the store has fewer keys
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        below = aclosing(self._missing()) if self._stored is None else self._stored.watch()
        with self._overlay.subscribed() as inbox:
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
            for event in self._show(await inbox.next()):
                yield event

    def _show(self, event: WatchEvent) -> Iterator[WatchEvent]:
        """Yield what a watch shows for an event of the store or of the plan."""
        overlay = self._overlay
        match event:
            case Applied(Stored(key=key, revision=revision)) | Deleted(key=key, revision=revision):
                if planned_revision(revision):
                    if overlay.holds(key, revision):
                        yield from self._planned_event(event)
                elif not overlay.entries or overlay.supersedes(key, revision):
                    yield event
            case Listed(revision=revision):
                newest = revision
                for planned in list(overlay.entries.values()):
                    yield from self._planned_event(_event(planned.state))
                    newest = max(newest, planned.state.revision)
                yield Listed(newest)
            case _:
                yield event

    def _planned_event(self, event: Applied | Deleted) -> Iterator[WatchEvent]:
        """Yield the event of a planned state, unless the object belongs to another kind."""
        if self.kind.holds(event.stored.key if isinstance(event, Applied) else event.key):
            yield event

    # ---- states

    async def _get_stored(self, key: str) -> Stored:
        if self._stored is None:
            raise NotFoundError(f"{self.kind.name} has no {key}")
        return await self._stored.get(key)

    async def _expected(self, key: str, revision: int) -> tuple[State | None, PlannedState | None]:
        """Return the state that an update replaces; raises `ConflictError` for another revision.

        It is None if a delete marker of the store has the revision.
        """
        planned = self._overlay.entries.get(key)
        if planned is not None:
            current: State | None = planned.state
            newest = planned.state.revision
        else:
            try:
                current = await self._get_stored(key)
                newest = current.revision
            except NotFoundError as missing:
                current, newest = None, missing.deleted_at or 0
        if newest != revision:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        return current, planned

    async def _to_delete(
        self,
        key: str,
        revision: int | None,
        uid: str,  # noqa: ARG002 - a revision is of one object only
        *,
        purge: bool,
    ) -> tuple[State, PlannedState | None]:
        """Return the state that a deletion removes."""
        if revision is not None:
            current, planned = await self._expected(key, revision)
            return Deleted(key, revision) if current is None else current, planned
        planned = self._overlay.entries.get(key)
        try:
            return await self.get(key), planned
        except NotFoundError as missing:
            if not purge or missing.deleted_at is None:
                raise
            return Deleted(key, missing.deleted_at), planned

    def _expect_planned(self, key: str, planned: PlannedState | None) -> None:
        """Raise `ConflictError` if another sync has planned a state of the key since."""
        if self._overlay.entries.get(key) is not planned:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        if self._record is not None:
            self._record.check(self._overlay.place, self.kind, key)

    def _not_found(self, deleted: Deleted) -> NotFoundError:
        return NotFoundError(
            f"{self.kind.name} has no {deleted.key}: the plan deletes it",
            deleted_at=deleted.revision,
        )


def _event(state: State) -> Applied | Deleted:
    return Applied(state) if isinstance(state, Stored) else state
