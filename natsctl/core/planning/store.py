"""A store whose writes stay in memory, above the stored objects."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

from natsctl.core.planning.overlay import HISTORY_MAX, Inbox, Overlay, PlannedState, State
from natsctl.core.planning.record import PlanRecord
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
    Applied,
    Deleted,
    Listed,
    Listing,
    Sequenced,
    Store,
    Stored,
    WatchEvent,
    planned_revision,
)
from natsctl.model.write_guard import UNGUARDED, WriteGuard

MISSING = "missing"  # the incarnation of a store that does not exist
ENDED = "the watch of the store has ended"
REOPEN_S = 5.0  # between two attempts to open a store that does not exist


async def still_missing() -> Store | None:
    """Return None: the store does not appear."""
    return None


class PlanningStore:
    """The objects of one kind, with planned writes in an overlay; a `Store`.

    *Guarantees.* No write is stored. A write is accepted or rejected as the store would do it: a
    stored object is compared at the store's leader, a planned one in the overlay. Reads and watches
    of all stores over the same overlay show the planned writes. If another client changes an object
    in the store, its planned state is dropped.

    Args:
        stored: the store below, whose writes are dry runs; None if it does not exist.
        record: records every planned write; None for natsctl's own records.
        reopen: returns the store below if it exists now.
    """

    def __init__(
        self,
        kind: Kind[Any],
        stored: Store | None,
        overlay: Overlay,
        record: PlanRecord | None,
        *,
        guard: WriteGuard = UNGUARDED,
        reopen: Callable[[], Awaitable[Store | None]] = still_missing,
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
        if planned is not None and _purged(planned.states[0]):
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
            await self._checked_delete(key, base, uid=uid, purge=purge)
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

    async def _checked_delete(self, key: str, base: int, *, uid: str, purge: bool) -> None:
        await self._checked(lambda stored: stored.delete(key, revision=base, uid=uid, purge=purge))

    # ---- watch

    @asynccontextmanager
    async def watch(
        self,
        shown: Collection[str] | None = None,  # noqa: ARG002 - the store has fewer keys
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        async with AsyncExitStack() as stack:
            inbox = stack.enter_context(self._overlay.subscribed())
            stored = aclosing(self._missing()) if self._stored is None else self._stored.watch()
            events: AsyncIterator[WatchEvent] = await stack.enter_async_context(stored)
            forward = await stack.enter_async_context(_forwarding(events, inbox))
            yield await stack.enter_async_context(aclosing(self._events(events, forward, inbox)))

    async def _missing(self) -> AsyncGenerator[WatchEvent, None]:
        """Yield an empty list, and the events of the store as soon as it exists."""
        yield Listing(MISSING)
        yield Listed(0)
        while self._stored is None:
            await asyncio.sleep(REOPEN_S)
            self._stored = await self._reopen()
        async with self._stored.watch() as events:
            async for event in events:
                yield event

    async def _events(
        self, stored: AsyncIterator[WatchEvent], forward: Callable[[], None], inbox: Inbox
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield the list and the changes of the store, and the planned changes.

        The first list bypasses the inbox, because the end of a list shows every planned state.
        """
        inbox.busy, overlay = True, self._overlay
        async for event in stored:
            if isinstance(event, Listed):
                break
            if overlay.entries:
                for shown in self._show(event):
                    yield shown
            else:
                yield event
        else:
            raise WatchBrokenError(ENDED)
        inbox.clear()
        forward()
        while True:
            for shown in self._show(event):
                yield shown
            following = await inbox.next()
            if isinstance(following, StoreError):
                raise following
            event = following

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


@asynccontextmanager
async def _forwarding(
    events: AsyncIterator[WatchEvent], inbox: Inbox
) -> AsyncIterator[Callable[[], None]]:
    """Yield a function that begins to forward events to the inbox, until the context ends."""

    async def forward() -> None:
        try:
            async for event in events:
                await inbox.add_stored(event)
        except StoreError as error:
            inbox.add(error)
        else:
            inbox.add(WatchBrokenError(ENDED))

    async with together() as group:
        tasks: list[asyncio.Task[None]] = []
        try:
            yield lambda: tasks.append(group.create_task(forward(), name="changes below a plan"))
        finally:
            for task in tasks:
                task.cancel()


def _event(state: State) -> Applied | Deleted:
    return Applied(state) if isinstance(state, Stored) else state


def _purged(state: State) -> bool:
    return isinstance(state, Deleted) and state.purged
