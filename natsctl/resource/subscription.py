"""Which event one subscriber is told next, and what follows from what it made of the last."""

import asyncio
import logging
from contextlib import ExitStack, suppress
from functools import partial
from typing import Generic, TypeVar

from natsctl.core.cache.cache import Cache
from natsctl.core.cache.informer import Informer
from natsctl.core.queue.retry import Drop, Retry, Stop, TokenBucket, always_retry
from natsctl.core.queue.workqueue import Priority, Workqueue
from natsctl.core.sync.failures import FailureLog
from natsctl.core.sync.follow_up import Failed, Synced, settle
from natsctl.errors import (
    EventNotDoneError,
    InvalidObjectError,
    QueueShutDownError,
)
from natsctl.model.kinds import Kind
from natsctl.model.store import Change, Stored
from natsctl.resource.event import Event, EventKind, Key
from natsctl.resource.failing import ErrorAction, ErrorHandler, RateLimiter, policy_for

log = logging.getLogger(__name__)

T = TypeVar("T")

SYNC = Key()


class Subscription(Generic[T]):
    """One subscriber's queue of keys, and what it was told of each; an `Origin` of its events.

    Args:
        kind: what the events are of.
        error_handler: what follows a failure.
        rate_limiter: how long a failing key waits.
        made_at: the line of code to name when an event is lost.
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
        self._told: dict[str, Stored] = {}
        self._cache: Cache[T]
        self._following = ExitStack()
        self._failures = FailureLog(log)
        self._lost = ""  # which event was, if any
        self._closed = False
        self._loop = asyncio.get_running_loop()

    def follow(self, informer: Informer[T]) -> None:
        """Have every object that is cached told, and every later change."""
        if not self._closed:
            self._cache = informer.cache
            self._following.enter_context(informer.subscribe(self._changed))

    def complete(self) -> None:
        """Have the sync told, behind every object of the first listing."""
        self._queue.add(SYNC, priority=Priority.RESYNC)

    async def next(self) -> Event[T]:
        """Return the next event; its key is out until the event comes back.

        Raises `QueueShutDownError` where the stream was stopped or left, `EventNotDoneError` where
        an event was lost.
        """
        while True:
            self.check()
            try:
                key = Key(await self._queue.get())
            except QueueShutDownError:
                self.check()
                raise
            event = self._event(key)
            if event is not None:
                return event
            settle(self._queue, key, Synced(), always_retry)  # it came and went unseen

    def check(self) -> None:
        """Raise `EventNotDoneError` where an event was lost."""
        if self._lost:
            raise EventNotDoneError(self._lost)

    def settle(self, kind: EventKind, key: Key, error: Exception | None) -> None:
        """See `Origin.settle`."""
        if self._closed:
            return
        if error is None:
            self._failures.succeeded(key)
            settle(self._queue, key, Synced(), always_retry)
        else:
            what = _what(kind, key)
            self._failures.failed(key, f"{self._kind.name}: the {what}", error)
            settle(self._queue, key, Failed(error), partial(self._decide, what, key))
        settled = error is None or self._queue.place(key) is None  # or given up
        if kind is EventKind.DELETE and settled:
            self._forget(key)

    def restore(self, key: Key) -> None:
        """See `Origin.restore`."""
        if not self._closed:
            self._queue.add(key)
            self._queue.done(key)

    def lose(self, kind: EventKind, key: Key) -> None:
        """See `Origin.lose`."""
        if self._closed or self._lost:
            return
        self._lost = (
            f"{self._kind.name}: the {_what(kind, key)} was dropped without done(), "
            f"by whoever reads the events() of {self._made_at}"
        )
        with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
            self._loop.call_soon_threadsafe(self._stop)

    def close(self) -> None:
        """Tell nothing more; events that are out need not come back."""
        self._closed = True
        self._following.close()
        self._stop()
        self._told.clear()

    def _changed(self, change: Change[T]) -> None:
        priority = Priority.RESYNC if change.initial else Priority.USER
        self._queue.add(change.key, priority=priority)

    def _event(self, key: Key) -> Event[T] | None:
        """Decide what there is to tell: the one function that does."""
        if key == SYNC:
            return Event(EventKind.SYNC, key, None, self)
        told, now = self._told.get(key), self._cache.get(key)
        if now is not None and (told is None or not self._replaced(told, now)):
            self._told[key] = now
            return Event(EventKind.UPSERT, key, self._kind.decode(now.value), self)
        if told is not None:
            return Event(EventKind.DELETE, key, self._kind.decode(told.value), self)
        return None

    def _replaced(self, told: Stored, now: Stored) -> bool:
        """Say whether it is another object of the same key; where neither says, it is the same."""
        before, after = self._uid(told), self._uid(now)
        return bool(before and after) and before != after

    def _uid(self, stored: Stored) -> str:
        if self._kind.plain:
            return ""
        try:
            return self._kind.metadata(stored.value).uid
        except InvalidObjectError:
            return ""

    def _forget(self, key: Key) -> None:
        """Have told a delete; what has the key by now is told next."""
        self._told.pop(key, None)
        if self._cache.get(key) is not None:
            self._queue.add(key)

    def _decide(self, what: str, key: Key, error: Exception, failures: int) -> ErrorAction:
        action = policy_for(key, self._error_handler)(error, failures)
        match action:
            case Drop():
                log.error("%s: the %s is given up until it changes", self._kind.name, what)
            case Stop():
                log.error("%s: the %s ends the stream", self._kind.name, what)
            case Retry():
                pass  # its next event tells
        return action

    def _stop(self) -> None:
        self._queue.shut_down(drain=False)


def _queue(rate_limiter: RateLimiter | None) -> Workqueue[str]:
    if isinstance(rate_limiter, TokenBucket):
        return Workqueue(bucket=rate_limiter)
    return Workqueue(limiter=rate_limiter)


def _what(kind: EventKind, key: Key) -> str:
    return f"{kind} of {key}" if key else kind
