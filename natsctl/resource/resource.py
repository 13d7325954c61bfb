"""One kind as streams of events that subscribers mark as done, and as a read-only store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    suppress,
)
from enum import StrEnum
from functools import partial
from traceback import extract_stack
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

import msgspec

from natsctl.core.history import HandlerFailures
from natsctl.core.informer import Informer
from natsctl.core.pauses import PausedKeys
from natsctl.core.retry import (
    Decision,
    Drop,
    ExponentialLimiter,
    RetryPolicy,
    Stop,
    TokenBucket,
    always_retry,
)
from natsctl.core.sync import Sync, blocking, failure_of
from natsctl.core.table import Table
from natsctl.core.task_group import together
from natsctl.core.workqueue import Failed, Priority, WorkQueue
from natsctl.errors import (
    EventNotDoneError,
    InvalidObjectError,
    QueueShutDownError,
    StoppedError,
    UsageError,
)
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeMetadata, joined
from natsctl.model.store import Change, Stored, Stores
from natsctl.slices import Slices
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")


class Key(str):
    """A key: a string with `name` and `namespace`; `team/shop` is `shop` in namespace `team`.

    A key without a slash has no namespace. The key of a sync event is empty.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.rpartition("/")[2]

    @property
    def namespace(self) -> str:
        """The part before the last slash; empty if there is no slash."""
        return self.rpartition("/")[0]


class EventKind(StrEnum):
    """The kind of an event: the first list is complete, an object exists, or it is deleted."""

    SYNC = "sync"
    UPSERT = "upsert"
    DELETE = "delete"


