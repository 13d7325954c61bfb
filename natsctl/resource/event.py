"""The events of a stream, and how a subscriber marks them done."""

import asyncio
from enum import StrEnum
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from natsctl.core.sync import Sync, failure_of
from natsctl.errors import UsageError

T = TypeVar("T")

SYNC_KEY = "natsctl.io/sync"
"""The key of sync events in recordings and in the history."""


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


class Origin(Protocol):
    """The subscription that made an event and receives its outcome."""

    def settle(self, kind: EventKind, key: Key, error: Exception | None) -> None:
        """Settle an event that was handled or failed."""
        ...

    def restore(self, key: Key) -> None:
        """Return an event that was not handled to the queue."""
        ...

    def lose(self, kind: EventKind, key: Key) -> None:
        """Record that an event can never be marked done; called in any thread at any time."""
        ...


class Event(Generic[T]):
    """An event; the stream delivers no other event of its key until this one is done.

    `async with event:` marks the event done when the block ends. If the block raises, the event has
    failed, and the exception does not propagate, `SystemExit` included. A cancellation or Ctrl-C
    propagates, and the event returns to the queue. `done` marks the event by hand, at any time and
    from any task. Mark each event exactly once: a stream fails if an event is garbage-collected
    before that.

    `key` is empty for a sync event.
    """

    __slots__ = ("_object", "_origin", "_run", "key", "kind")

    def __init__(self, kind: EventKind, key: Key, obj: T | None, origin: Origin) -> None:
        self.kind = kind
        self.key = key
        self._object = obj
        self._origin: Origin | None = origin

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
        the same effect as in a sync handler. Does nothing after the stream's context was left.
        Raises `UsageError` at the second call.
        """
        if self._origin is None:
            raise UsageError(f"{self!r} is already marked done")
        self._detach(self._origin).settle(self.kind, self.key, error)

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
            passes = self._origin is None or self._mark(error)
        return not passes

    def _mark(self, error: BaseException | None) -> bool:
        """Mark the event after its block; return whether the error must propagate."""
        failure = None
        if error is not None and not isinstance(error, KeyboardInterrupt):
            failure = failure_of(error, asyncio.current_task())
        if error is None or failure is not None:
            self.done(failure)
            return False
        if self._origin is not None:
            self._detach(self._origin).restore(self.key)
        return True

    def __del__(self) -> None:
        if self._origin is not None:
            self._detach(self._origin).lose(self.kind, self.key)

    def _detach(self, origin: Origin) -> Origin:
        self._origin = None
        return origin
