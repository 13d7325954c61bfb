"""The events of a stream: which one its subscriber gets next, and what follows from its outcome."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack, suppress
from enum import StrEnum
from functools import partial
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
)
from natsctl.core.sync import Sync, failure_of
from natsctl.core.table import Table
from natsctl.core.workqueue import Failed, Priority, WorkQueue
from natsctl.errors import EventNotDoneError, InvalidObjectError, QueueShutDownError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.store import Change, Stored
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
        self.kind = kind
        self.key = key
        self._object = obj
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

    Args:
        kind: the kind of the objects.
        error_handler: what follows a failed event.
        rate_limiter: how long a failing key waits.
        made_at: the line of code that made the stream, for errors.
    """

    def __init__(
        self,
        kind: Kind[T],
        *,
        error_handler: ErrorHandler,
        rate_limiter: RateLimiter | None,
        made_at: str,
    ) -> None:
        self._kind, self._error_handler, self._made_at = kind, error_handler, made_at
        self._queue = (
            WorkQueue[str](bucket=rate_limiter)
            if isinstance(rate_limiter, TokenBucket)
            else WorkQueue[str](limiter=rate_limiter)
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
        """Settle an event that was handled or failed."""
        if self._closed:
            return
        if error is None:
            self._queue.settle(key)
        else:
            failures = self._queue.failures(key) + 1
            self._failures.failed("event failed", error, failures, **self._fields(kind, key))
            self._queue.settle(key, Failed(error), partial(self._decide, kind, key))
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

    def _decide(self, kind: EventKind, key: Key, error: Exception, failures: int) -> ErrorAction:
        handler, fields = self._error_handler, self._fields(kind, key)
        policy = handler.policy_of(key) if isinstance(handler, PerKey) else handler
        action = policy(error, failures)
        if isinstance(action, Drop):
            log.error("dropping an event until its object changes", **fields)
        elif isinstance(action, Stop):
            log.error("ending the stream after a failed event", **fields)
        return action

    def _fields(self, kind: EventKind, key: Key) -> dict[str, Any]:
        return {"kind": self._kind.name, "type": kind.value, "key": key or None}