class Event(Generic[T]):
    """An event; the stream delivers no other event of its key until this one is done.

    `async with event:` marks the event done when the block ends. If the block raises, the event has
    failed, and the exception does not propagate, `SystemExit` included. A cancellation or Ctrl-C
    propagates, and the event returns to the queue. `done` marks the event by hand, at any time and
    from any task. Mark each event exactly once: a stream fails if an event is garbage-collected
    before that.

    `key` is empty for a sync event.
    """

    __slots__ = ("_object", "_run", "_stream", "key", "kind")

    def __init__(self, kind: EventKind, key: Key, obj: T | None, stream: "EventStream[T]") -> None:
        self.kind, self.key, self._object = kind, key, obj
        self._stream: EventStream[T] | None = stream  # None once it's marked done

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key}>" if self.key else f"<{self.kind}>"

    @property
    def object(self) -> T:
        """The object; for a delete, the last state that this subscriber received.

        Raises `UsageError` for a sync event, which has no object.
        """
        if self.kind is EventKind.SYNC:
            raise UsageError("a sync event has no object: check the event's kind first")
        return self._object  # type: ignore[return-value]  # T may itself include None

    def done(self, error: Exception | None = None) -> None:
        """Mark the event as handled, or as failed with *error*.

        After a failure, the stream's error handler decides: retry the key with its newest state,
        drop the key until it changes, or stop the stream. `RetryAfter` and `PermanentError` have
        the same effect as in a sync handler. After you've left the stream's context, this does
        nothing. Raises `UsageError` at the second call.
        """
        stream, self._stream = self._stream, None
        if stream is None:
            raise UsageError(f"{self!r} is already marked done")
        stream.settle(self.kind, self.key, error)

    async def __aenter__(self) -> Self:
        self._run = Sync(self.key, self.kind)
        self._run.task = asyncio.current_task()
        self._run.begin_call()
        self._run.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        run = self._run
        try:
            if run.has_threads:
                await run.threads.ended()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            run.end_call()
            run.__exit__(kind, error, traceback)
            passes = self._stream is None or self._mark(error)
        return not passes

    def _mark(self, error: BaseException | None) -> bool:
        """Mark the event after its block; return whether the error must propagate."""
        failure = None
        if error is not None and not isinstance(error, KeyboardInterrupt):
            failure = failure_of(error, asyncio.current_task())
        if error is None or failure is not None:
            self.done(failure)
            return False
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.restore(self.key)
        return True

    def __del__(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.lose(self.kind, self.key)


ErrorAction: TypeAlias = Decision
"""`Retry`; `Drop`, which ignores the failure; or `Stop`, which ends the stream."""


class PerKey(msgspec.Struct, frozen=True):
    """An error handler that depends on the key, which is empty for a sync event.

    Example:
        PerKey(lambda key: always_retry if key.namespace == "kube-system" else give_up_after(3))
    """

    policy_of: Callable[[Key], RetryPolicy]


ErrorHandler: TypeAlias = RetryPolicy | PerKey
"""Returns the `ErrorAction` for an error and the key's number of failures in a row, from 1."""

RateLimiter: TypeAlias = ExponentialLimiter[str] | TokenBucket
"""The backoff of a failing key, or a limit on all retries of the stream."""


class EventStream(Generic[T]):
    """The events of one subscriber, for `async for` in any number of tasks.

    The stream ends if its error handler returns `Stop`, or if the resource is left or stopped.
    """

    def __init__(
        self, kind: Kind[T], handler: ErrorHandler, limiter: RateLimiter | None, made_at: str
    ) -> None:
        self._kind, self._error_handler, self._made_at = kind, handler, made_at
        self._queue = (
            WorkQueue[str](bucket=limiter)
            if isinstance(limiter, TokenBucket)
            else WorkQueue[str](limiter=limiter)
        )
        self._delivered: dict[str, Stored] = {}  # the state of each key's last upsert
        self._table: Table[T] | None = None  # None until there is an informer
        self._paused = PausedKeys(self._queue)
        self._following = ExitStack()
        self._failures = HandlerFailures(log)
        self._lost = ""  # names an event that was never marked done
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._slices = Slices()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event[T]:
        if self._slices.is_over():
            await self._slices.pause()  # neither the iteration nor the handling need to suspend
        while True:
            self.check()
            try:
                key = Key((await self._queue.take()).key)
            except QueueShutDownError:
                self.check()
                raise StopAsyncIteration from None
            if self._paused.pauses and self._paused.holds_back(key):
                self._queue.give_back(key)
            elif (event := self._event(key)) is not None:
                return event
            else:
                self._queue.settle(key)  # created and deleted in between

    # ---- for the resource and the events

    async def follow(self, informer: Informer[T]) -> None:
        """Enqueue every cached object, and every later change until `close`."""
        self._table = informer.table
        self._paused.follow((informer,), outlast=False)
        await informer.add(self._enqueue_changed)
        self._following.callback(informer.remove, self._enqueue_changed)
        if self._closed:
            self._following.close()

    def add_sync_event(self) -> None:
        """Enqueue the sync event, after every object of the first list."""
        self._queue.offer(Key(), priority=Priority.RESYNC)

    def check(self) -> None:
        if self._lost:
            raise EventNotDoneError(self._lost)

    def settle(self, kind: EventKind, key: Key, error: Exception | None) -> None:
        if self._closed:
            return
        if error is None:
            self._queue.settle(key)
        else:
            fields = {"kind": self._kind.name, "type": kind.value, "key": key or None}
            failures = self._queue.failures(key) + 1
            self._failures.failed("event failed", error, failures, **fields)
            self._queue.settle(key, Failed(error), partial(self._decide, key, fields))
        final = error is None or self._queue.work(key) is None  # a dropped key is in no queue
        if kind is EventKind.DELETE and final:
            self._delivered.pop(key, None)
            if self._cached(key) is not None:
                self._queue.offer(key)  # a new object with its key

    def restore(self, key: Key) -> None:
        """Return an event that was not handled to the queue."""
        if not self._closed:
            self._queue.offer(key)  # it's delivered again before other events
            self._queue.give_back(key)

    def lose(self, kind: EventKind, key: Key) -> None:
        """Record that an event can never be marked done; called in any thread at any time."""
        if self._closed or self._lost:
            return
        event = f"{kind} of {key}" if key else kind
        self._lost = (
            f"{self._kind.name}: the {event} was dropped without done(), "
            f"by a reader of the events() of {self._made_at}"
        )
        with suppress(RuntimeError):  # the loop is closed, and nothing waits for the event
            self._loop.call_soon_threadsafe(self._queue.shut_down)

    def close(self) -> None:
        """Deliver no more events; events that were delivered need not be marked done."""
        self._closed = True
        self._following.close()
        self._queue.shut_down()
        self._paused.pauses.close()
        self._delivered.clear()

    def _enqueue_changed(self, change: Change[T]) -> None:
        self._paused.observe(change)
        priority = Priority.RESYNC if change.initial else Priority.USER
        self._queue.offer(change.key, priority=priority)

    def _event(self, key: Key) -> Event[T] | None:
        """Return the event that is due; None if the object was neither delivered nor exists."""
        if not key:
            return Event(EventKind.SYNC, key, None, self)
        delivered, cached = self._delivered.get(key), self._cached(key)
        if cached is not None and (delivered is None or not self._replaced(delivered, cached)):
            self._delivered[key] = cached
            return Event(EventKind.UPSERT, key, self._kind.decode(cached.value), self)
        if delivered is not None:
            return Event(EventKind.DELETE, key, self._kind.decode(delivered.value), self)
        return None

    def _cached(self, key: Key) -> Stored | None:
        return None if self._table is None else self._table.get(key)

    def _replaced(self, delivered: Stored, cached: Stored) -> bool:
        if self._kind.plain:
            return False
        try:
            uids = {self._kind.metadata(state.value).uid for state in (delivered, cached)}
        except InvalidObjectError:
            return False
        return len(uids - {""}) > 1

    def _decide(
        self, key: Key, fields: Mapping[str, Any], error: Exception, failures: int
    ) -> ErrorAction:
        handler = self._error_handler
        policy = handler.policy_of(key) if isinstance(handler, PerKey) else handler
        action = policy(error, failures)
        if isinstance(action, Drop):
            log.error("dropping an event until its object changes", **fields)
        elif isinstance(action, Stop):
            log.error("ending the stream after a failed event", **fields)
        return action


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
            name = self._kind.name
            raise UsageError(f"objects of {name} do not contain their key: use get_by_key")
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
        self.kind, self._stores = kind, stores
        self._informer: Informer[T] | None = None
        self._streams: list[EventStream[T]] = []
        self._synced = asyncio.Event()  # the first list is complete
        self._lifetime = AsyncExitStack()
        self._group: asyncio.TaskGroup | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False

    async def __aenter__(self) -> Self:
        if self._group is not None:
            name = self.kind.name
            raise UsageError(f"the resource of {name} cannot be entered twice: make a new one")
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
        self, handler: ErrorHandler, limiter: RateLimiter | None, made_at: str
    ) -> AsyncIterator[EventStream[T]]:
        self._watch()
        stream = EventStream(self.kind, handler, limiter, made_at)
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
