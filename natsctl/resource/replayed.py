"""Delivers a recorded event as the only event of a stream, for a replay."""

import asyncio
from typing import Generic, TypeVar

from natsctl.core.cache.informer import Informer
from natsctl.core.insight.program import ProgramHistory
from natsctl.core.objects.sync import Sync
from natsctl.core.recording.recordings import Delivery
from natsctl.core.recording.redelivery import Redelivery
from natsctl.errors import EventNotDoneError, QueueShutDownError, StoppedError
from natsctl.model.kinds import Kind
from natsctl.resource.event import SYNC_KEY, Event, EventKind, Key

T = TypeVar("T")


class ReplayedSubscription(Generic[T]):
    """The subscription of a stream in a replay; an `Origin` of its event.

    Args:
        kind: the kind of the objects.
        stream: the name of the stream.
        history: the history of the program, which gives the event its tape.
        redelivery: the event; another stream may deliver it.
    """

    def __init__(
        self, kind: Kind[T], stream: str, history: ProgramHistory, redelivery: Redelivery
    ) -> None:
        self.stream = stream
        self._kind = kind
        self._history = history
        self._redelivery = redelivery
        self._informer: asyncio.Future[Informer[T]] = asyncio.get_running_loop().create_future()
        self._closed = asyncio.Event()
        self._delivered = False

    async def follow(self, informer: Informer[T]) -> None:
        """See `Subscription.follow`."""
        self._informer.set_result(informer)

    def add_sync_event(self) -> None:
        """See `Subscription.add_sync_event`; a replay has one event."""

    async def next(self) -> Event[T]:
        """Return the event, if it is of this stream; then wait until `close`."""
        informer = await asyncio.shield(self._informer)
        await informer.cache.synced.wait()
        change = self._redelivery.delivery
        name = self._history.slot_of(informer), self.stream
        if (
            self._delivered
            or not isinstance(change, Delivery)
            or (change.resource_kind, change.watcher) != name
        ):
            await self._closed.wait()
            raise QueueShutDownError("the replay has no further event")
        self._delivered = True
        return self._event(change)

    def _event(self, change: Delivery) -> Event[T]:
        kind, stored = EventKind(self._redelivery.operation), change.after or change.before
        key = Key() if self._redelivery.key == SYNC_KEY else Key(self._redelivery.key)
        obj = None if stored is None else self._kind.decode(stored.value)
        run = self._history.begin(self._redelivery.key, kind.value, stored, delivery=change)
        self._redelivery.begin(self._history.informers)
        return Event(kind, key, obj, self, run)

    def check(self) -> None:
        """See `Subscription.check`; an event that is lost is the outcome of the replay."""

    def settle(
        self,
        kind: EventKind,  # noqa: ARG002 - the protocol's signature
        key: Key,  # noqa: ARG002 - the protocol's signature
        error: Exception | None,
        run: Sync | None,  # noqa: ARG002 - the protocol's signature
    ) -> None:
        """See `Origin.settle`."""
        self._redelivery.end(None, error)

    def restore(self, key: Key) -> None:
        """See `Origin.restore`."""
        self._redelivery.end(None, StoppedError(f"the event of {key} was cancelled"))

    def lose(self, kind: EventKind, key: Key) -> None:
        """See `Origin.lose`."""
        lost = EventNotDoneError(f"the {kind} of {key} was dropped without done()")
        self._redelivery.end(None, lost)

    def close(self) -> None:
        """See `Subscription.close`."""
        self._closed.set()
