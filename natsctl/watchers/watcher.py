"""The protocol of watchers, the snapshots that they receive, and the policies of their retries."""

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.core.retry import RetryPolicy, exponential
from natsctl.core.sync import awaitable
from natsctl.model.kinds import Kind
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored

T = TypeVar("T")


class ResourceAction(StrEnum):
    """The kind of a change."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class Snapshot(msgspec.Struct, Generic[T], frozen=True):
    """An object at one revision, and its store."""

    kind: Kind[T]
    stored: Stored
    store: Store

    @property
    def key(self) -> str:
        return self.stored.key

    @property
    def revision(self) -> int:
        return self.stored.revision

    @property
    def value(self) -> bytes:
        return self.stored.value

    @property
    def object(self) -> T:
        """The object, decoded at every read."""
        return self.kind.decode(self.stored.value)

    @property
    def metadata(self) -> Metadata:
        """The object's metadata; raises `UsageError` if its kind has none."""
        return self.kind.metadata(self.stored.value)

    @property
    def is_going(self) -> bool:
        """True if the object has a deletion timestamp and waits for its finalizers."""
        return not self.kind.plain and self.metadata.deletion_timestamp is not None


OnSnapshot: TypeAlias = Callable[[Snapshot[Any]], Awaitable[None]]
OnUpdate: TypeAlias = Callable[[Snapshot[Any], Snapshot[Any]], Awaitable[None]]


@runtime_checkable
class ResourceWatcher(Protocol):
    """Reacts to changes of objects of one kind. To say that a call failed, raise.

    Calls for the same object never overlap.
    """

    async def add(self, new: Snapshot[Any]) -> None:
        """Handle an object that was created, or that existed at the start."""
        ...

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        """Handle a change."""
        ...

    async def delete(self, last: Snapshot[Any]) -> None:
        """Handle a deletion; *last* is the object's last state."""
        ...


@runtime_checkable
class RecallingWatcher(ResourceWatcher, Protocol):
    """A watcher that also handles deletions that happened before the start."""

    async def missed(self, key: str, store: Store) -> None:
        """Handle a deletion before the start; the store's history may have the last state.

        Called at every start for every delete marker in the store.
        """
        ...


class SimpleWatcher:
    """A watcher made of functions; an omitted function does nothing.

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
        if self.add_func is not None:
            await awaitable(self.add_func, new)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        if self.update_func is not None:
            await awaitable(self.update_func, old, new)

    async def delete(self, last: Snapshot[Any]) -> None:
        if self.delete_func is not None:
            await awaitable(self.delete_func, last)


# ---- policies

RetryDequeuePolicy: TypeAlias = Callable[
    [ResourceAction, Snapshot[Any], ResourceAction, Snapshot[Any], Exception], bool
]
"""Returns whether a new change drops a pending retry.

The arguments are the new action and object, the retry's action and object, and the retry's last
error. The policy is called once for each watcher with a pending retry of the object.
"""


def exponential_backoff_retry_policy(initial_s: float, max_attempts: int) -> RetryPolicy:
    """Retry after *initial_s* seconds, then after twice the time, and finally give up.

    Attempts count from 0, so the policy makes *max_attempts* + 1 retries. See
    `natsctl.exponential`.
    """
    return exponential(initial_s, max_attempts)


DEFAULT_RETRY_POLICY: RetryPolicy = exponential_backoff_retry_policy(5.0, 5)
"""Six retries, after 5, 10, 20, 40, 80 and 160 s."""


def opinionated_retry_dequeue_policy(
    new_action: ResourceAction,
    new_object: Snapshot[Any],
    retry_action: ResourceAction,
    retry_object: Snapshot[Any],
    _retry_error: Exception,
) -> bool:
    """Drop a retry after a delete, and after the same action with another desired state.

    The policy compares the desired states, not generations, which not every writer increments.
    """
    if new_action is ResourceAction.DELETE:
        return True
    if new_action is not retry_action:
        return False
    return new_object.kind.differs(retry_object.value, new_object.value)
