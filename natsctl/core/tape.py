"""Notes what a sync reads, calls and writes, so that a failed sync can be recorded.

The notes refer to the objects of the caches, and copy nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

from natsctl.core.informer import Informer
from natsctl.errors import NatsctlError
from natsctl.model.store import Stored

CacheRead: TypeAlias = tuple[Informer[Any], str, Stored | None]
"""A read of one object from a cache. It is a tuple because it is noted most often."""


class CacheStates(msgspec.Struct, frozen=True, gc=False):
    """A read of several objects from a cache; an object that does not exist is missing."""

    informer: Informer[Any]
    keys: tuple[str, ...]
    states: tuple[Stored, ...]


class CacheKeys(msgspec.Struct, frozen=True, gc=False):
    """A read of all keys of a cache."""

    informer: Informer[Any]
    keys: tuple[str, ...]


class CacheQuery(msgspec.Struct, frozen=True, gc=False):
    """A query of an index of a cache, and the keys that it found."""

    informer: Informer[Any]
    index: str
    value: str
    keys: tuple[str, ...]


class CacheTarget(msgspec.Struct, frozen=True, gc=False):
    """The cached state from which a write starts, which the handler does not see."""

    informer: Informer[Any]
    key: str
    stored: Stored | None


class DependencyRead(msgspec.Struct, frozen=True, gc=False):
    """A read of the objects of a dependency, named by its text."""

    dependency: str
    place: str
    states: tuple[Stored, ...]


class RecordedError(msgspec.Struct, frozen=True):
    """An error that the handler got or raised."""

    type: str  # the name of its class, with the module unless it is a builtin
    message: str
    fields: dict[str, Any] = {}  # the fields of an error of natsctl, such as `deleted_at`

    @classmethod
    def of(cls, error: BaseException) -> "RecordedError":
        """Return an error as it is recorded."""
        fields = {name: value for name, value in vars(error).items() if not name.startswith("_")}
        if not isinstance(error, NatsctlError):
            fields = {}
        return cls(class_name(type(error)), _message(error), fields)


class StoreCall(msgspec.Struct, frozen=True, gc=False):
    """A call of a store and its answer; `error` is None if it succeeded."""

    place: str
    verb: str
    key: str
    value: bytes
    answer: Any
    error: RecordedError | None
    took_s: float


class RecordedValue(msgspec.Struct, frozen=True):
    """The result of a call, as JSON, so that later changes of the object do not matter."""

    type: str  # the name of its class, with the module unless it is a builtin
    json: bytes  # its value; empty if it cannot be written as JSON

    @classmethod
    def of(cls, value: object) -> "RecordedValue":
        """Return a value as it is recorded."""
        try:
            encoded = msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError):
            encoded = b""
        return cls(class_name(type(value)), encoded)


class OutsideCall(msgspec.Struct, frozen=True, gc=False):
    """A call outside of the stores, such as of a function in a thread, and its result.

    `inner` is the number of such calls that it made itself.
    """

    name: str
    result: RecordedValue | None
    error: RecordedError | None
    took_s: float
    inner: int = 0


Note: TypeAlias = (
    CacheRead
    | CacheStates
    | CacheKeys
    | CacheQuery
    | CacheTarget
    | DependencyRead
    | StoreCall
    | OutsideCall
)


class Tape(Protocol):
    """Takes the notes of one sync in their order; a list is a tape."""

    def append(self, note: Note, /) -> None:
        """Take a note."""
        ...


@runtime_checkable
class Playback(Protocol):
    """A tape that answers calls outside of the stores from a recording."""

    async def answer(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded result of the next call of that name, or raise its error.

        A call that made other calls is made with *call*, and these are answered.
        """
        ...

    def has(self, name: str) -> bool:
        """Return whether a further call of that name is recorded."""
        ...


def class_name(kind: type) -> str:
    """Return the name of a class, with the module unless it is a builtin."""
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}:"
    return f"{module}{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's `__str__` may raise anything
        return "a message that cannot be read"
