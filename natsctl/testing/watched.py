"""Watches, injected faults, guarded writes and events, which all stores in memory have."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.errors import StoreError, WatchBrokenError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import Reference
from natsctl.model.store import EventType, Guarded, SyncNote, WatchEvent, WriteGuard

ChangeT = TypeVar("ChangeT")
KindT = TypeVar("KindT", bound=Kind[Any])


class WatchedObjects(Generic[ChangeT]):
    """The open watches of some objects, the fault that every call meets, and counters."""

    def __init__(self) -> None:
        self.watches: dict[asyncio.Queue[ChangeT | None], None] = {}  # in the order of opening
        self.failure: StoreError | None = None
        self.losses = 0  # of the proof that a watch can continue
        self.revision = 0
        self.writes = 0

    @property
    def delivered(self) -> bool:
        """True if every open watch has yielded every change."""
        return all(watch.empty() for watch in self.watches)

    def notify(self, change: ChangeT | None) -> None:
        """Show a change to every open watch; None ends them."""
        for watch in self.watches:
            watch.put_nowait(change)

    @contextmanager
    def queue(self) -> Iterator["asyncio.Queue[ChangeT | None]"]:
        """Open a watch, and yield the queue of its changes."""
        watch = asyncio.Queue[ChangeT | None]()
        self.watches[watch] = None
        try:
            yield watch
        finally:
            del self.watches[watch]


class WatchedStore(ABC, Generic[KindT, ChangeT]):
    """The base of a store in memory of one kind, which yields to other tasks as a real store does.

    `break_watches` and `fail` inject faults.
    """

    def __init__(self, kind: KindT, objects: WatchedObjects[ChangeT], guard: WriteGuard) -> None:
        self.kind = kind
        self._guard = guard
        self._watched = objects

    @asynccontextmanager
    async def watch(
        self, shown: Collection[str] | None = None
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        await self._pass()
        with self._watched.queue() as queue:
            async with aclosing(self._events(queue, shown, self._first_events(shown))) as events:
                yield events

    @property
    def writes(self) -> int:
        """The number of writes that changed an object."""
        return self._watched.writes

    @property
    def watches(self) -> int:
        return len(self._watched.watches)

    def break_watches(self, *, listed: bool = False) -> None:
        """End every watch with `WatchBrokenError`, as a lost connection does.

        If *listed*, none of the next watches can continue, as if the messages that they have seen
        last were gone.
        """
        self._watched.losses += listed
        self._watched.notify(None)

    def forget(self) -> None:
        """Let the next watch of this store list again."""

    def fail(self, error: StoreError | None) -> None:
        """Raise *error* from every call until this is called with None; also end every watch."""
        self._watched.failure = error
        if error is not None:
            self.break_watches()

    @abstractmethod
    def _listing(self) -> Iterable[WatchEvent]:
        """Return the first events of a watch."""

    def _first_events(
        self,
        shown: Collection[str] | None,  # noqa: ARG002 - for a store that continues a watch
    ) -> list[tuple[WatchEvent, ChangeT | None]]:
        """Return the first events of a watch of this view, each with its change."""
        return [(event, None) for event in self._listing()]

    def _was_taken(
        self, shown: Collection[str] | None, event: WatchEvent, change: ChangeT | None
    ) -> None:
        """Note that the reader with this view has taken an event, which may show a change."""

    @abstractmethod
    def _event(self, change: ChangeT) -> WatchEvent | None:
        """Return the event of a change; None if the store does not show it."""

    async def _pass(self, *, writes: bool = False) -> None:
        """Yield to other tasks; raise the injected fault, if any."""
        await asyncio.sleep(0)
        if self._watched.failure is not None:
            raise self._watched.failure.with_traceback(None)
        if writes:
            self._guard.check(self.kind)

    async def _events(
        self,
        queue: "asyncio.Queue[ChangeT | None]",
        shown: Collection[str] | None,
        first: Iterable[tuple[WatchEvent, ChangeT | None]],
    ) -> AsyncGenerator[WatchEvent, None]:
        for event, change in first:
            yield event
            self._was_taken(shown, event, change)
        while (change := await queue.get()) is not None:
            shown_event = self._event(change)
            if shown_event is not None:
                yield shown_event
                self._was_taken(shown, shown_event, change)
        raise WatchBrokenError(f"the watch of {self.kind.name} was broken")


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event that a controller recorded about the object `key`."""

    key: str
    type: EventType
    reason: str
    message: str
    regarding: tuple[Reference, ...] = ()
    sync: SyncNote | None = None


class MemoryRecorder(Guarded):
    """Keeps events in a list, which guarded recorders share; a `Recorder`."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
        *,
        sync: SyncNote | None = None,
    ) -> None:
        if self.guard.may_record(key):
            about = tuple(regarding)
            self.events.append(RecordedEvent(key, type, reason, message, about, sync))

    async def past_failures(self, key: str, handler: str = "") -> int:
        notes = (event.sync for event in self.events if event.key == key)
        syncs = [note for note in notes if note is not None and note.handler == handler]
        return syncs[-1].failures if syncs else 0
