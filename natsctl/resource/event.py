"""What a subscriber is told, and how it says what came of it."""

import asyncio
from enum import StrEnum
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from natsctl.core.sync.calls import Call, failure_of
from natsctl.errors import UsageError

T = TypeVar("T")


class Key(str):
    """A key, which is a string, and its parts: `team/shop` is `shop` in the namespace `team`.

    A key without a slash is a name alone. That of a sync is empty.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """What follows the last slash."""
        return self.rpartition("/")[2]

    @property
    def namespace(self) -> str:
        """What precedes the last slash; empty without one."""
        return self.rpartition("/")[0]


class EventKind(StrEnum):
    """What to do: know that the first listing is told, apply the object, or remove it."""

    SYNC = "sync"
    UPSERT = "upsert"
    DELETE = "delete"


class Origin(Protocol):
    """Where events come from, and where they go back to."""

    def settle(self, kind: EventKind, key: Key, error: Exception | None) -> None:
        """Take back an event that was handled, or failed."""
        ...

    def restore(self, key: Key) -> None:
        """Take back an event that was not handled, as if it had never been told."""
        ...

    def lose(self, kind: EventKind, key: Key) -> None:
        """Note that an event can never be marked done; called in any thread, at any moment."""
        ...


class Event(Generic[T]):
    """One thing to do; nothing else is told of its key before it is marked done.

    `async with event:` marks it when the block ends. If the block raises, the event has failed and
    the exception goes no further, `SystemExit` included. If the block is cancelled, or a person
    presses Ctrl-C, the event is untouched and the exception passes. `done` does the same by hand,
    at any time and from any task. Either way, once: an event that is collected before fails its
    stream.

    `key` is empty for a sync.
    """

    __slots__ = ("_call", "_object", "_origin", "key", "kind")

    def __init__(self, kind: EventKind, key: Key, obj: T | None, origin: Origin) -> None:
        self.kind = kind
        self.key = key
        self._object = obj
        self._origin: Origin | None = origin

    def __repr__(self) -> str:
        return f"<{self.kind} {self.key}>" if self.key else f"<{self.kind}>"

    @property
    def object(self) -> T:
        """The object as it is; of a delete, as this subscriber last knew it.

        Raises `UsageError` for a sync, which is of no object.
        """
        if self.kind is EventKind.SYNC:
            raise UsageError("a sync is of no object: look at the event's kind first")
        return self._object  # type: ignore[return-value]  # T may itself include None

    def done(self, error: Exception | None = None) -> None:
        """Mark the event handled; or, with *error*, failed.

        After a failure the stream's error handler decides: retry the key, which then is told as
        it is by then; drop it until it changes; or stop the stream. `RetryAfter` and
        `PermanentError` are heeded as in a sync handler. Where the stream was left, nothing
        happens. Raises `UsageError` the second time.
        """
        if self._origin is None:
            raise UsageError(f"{self!r} was marked done before")
        self._leave(self._origin).settle(self.kind, self.key, error)

    async def __aenter__(self) -> Self:
        self._call = Call(self.kind, self.key)
        self._call.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            if self._call.has_threads:
                await self._call.threads.ended()
        except asyncio.CancelledError as cancelled:
            error = cancelled
            raise
        finally:
            self._call.end()
            passes = self._origin is None or self._mark(error)
        return not passes

    def _mark(self, error: BaseException | None) -> bool:
        """Mark the event as its block has ended; return whether the error must pass."""
        failure = None
        if error is not None and not isinstance(error, KeyboardInterrupt):
            failure = failure_of(error, asyncio.current_task())
        if error is None or failure is not None:
            self.done(failure)
            return False
        if self._origin is not None:
            self._leave(self._origin).restore(self.key)
        return True

    def __del__(self) -> None:
        if self._origin is not None:
            self._leave(self._origin).lose(self.kind, self.key)

    def _leave(self, origin: Origin) -> Origin:
        self._origin = None
        return origin
