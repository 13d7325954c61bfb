"""Decides which event one subscriber receives next, and what follows from its result."""

import asyncio
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from natsctl.core.history import HandlerFailures
from natsctl.core.informer import Informer
from natsctl.core.pauses import PausedKeys
from natsctl.core.retry import Drop, Retry, Stop, TokenBucket
from natsctl.core.table import Cache
from natsctl.core.workqueue import Failed, Priority, WorkQueue
from natsctl.errors import (
    EventNotDoneError,
    InvalidObjectError,
    QueueShutDownError,
)
from natsctl.model.kinds import Kind
from natsctl.model.pause import Pause
from natsctl.model.store import Change, Stored
from natsctl.resource.event import Event, EventKind, Key
from natsctl.resource.failing import ErrorAction, ErrorHandler, RateLimiter, policy_for
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")

SYNC = Key()


class Subscription(Generic[T]):
    """One subscriber's queue of keys, and the last state of each; an `Origin` of its events.

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
        self._kind = kind
        self._error_handler = error_handler
        self._made_at = made_at
        self._queue = _queue(rate_limiter)
        self._delivered: dict[str, Stored] = {}  # the state of each key's last upsert
        self._cache: Cache[T] | None = None  # None until there is an informer
        self._paused = PausedKeys()
        self._paused.listen(self._resumed)
        self._following = ExitStack()
        self._failures = HandlerFailures(log)
        self._lost = ""  # names an event that was never marked done
        self._closed = False
        self._loop = asyncio.get_running_loop()

    async def follow(self, informer: Informer[T]) -> None:
        """Enqueue every cached object, and every later change until `close`."""
        self._cache = informer.cache
        self._paused.follow((informer,), outlast=False)
        await informer.add(self._enqueue_changed)
        self._following.callback(informer.remove, self._enqueue_changed)
        if self._closed:
            self._following.close()

    def add_sync_event(self) -> None:
        """Enqueue the sync event, after every object of the first list."""
        self._queue.offer(SYNC, priority=Priority.RESYNC)

    async def next(self) -> Event[T]:
        """Return the next event; its key is held until the event is settled.

        Raises `QueueShutDownError` if the stream was stopped or left, and `EventNotDoneError` if an
        event was lost.
        """
        while True:
            self.check()
            try:
                key = Key((await self._queue.take()).key)
            except QueueShutDownError:
                self.check()
                raise
            if self._paused.pauses and self._paused.holds_back(key):
                self._queue.give_back(key)
                continue
            event = self._event(key)
            if event is not None:
                return event
            self._queue.settle(key)  # created and deleted in between

    def check(self) -> None:
        """Raise `EventNotDoneError` if an event was lost."""
        if self._lost:
            raise EventNotDoneError(self._lost)

    def settle(self, kind: EventKind, key: Key, error: Exception | None) -> None:
        if self._closed:
            return
        if error is None:
            self._failures.succeeded(key)
            self._queue.settle(key)
        else:
            self._failures.failed(key, "event failed", error, **self._fields(kind, key))
            self._queue.settle(key, Failed(error), partial(self._decide, kind, key))
        final = error is None or self._queue.work(key) is None  # a dropped key is in no queue
        if kind is EventKind.DELETE and final:
            self._forget(key)

    def restore(self, key: Key) -> None:
        if not self._closed:
            self._queue.offer(key)  # it's delivered again before other events
            self._queue.give_back(key)

    def lose(self, kind: EventKind, key: Key) -> None:
        if self._closed or self._lost:
            return
        event = f"{kind} of {key}" if key else kind
        self._lost = (
            f"{self._kind.name}: the {event} was dropped without done(), "
            f"by a reader of the events() of {self._made_at}"
        )
        with suppress(RuntimeError):  # the loop is closed, and nothing waits for the event
            self._loop.call_soon_threadsafe(self._stop)

    def close(self) -> None:
        """Deliver no more events; events that were delivered need not be marked done."""
        self._closed = True
        self._following.close()
        self._stop()
        self._paused.close()
        self._delivered.clear()

    def _resumed(self, key: str, _pause: Pause, pending: bool) -> None:  # noqa: FBT001 - see `OnResumed`
        """Deliver the newest state of the object."""
        if pending:
            self._queue.offer(key)

    def _enqueue_changed(self, change: Change[T]) -> None:
        if self._paused.concerns(change):
            self._paused.observe(change)
        priority = Priority.RESYNC if change.initial else Priority.USER
        self._queue.offer(change.key, priority=priority)

    def _event(self, key: Key) -> Event[T] | None:
        """Return the event that is due; None if the object was neither delivered nor exists."""
        if key == SYNC:
            return Event(EventKind.SYNC, key, None, self)
        delivered, cached = self._delivered.get(key), self._cached(key)
        if cached is not None and (delivered is None or not self._replaced(delivered, cached)):
            self._delivered[key] = cached
            return Event(EventKind.UPSERT, key, self._kind.decode(cached.value), self)
        if delivered is not None:
            return Event(EventKind.DELETE, key, self._kind.decode(delivered.value), self)
        return None

    def _cached(self, key: Key) -> Stored | None:
        return None if self._cache is None else self._cache.get(key)

    def _replaced(self, delivered: Stored, cached: Stored) -> bool:
        """Return whether both states have a uid, and the uids differ."""
        before, after = self._uid(delivered), self._uid(cached)
        return bool(before and after) and before != after

    def _uid(self, stored: Stored) -> str:
        if self._kind.plain:
            return ""
        try:
            return self._kind.metadata(stored.value).uid
        except InvalidObjectError:
            return ""

    def _forget(self, key: Key) -> None:
        """Forget a deleted object; a new object with its key is delivered next."""
        self._delivered.pop(key, None)
        if self._cached(key) is not None:
            self._queue.offer(key)

    def _decide(self, kind: EventKind, key: Key, error: Exception, failures: int) -> ErrorAction:
        action = policy_for(key, self._error_handler)(error, failures)
        fields = self._fields(kind, key)
        match action:
            case Drop():
                log.error("dropping an event until its object changes", **fields)
            case Stop():
                log.error("ending the stream after a failed event", **fields)
            case Retry():
                pass
        return action

    def _fields(self, kind: EventKind, key: Key) -> dict[str, Any]:
        """Return the fields of a log line about an event; a sync event has no key."""
        return {"kind": self._kind.name, "type": kind.value, "key": key or None}

    def _stop(self) -> None:
        self._queue.shut_down(drain=False)


def _queue(rate_limiter: RateLimiter | None) -> WorkQueue[str]:
    if isinstance(rate_limiter, TokenBucket):
        return WorkQueue(bucket=rate_limiter)
    return WorkQueue(limiter=rate_limiter)
