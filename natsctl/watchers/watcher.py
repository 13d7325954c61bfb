"""Watchers, the snapshots that they receive, and the policies of their retries."""

import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.core.compare_and_set import deleted_at, release, rewrite
from natsctl.core.retry import RetryPolicy, exponential
from natsctl.core.sync import awaitable, current_tape
from natsctl.errors import NotFoundError
from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
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


# ---- a watcher that misses no change: finalizers record which objects it has handled

FinalizerSupplier: TypeAlias = Callable[[Kind[Any]], str]
"""Returns the name of the finalizer for objects of a kind."""

LENGTH_MAX = 63  # the limit of Kubernetes for a finalizer's name
IN_PROGRESS = "-wip"
NEVER = 2**63 - 1  # above all revisions: the write removed the object


def default_finalizer_supplier(kind: Kind[Any]) -> str:
    """Return `operator.{version}.{kind}.{group}`.

    A kind in NATS has the version `v1` and its bucket as group. Built-in kinds of Kubernetes accept
    only names with a domain, so theirs start with `natsctl.io/`.
    """
    if not isinstance(kind, KubeKind):
        return f"operator.v1.{kind.name}"
    group, _, version = kind.api_version.rpartition("/")
    name = f"operator.{version}.{kind.kind}"
    if not group:
        return f"natsctl.io/{name}"
    built_in = "." not in group or group.endswith(".k8s.io")
    return f"{'natsctl.io/' if built_in else ''}{name}.{group}"


def shortened(name: str, suffix: str = "") -> str:
    """Return a finalizer's name with *suffix*, shortened to the permitted length."""
    domain, slash, last = name.rpartition("/")
    cut = re.sub(r"[^A-Za-z0-9]+$", "", last[: LENGTH_MAX - len(suffix)])
    return f"{domain}{slash}{cut}{suffix}"


class OwnFinalizers(msgspec.Struct, frozen=True):
    """The finalizers of an object since this watcher's last write of it.

    Changes up to the revision `added` are part of the object that `add_func` received.
    """

    revision: int
    finalizers: tuple[str, ...]
    added: int = 0


