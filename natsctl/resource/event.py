"""What a subscriber is told, and how it says what came of it."""

import asyncio
from enum import StrEnum
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

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

    `async with event:` marks it when the block ends: failed where it raises, which goes no
    further, and untouched where it is cancelled. `done` does the same by hand, at any time and
    from any task. Either way, once: an event that is collected before fails its stream.

    `key` is empty for a sync.
    """

    __slots__ = ("_object", "_origin", "key", "kind")

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
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._origin is None:
            return False  # it was marked by hand
        match error:
            case None | Exception():
                self.done(error)
            case asyncio.CancelledError() if not _cancelled():
                self.done(RuntimeError("the handler waited for something that was cancelled"))
            case _:
                self._leave(self._origin).restore(self.key)
                return False
        return True

    def __del__(self) -> None:
        if self._origin is not None:
            self._leave(self._origin).lose(self.kind, self.key)

    def _leave(self, origin: Origin) -> Origin:
        self._origin = None
        return origin


def _cancelled() -> bool:
    """Say whether it is this task that is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
