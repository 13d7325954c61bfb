"""A reconciler that hands every watcher on, to the queue of another runtime."""

from collections.abc import Callable
from typing import Self

import msgspec

from natsctl.core.queue.workqueue import Workqueue
from natsctl.dynamic.identifier import ObjectIdentifier
from natsctl.errors import QueueShutDownError


class GenericEvent(msgspec.Struct, frozen=True):
    """Something that `object` watches has come, changed or gone."""

    object: ObjectIdentifier


class EventSource:
    """What a `ControllerRuntimeSourceReconciler` is told, to be iterated with `async for`.

    Events of one watcher that nobody has taken yet are one. It ends once it is closed.
    """

    def __init__(self) -> None:
        self._queue = Workqueue[ObjectIdentifier]()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenericEvent:
        try:
            watcher = await self._queue.get()
        except QueueShutDownError:
            raise StopAsyncIteration from None
        self._queue.done(watcher)
        return GenericEvent(watcher)

    def send(self, watcher: ObjectIdentifier) -> None:
        """Have it told; ignored once closed."""
        self._queue.add(watcher)

    def close(self) -> None:
        """Tell what was sent, and then no more."""
        self._queue.shut_down(drain=True)

    async def feed(self, enqueue: Callable[[str], None]) -> None:
        """Call *enqueue* with the key of each watcher, until closed or cancelled.

        Example:
            await source.feed(lambda key: runtime.enqueue_key(key, Operation.SECONDARY))
        """
        async for event in self:
            enqueue(event.object.key)


class ControllerRuntimeSourceReconciler:
    """Sends every watcher that it is called for to its source; see `controller_runtime_source`."""

    def __init__(self, source: EventSource) -> None:
        self._source = source

    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Send it, and be done."""
        self._source.send(watcher)
        return None


def controller_runtime_source() -> tuple[ControllerRuntimeSourceReconciler, EventSource]:
    """Return a reconciler for a `DynamicWatcher`, and where what it is told comes out.

    So a controller is visited when what its objects depend on changes, too.

    Example:
        reconciler, source = controller_runtime_source()
        watcher = DynamicWatcher(reconciler, nats=nats)
        ...
        await source.feed(lambda key: runtime.enqueue_key(key, Operation.SECONDARY))

    Seed: stolostron kubernetes-dependency-watches v0.5.2, `NewControllerRuntimeSource`.
    """
    source = EventSource()
    return ControllerRuntimeSourceReconciler(source), source