class OpinionatedWatcher:
    """Calls a function for each change, and misses none while it doesn't run.

    *Guarantees.* The watcher stores a finalizer with an in-progress name before it calls
    `add_func`, and renames the finalizer when the call has succeeded. So an object without a
    finalizer is new, and an object with the in-progress name was interrupted; both go to
    `add_func`. At the start, an object with the final name goes to `sync_func`. A deleted object
    goes only to `delete_func`, and the finalizer is removed after that call has succeeded. The same
    holds for an object that was deleted despite its finalizer (`nats kv del`), if the store still
    has its delete marker and last state. `update_func` is called if the desired state changes. The
    watcher keeps other finalizers, and every write checks the revision. A failed call is retried
    with the object's newest state, so the functions must be idempotent.

    Args:
        kind: the kind to watch; it needs metadata.
        add_func: called for new objects.
        update_func: called if the desired state of an object changes.
        delete_func: called for deleted objects, before their finalizer is removed.
        sync_func: called at the start for objects that were handled before.
        finalizer_supplier: returns the name of the finalizer, which is cut to 63 characters. Each
            watcher of a kind needs another name.

    Raises `UsageError` if the kind has no metadata, or if only metadata is watched.

    Seed: grafana-app-sdk operator v0.9.10, `OpinionatedWatcher`.
    """

    def __init__(
        self,
        kind: Kind[Any],
        *,
        add_func: OnSnapshot | None = None,
        update_func: OnUpdate | None = None,
        delete_func: OnSnapshot | None = None,
        sync_func: OnSnapshot | None = None,
        finalizer_supplier: FinalizerSupplier = default_finalizer_supplier,
    ) -> None:
        kind.require_writable()
        name = finalizer_supplier(kind)
        self.kind = kind
        self.finalizer = shortened(name)
        self.in_progress = shortened(name, IN_PROGRESS)
        self.add_func = add_func
        self.update_func = update_func
        self.delete_func = delete_func
        self.sync_func = sync_func
        self._own_writes: dict[str, OwnFinalizers] = {}  # until the watch has delivered the write

    def wrap(self, watcher: ResourceWatcher, *, sync_to_add: bool) -> None:
        """Call *watcher* instead of the functions for add, update and delete.

        If *sync_to_add*, its `add` also replaces `sync_func`.
        """
        self.add_func = watcher.add
        self.update_func = watcher.update
        self.delete_func = watcher.delete
        if sync_to_add:
            self.sync_func = watcher.add

    async def add(self, new: Snapshot[Any]) -> None:
        await self._note_memory(new.key)
        own_write = self._own_writes.get(new.key)
        if own_write is not None and new.revision < own_write.added:
            return  # a resync began before `add_func` received a newer state
        self._forget_delivered(new)
        if new.is_going:
            await self._release(new)
        elif self.finalizer in self._finalizers(new):
            await _call(self.sync_func, new)
        else:
            await self._add(new)

    async def update(self, old: Snapshot[Any], new: Snapshot[Any]) -> None:
        await self._note_memory(new.key)
        if new.revision < old.revision:  # another store has the object now
            self._own_writes.pop(new.key, None)
        was_added = self.finalizer in self._finalizers(old) and _same_object(old, new)
        own_write = self._own_writes.get(new.key)
        if own_write is not None and new.revision <= own_write.added:
            return
        self._forget_delivered(new)
        if new.is_going:
            await self._release(new)
        elif not was_added and self.finalizer not in self._finalizers(new):
            await self._add(new)
        else:
            if self.finalizer not in self._finalizers(new):
                await self._mark(new, self.finalizer)  # another writer removed it
            if self.update_func is not None and new.kind.differs(old.value, new.value):
                await awaitable(self.update_func, old, new)

    async def delete(self, last: Snapshot[Any]) -> None:
        """See `ResourceWatcher.delete`; cleans up an object deleted despite its finalizer."""
        await self._note_memory(last.key)
        if self._holds(last) or await self._was_held(last):
            await self._clean_up_late(last)
        self._own_writes.pop(last.key, None)

    async def missed(self, key: str, store: Store) -> None:
        """See `RecallingWatcher.missed`; cleans up an object deleted despite its finalizer."""
        states = await _history(key, store)
        if states:
            await self.delete(states[0])

    async def _note_memory(self, key: str) -> None:
        """Note this watcher's write of the object, on which the next calls depend."""

        def restore(own_write: OwnFinalizers | None) -> None:
            if own_write is not None:
                self._own_writes[key] = own_write

        name, tape = f"own write of {self.finalizer}", current_tape()
        if tape is not None:
            await tape.remembered(name, lambda: self._own_writes.get(key), restore)

    async def _add(self, new: Snapshot[Any]) -> None:
        begun = await self._mark(new, self.in_progress)
        if begun is None or begun.is_going or self.finalizer in begun.metadata.finalizers:
            return  # the next change has the object's new state
        await _call(self.add_func, begun)
        marked = await self._mark(begun, self.finalizer)
        if marked is not None:  # a deleted object keeps its finalizers
            self._own_writes[new.key] = OwnFinalizers(
                marked.revision, (self.finalizer,), begun.revision
            )

    async def _release(self, new: Snapshot[Any]) -> None:
        """Call `delete_func` unless that has succeeded, and remove the finalizer."""
        if self._holds(new):
            await _call(self.delete_func, new)
        elif not self._awaits_removal(new):
            return
        released = await release(new.store, new.key, self.finalizer, self.in_progress)
        stored = None if released is None else released.stored
        self._own_writes[new.key] = OwnFinalizers(NEVER if stored is None else stored.revision, ())

    def _awaits_removal(self, new: Snapshot[Any]) -> bool:
        """Return whether an object in NATS has no finalizer left and waits for its removal."""
        in_cluster = isinstance(new.kind, KubeKind)
        return not in_cluster and self._is_newest(new) and not new.metadata.finalizers

    async def _clean_up_late(self, last: Snapshot[Any]) -> None:
        marker = await deleted_at(last.store, last.key)
        if marker is not None:
            await _call(self.delete_func, last)
            await last.store.delete(last.key, revision=marker, purge=True)

    async def _was_held(self, last: Snapshot[Any]) -> bool:
        """Return whether a deleted object had the finalizer before another writer replaced it."""
        if last.is_going or not self._is_newest(last):
            return False
        for state in await _history(last.key, last.store):
            if state.is_going or self._holds(state):
                return self._holds(state)
        return False

    async def _mark(self, snapshot: Snapshot[Any], name: str) -> Snapshot[Any] | None:
        """Give the object this finalizer, unless it is being deleted; return its new state.

        The final name replaces the one in progress. Returns None if the object is gone or another
        object has its key.
        """

        def checked(stored: Stored | None) -> Snapshot[Any]:
            current = None if stored is None else Snapshot(snapshot.kind, stored, snapshot.store)
            if current is None or not _same_object(snapshot, current):
                raise NotFoundError(f"{snapshot.key} is gone")
            return current

        def changed(stored: Stored | None) -> bytes:
            current = checked(stored)
            before = current.metadata.finalizers
            if current.is_going or name in before or self.finalizer in before:
                return current.value
            after = (*(other for other in before if other != self.in_progress), name)
            document = documents.parse(current.value)
            return documents.render(documents.with_finalizers(document, after))

        store, key = snapshot.store, snapshot.key
        try:
            rewritten = await rewrite(store, key, changed, seen=snapshot.stored)
            marked = checked(rewritten.stored)
        except NotFoundError:
            return None
        self._own_writes[key] = OwnFinalizers(marked.revision, marked.metadata.finalizers)
        return marked

    def _holds(self, snapshot: Snapshot[Any]) -> bool:
        return not {self.finalizer, self.in_progress}.isdisjoint(self._finalizers(snapshot))

    def _finalizers(self, snapshot: Snapshot[Any]) -> tuple[str, ...]:
        if self._is_newest(snapshot):
            return snapshot.metadata.finalizers
        return self._own_writes[snapshot.key].finalizers

    def _is_newest(self, snapshot: Snapshot[Any]) -> bool:
        own_write = self._own_writes.get(snapshot.key)
        return own_write is None or own_write.revision <= snapshot.revision

    def _forget_delivered(self, new: Snapshot[Any]) -> None:
        own_write = self._own_writes.get(new.key)
        if own_write is not None and (
            own_write.revision <= new.revision or not (own_write.finalizers or new.is_going)
        ):
            del self._own_writes[new.key]


def _same_object(first: Snapshot[Any], second: Snapshot[Any]) -> bool:
    """Return whether both are the same object; a missing uid matches any."""
    return len({first.metadata.uid, second.metadata.uid} - {""}) <= 1


async def _history(key: str, store: Store) -> list[Snapshot[Any]]:
    states = [state for state in await store.history(key) if isinstance(state, Stored)]
    valid = (state for state in reversed(states) if store.kind.valid(state.value))
    return [Snapshot(store.kind, state, store) for state in valid]


async def _call(function: OnSnapshot | None, snapshot: Snapshot[Any]) -> None:
    if function is not None:
        await awaitable(function, snapshot)
