"""What a watcher is told of, and how."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.core.sync.calls import awaitable
from natsctl.model.kinds import Kind
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored

T = TypeVar("T")


class ResourceAction(StrEnum):
    """What happened to an object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Snapshot(msgspec.Struct, Generic[T], frozen=True):
    """An object as it was at one revision, and where it is kept."""

    kind: Kind[T]
    stored: Stored
    store: Store

    @property
    def key(self) -> str:
        """The object's name within its kind."""
        return self.stored.key

    @property
    def revision(self) -> int:
        """The version of the object in its store."""
        return self.stored.revision

    @property
    def value(self) -> bytes:
        """The object as its store has it."""
        return self.stored.value

    @property
    def object(self) -> T:
        """The object, decoded at every read."""
        return self.kind.decode(self.stored.value)

    @property
    def metadata(self) -> Metadata:
        """What the object says about itself; raises `UsageError` where its kind is plain."""
        return self.kind.metadata(self.stored.value)

    @property
    def is_going(self) -> bool:
        """Whether the object is marked deleted, and waits for its finalizers."""
        return not self.kind.plain and self.metadata.deletion_timestamp is not None


OnSnapshot: TypeAlias = Callable[[Snapshot[Any]], Awaitable[None]]
OnUpdate: TypeAlias = Callable[[Snapshot[Any], Snapshot[Any]], Awaitable[None]]


@runtime_checkable
class ResourceWatcher(Protocol):
    """Reacts to what happens to objects of one kind; failing is raising.

    Never called twice at once for the same object.
    """

    async def add(self, new: Snapshot[Any]) -> None:
        """The object is here: it was created, or was there before anyone looked."""
        ...

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        """The object changed."""
        ...

    async def delete(self, last: Snapshot[Any]) -> None:
        """The object is gone; *last* is what it was."""
        ...


@runtime_checkable
class RecallingWatcher(ResourceWatcher, Protocol):
    """A watcher that is also told of what went before anyone here saw it."""

    async def missed(self, key: str, store: Store) -> None:
        """The object was deleted; what it was, the store's history may know.

        Told at every start, of every delete marker that is there.
        """
        ...


class SimpleWatcher:
    """Calls a function for each thing that happens, and nothing where there is none.

    Seed: grafana-app-sdk operator v0.9.10, `SimpleWatcher`.
    """

    def __init__(
        self,
        *,
        add_func: OnSnapshot | None = None,
        update_func: OnUpdate | None = None,
        delete_func: OnSnapshot | None = None,
    ) -> None:
        self.add_func = add_func
        self.update_func = update_func
        self.delete_func = delete_func

    async def add(self, new: Snapshot[Any]) -> None:
        """See `ResourceWatcher.add`."""
        if self.add_func is not None:
            await awaitable(self.add_func, new)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        """See `ResourceWatcher.update`."""
        if self.update_func is not None:
            await awaitable(self.update_func, old, new)

    async def delete(self, last: Snapshot[Any]) -> None:
        """See `ResourceWatcher.delete`."""
        if self.delete_func is not None:
            await awaitable(self.delete_func, last)
