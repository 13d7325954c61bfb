"""Keeps the planned states of objects above the stored ones, and delivers them to watches."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

import msgspec

from natsctl.core.planning.record import PlanRecord
from natsctl.errors import StoreError
from natsctl.model.store import FIRST_PLANNED, Applied, Deleted, Stored, WatchEvent

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
    """The events that a watch has not delivered yet."""

    def __init__(self) -> None:
        self.busy = False  # whether the reader works on an event
        self._events: deque[WatchEvent | StoreError] = deque()
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def empty(self) -> bool:
        """True if the reader has taken every event and waits for the next one."""
        return not (self._events or self.busy)

    def add(self, event: WatchEvent | StoreError) -> None:
        """Add an event of the plan, or the end of the watch."""
        self._events.append(event)
        self._arrived.set()

    async def add_stored(self, event: WatchEvent) -> None:
        """Add an event of the store; waits while the reader is behind."""
        while len(self._events) >= BUFFER_MAX:
            self._taken.clear()
            await self._taken.wait()
        self.add(event)

    def clear(self) -> None:
        """Drop the events."""
        self._events.clear()

    async def next(self) -> WatchEvent | StoreError:
        """Wait for the next event and return it."""
        self.busy = False
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        self.busy = True
        self._taken.set()
        return self._events.popleft()


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
