"""A reconciler that forwards watchers to the work queue of another runtime."""

from collections.abc import Callable
from typing import Self

import msgspec

from natsctl.core.workqueue import WorkQueue
from natsctl.dynamic.objects import ObjectIdentifier
from natsctl.errors import QueueShutDownError


class GenericEvent(msgspec.Struct, frozen=True):
    """An object that `object` watches was created, changed or deleted."""

    object: ObjectIdentifier


class EventSource:
    """The watchers that a `ControllerRuntimeSourceReconciler` receives, for `async for`.

    Pending events of the same watcher are merged. The iteration ends after `close`.
    """

    def __init__(self) -> None:
        self._queue = WorkQueue[ObjectIdentifier]()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GenericEvent:
        try:
            watcher = (await self._queue.take()).key
        except QueueShutDownError:
            raise StopAsyncIteration from None
        self._queue.settle(watcher)
        return GenericEvent(watcher)

    def send(self, watcher: ObjectIdentifier) -> None:
        """Add an event for *watcher*; does nothing after `close`."""
        self._queue.offer(watcher)

    def close(self) -> None:
        """End the iteration after the pending events."""
        self._queue.shut_down(drain=True)

    async def feed(self, enqueue: Callable[[str], None]) -> None:
        """Call *enqueue* with the key of each watcher until `close`.

        Example:
            await source.feed(lambda key: runtime.enqueue_key(key, Operation.SECONDARY))
        """
        async for event in self:
            enqueue(event.object.key)


class ControllerRuntimeSourceReconciler:
    """Forwards every watcher to its source; see `controller_runtime_source`."""

    def __init__(self, source: EventSource) -> None:
        self._source = source

    async def reconcile(self, watcher: ObjectIdentifier) -> float | None:
        """Forward *watcher*; returns None."""
        self._source.send(watcher)
        return None


def controller_runtime_source() -> tuple[ControllerRuntimeSourceReconciler, EventSource]:
    """Return a reconciler for a `DynamicWatcher`, and the source of the watchers it receives.

    With them, a change of an object on which a primary depends enqueues the primary.

    Example:
        reconciler, source = controller_runtime_source()
        watcher = DynamicWatcher(reconciler, nats=nats)
        ...
        await source.feed(lambda key: runtime.enqueue_key(key, Operation.SECONDARY))

    Seed: stolostron kubernetes-dependency-watches v0.5.2, `NewControllerRuntimeSource`.
    """
    source = EventSource()
    return ControllerRuntimeSourceReconciler(source), source
