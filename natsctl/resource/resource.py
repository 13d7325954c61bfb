"""Watches one kind once, for any number of event streams and readers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from traceback import extract_stack
from types import TracebackType
from typing import Generic, Self, TypeVar

from natsctl.core.informer import Informer
from natsctl.core.retry import always_retry
from natsctl.core.sync import blocking
from natsctl.core.task_group import together
from natsctl.errors import StoppedError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeMetadata, joined
from natsctl.model.store import Stores
from natsctl.resource.stream import ErrorHandler, EventStream, Key, RateLimiter

T = TypeVar("T")


class ResourceStore(Generic[T]):
    """The newest objects that a resource's watch has received; read-only.

    Every read decodes its result from memory, so you can't change what others read. The
    seed calls this `Store`; in natsctl, a store is the system that keeps objects.
    """

    def __init__(self, informer: Informer[T]) -> None:
        self._table = informer.table
        self._kind: Kind[T] = informer.table.kind

    def __len__(self) -> int:
        return len(self._table)

    def get(self, obj: T) -> T | None:
        """Return the newest state of an object in a cluster, or None if it doesn't exist.

        Raises `UsageError` for an object without its own key, as all objects in NATS.
        """
        metadata = None if self._kind.plain else self._kind.metadata_of(obj)
        if not isinstance(metadata, KubeMetadata):
            raise UsageError(
                f"objects of {self._kind.name} do not contain their key: use get_by_key"
            )
        return self.get_by_key(joined(metadata.namespace, metadata.name))

    def get_by_key(self, key: str) -> T | None:
        """Return the object, or None if it doesn't exist."""
        stored = self._table.get(key)
        return None if stored is None else self._kind.decode(stored.value)

    def iter_keys(self) -> Iterator[Key]:
        """Return the keys of all objects that exist now; later changes don't alter the iterator."""
        return map(Key, tuple(self._table.keys()))

    def list(self) -> list[T]:
        states = map(self._table.get, tuple(self._table.keys()))
        return [self._kind.decode(state.value) for state in states if state is not None]


class Resource(Generic[T]):
    """The objects of one kind, as streams of events and as a read-only store.

    Use it as `async with Resource(kind, stores) as resource:`. The first call of `events` or
    `store` opens the store and starts one watch, which all subscribers share. Leaving the context
    or calling `stop` ends the watch and every stream.

    Example:
        async with Resource(kv(Host, bucket="hosts"), stores) as resource:
            async with resource.events() as events:
                async for event in events:
                    async with event:
                        match event.kind:
                            case EventKind.UPSERT:
                                await serve(event.key, event.object)
                            case EventKind.DELETE:
                                await unserve(event.key)

    If the store can't be opened, the context ends with its `StoreError`. If the store is lost
    later, the watch waits for it and then delivers the changes since.

    Args:
        kind: a kind in NATS or Kubernetes.
        stores: the system that keeps its objects.
    """

    blocking = staticmethod(blocking)
    """Run a function that blocks in a thread: `await resource.blocking(function, *args)`.

    Inside `async with event`, the event is marked done after the thread has ended.
    """

    def __init__(self, kind: Kind[T], stores: Stores) -> None:
        self.kind = kind
        self._stores = stores
        self._informer: Informer[T] | None = None
        self._streams: list[EventStream[T]] = []
        self._synced = asyncio.Event()  # the first list is complete
        self._lifetime = AsyncExitStack()
        self._group: asyncio.TaskGroup | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        if self._group is not None:
            raise UsageError(
                f"the resource of {self.kind.name} cannot be entered twice: make a new one"
            )
        self._group = await self._lifetime.enter_async_context(together())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        await self._lifetime.__aexit__(kind, error, traceback)

    def stop(self) -> None:
        """End the watch and every stream; events that are being handled may finish."""
        self._stopped = True
        self._synced.set()
        for stream in self._streams:
            stream.close()
        if self._watching is not None:
            self._watching.cancel()

    def events(
        self,
        *,
        error_handler: ErrorHandler = always_retry,
        rate_limiter: RateLimiter | None = None,
    ) -> AbstractAsyncContextManager[EventStream[T]]:
        """Return a new stream, to be entered with `async with`.

        Args:
            error_handler: decides after `done(error)`: `always_retry`; `retry_up_to`, which ends
                the stream after some failures; `give_up_after`, which drops the key after some
                failures; or any `ErrorHandler`.
            rate_limiter: the backoff of a failing key, one for each stream. By default 5 ms,
                doubling to 1000 s, as in client-go. A `TokenBucket` also limits all retries.

        Guarantees:
            - A new stream delivers each existing object as an upsert, and then one sync event. The
              sync event follows the delivery of those upserts, not their completion.
            - The stream delivers one event of a key at a time. The next event has the newest
              state; intermediate states are skipped.
            - A failed upsert is retried as a delete if the object is gone, and a failed delete as
              an upsert if the object exists again.
            - A delete is delivered only for objects that were delivered, with the last delivered
              state. A recreated object, which has another uid, is a delete and then an upsert.
            - After a lost connection, the stream continues with the changes since.

        Entering raises `StoppedError` if the resource was stopped. Iterating or leaving raises
        `EventNotDoneError` if an event was garbage-collected before it was marked done.
        """
        caller = extract_stack(limit=2)[0]
        made_at = f"{caller.filename}:{caller.lineno}"
        return self._subscribed(error_handler, rate_limiter, made_at)

    async def store(self) -> ResourceStore[T]:
        """Wait for the first list, and return the objects for reading.

        It waits without a limit, so set a deadline. Raises `StoppedError` if the resource is left
        or stopped before.
        """
        self._watch()
        await self._synced.wait()
        if self._stopped or self._informer is None:
            raise StoppedError(
                f"the resource of {self.kind.name} was stopped before its first list was complete"
            )
        return ResourceStore(self._informer)

    @asynccontextmanager
    async def _subscribed(
        self,
        error_handler: ErrorHandler,
        rate_limiter: RateLimiter | None,
        made_at: str,
    ) -> AsyncIterator[EventStream[T]]:
        self._watch()
        stream = EventStream(
            self.kind, error_handler=error_handler, rate_limiter=rate_limiter, made_at=made_at
        )
        try:
            if self._informer is not None:  # otherwise `_run` connects them
                await stream.follow(self._informer)
            if self._stopped:
                stream.close()
            self._streams.append(stream)
            if self._synced.is_set():
                stream.add_sync_event()
            yield stream
            stream.check()
        finally:
            stream.close()
            with suppress(ValueError):  # it was cancelled before it was added
                self._streams.remove(stream)

    def _watch(self) -> None:
        if self._group is None:
            raise UsageError(f"the resource of {self.kind.name} must be used inside `async with`")
        if self._stopped:
            raise StoppedError(f"the resource of {self.kind.name} was stopped")
        if self._watching is None:
            name = f"watch of {self.kind.name}"
            self._watching = self._group.create_task(self._run(), name=name)

    async def _run(self) -> None:
        store = await self._stores.open(self.kind)
        self._informer = Informer(store, self.kind, on_listed=self._listed)
        await asyncio.gather(*(stream.follow(self._informer) for stream in self._streams))
        await self._informer.run()

    def _listed(self) -> None:
        if not self._synced.is_set():
            self._synced.set()
            for stream in self._streams:
                stream.add_sync_event()
