"""Shares one watch per dependency among all dependents, and stops it with the last one.

A dependent is registered before it reads, so that every change after the read enqueues it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Generic, TypeVar

from natsctl.core.informer import Informer
from natsctl.core.table import Table
from natsctl.core.task_group import together
from natsctl.errors import (
    DECODE_ERRORS,
    InvalidKeyError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    PermissionDeniedError,
    StoppedError,
    StoreDiffersError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
    WatchStoppingError,
)
from natsctl.model.keys import check_key
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import head
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, OpenStore, Stored
from natsctl.slices import in_order
from natsctl.telemetry.logger import get_logger

T = TypeVar("T")


class Dependency(Generic[T]):
    """A part of a kind that can be watched separately. Equal dependencies can share a watch.

    `kind` contains only the part, as far as the store can select; `selector` selects the rest in
    this process. `key` is the key of a single object, None if there may be several.
    """

    __slots__ = ("_identity", "key", "kind", "selector")

    def __init__(self, kind: Kind[T], selector: Selector, key: str | None = None) -> None:
        self.kind, self.selector, self.key = kind, selector, key
        place: Hashable = kind
        if isinstance(kind, KvKind):
            place = "kv", kind.bucket, kind.keys
        elif isinstance(kind, KubeKind):
            path = kind.api_version, kind.kind, kind.namespace, kind.object_name
            place = "kube", *path, str(kind.selector), kind.metadata_only
        self._identity = kind.type, place, str(selector), key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dependency) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __str__(self) -> str:
        if self.key is not None:
            return f"{self.kind.name} {self.key}"
        chosen = self.kind.selector if isinstance(self.kind, KubeKind) else self.selector
        return f"{self.kind.name} with {chosen}" if chosen.requirements else f"all {self.kind.name}"

    def selects(self, stored: Stored | None) -> bool:
        """Return whether this object belongs to the dependency."""
        if stored is None or not self.selector.requirements:
            return stored is not None
        try:
            return self.selector.matches(head.decode(stored.value).metadata.labels)
        except DECODE_ERRORS:
            return False  # its labels cannot be read

    def concerns(self, change: Change[Any]) -> bool:
        """Return whether the object belonged to the dependency before the change, or does now."""
        if change.before is None and change.after is None:
            return True  # its state before the deletion is not known
        return self.selects(change.before) or self.selects(change.after)


def one(kind: Kind[T], key: str) -> Dependency[T]:
    """Return the dependency on the object with this key, which need not exist.

    Raises `InvalidKeyError` if no object of this kind can have the key.
    """
    if isinstance(kind, KubeKind):
        return Dependency(kind.only(key), Selector(), key)
    if isinstance(kind, KvKind):
        if not kind.holds(check_key(key)):
            raise InvalidKeyError(f"key {key!r} is none of {kind.name}: {kind.keys}")
        return Dependency(kind.part(key), Selector(), key)
    raise UsageError(f"{kind.name} is kept neither in NATS nor in Kubernetes")


def those(kind: Kind[T], selector: Selector) -> Dependency[T]:
    """Return the dependency on the objects of this kind that the selector matches.

    Raises `UsageError` if the selector needs labels and the kind has none.
    """
    if isinstance(kind, KubeKind):
        return Dependency(kind.selected(selector) if selector.requirements else kind, Selector())
    if selector.requirements and kind.type is not bytes:
        kind.require_metadata()
    return Dependency(kind, selector)


log = get_logger(__name__)

W = TypeVar("W", bound=Hashable)

_KEY = attrgetter("key")

LIST_S = 30.0  # limit for the first listing of a watch

_PERMANENT = (  # errors that a retry does not change
    InvalidKeyError,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    StoreDiffersError,
    StoreMissingError,
)


class DependencyWatch(Generic[W]):
    """One of the *watches*: that of one dependency, with its dependents."""

    def __init__(
        self,
        dependency: Dependency[Any],
        watches: "DependencyWatches[W]",
        group: asyncio.TaskGroup,
    ) -> None:
        self.dependency = dependency
        self.dependents: dict[W, None] = {}
        self.listed = False  # whether all objects were listed, and their dependents enqueued
        self.settled = asyncio.Event()  # it has listed, or ended
        self.failure: NatsctlError | None = None  # what callers that wait for the listing get
        self._watches = watches
        self._table: Table[Any] | None = None
        self.task = group.create_task(self._run(), name=f"watch of {dependency}")

    def objects(self) -> list[Stored]:
        """Return the last valid states of the objects, sorted by key.

        Raises `InvalidObjectError` if the dependency is one object that never was valid.
        """
        return sorted(self._selected(), key=_KEY)

    async def read(self) -> list[Stored]:
        """Return what `objects` returns, in slices.

        A later object may be of a later time; a change in between enqueues the dependents.
        """
        return await in_order(self._selected(), by=_KEY)

    def _selected(self) -> Iterator[Stored]:
        table, dependency = self._table, self.dependency
        if table is None:
            return
        invalid = None if dependency.key is None else table.invalid.get(dependency.key)
        if invalid is not None and invalid.last is None:
            raise invalid.error
        for stored in map(table.get, table.keys()):
            if stored is not None and dependency.selects(stored):
                yield stored

    def has_objects(self) -> bool:
        """Return whether any of the objects exists; a single one may be invalid."""
        table, key = self._table, self.dependency.key
        if table is None:
            return False
        return any(self._selected()) if key is None else key in table

    async def _run(self) -> None:
        kind = self.dependency.kind
        try:
            store = await self._watches.open_store(kind)
            informer = Informer(store, kind, on_listed=self._on_listed)
            self._table = informer.table
            async with informer.subscribe(self._changed):
                await informer.run(
                    is_final=lambda error: not self.listed or isinstance(error, _PERMANENT)
                )
        except NatsctlError as error:
            self._watches.give_up(self, error)

    def _on_listed(self) -> None:
        if self.listed:
            return  # a relist reports its changes
        self.listed = True
        self.settled.set()
        for dependent in tuple(self.dependents) if self.has_objects() else ():
            self._watches.found(dependent)

    def _changed(self, change: Change[Any]) -> None:
        if self.listed and self.dependency.concerns(change):
            for dependent in tuple(self.dependents):
                self._watches.enqueue(dependent)


class DependencyWatches(Generic[W]):
    """The watches of all dependencies.

    Args:
        open_store: returns the store of a part of a kind.
        enqueue: called with a dependent of an object that changed, or can't be watched any more.
        found: called with a dependent if an object exists on which it depends from now on.
        list_s: limit for the first listing of a watch.

    *Guarantees.* A dependency has one watch while it has dependents, and none otherwise. A watch
    that breaks is restarted with backoff. If a watch cannot be established at first, or loses its
    permission or its kind later, it ends: its dependents no longer depend on it, and are enqueued.
    """

    def __init__(
        self,
        open_store: OpenStore,
        enqueue: Callable[[W], None],
        found: Callable[[W], None] = lambda _: None,
        *,
        list_s: float = LIST_S,
    ) -> None:
        self.open_store, self.enqueue, self.found = open_store, enqueue, found
        self._list_s = list_s
        self._watches: dict[Dependency[Any], DependencyWatch[W]] = {}
        self._dependencies: dict[W, set[Dependency[Any]]] = {}
        self.dependents: Collection[W] = self._dependencies.keys()  # a live view
        self._group: asyncio.TaskGroup | None = None

    def __len__(self) -> int:
        """Return the number of watches."""
        return len(self._watches)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Permit watches while the context lasts, and end them with it."""
        async with together() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for watch in list(self._watches.values()):
                    stopped = f"the watch of {watch.dependency} was stopped"
                    self._end(watch, WatchStoppingError(stopped))

    def dependencies_of(self, dependent: W) -> Collection[Dependency[Any]]:
        return frozenset(self._dependencies.get(dependent, ()))

    def find(self, dependency: Dependency[Any]) -> DependencyWatch[W] | None:
        """Return the watch of this dependency if it has listed its objects."""
        watch = self._watches.get(dependency)
        return watch if watch is not None and watch.listed else None

    async def depend(self, dependent: W, dependency: Dependency[Any]) -> DependencyWatch[W]:
        """Enqueue *dependent* at every later change; return the watch after it has listed.

        If the watch cannot be established, *dependent* does not depend on it, and the error is
        raised: `StoreTimeoutError` if the listing took too long, `WatchStoppingError` if
        *dependent* was released before, or another `NatsctlError`.
        """
        watch = self._watches.get(dependency)
        if watch is None:
            if self._group is None:
                raise StoppedError("nothing is watched before the start, nor after the end")
            watch = self._watches[dependency] = DependencyWatch(dependency, self, self._group)
        new = dependent not in watch.dependents
        if new:
            watch.dependents[dependent] = None
            self._dependencies.setdefault(dependent, set()).add(dependency)
            if watch.listed and watch.has_objects():
                self.found(dependent)
        if not watch.listed:
            try:
                await self._listing(dependent, watch)
            except BaseException:
                if new:
                    self.release(dependent, dependency)
                raise
        return watch

    async def _listing(self, dependent: W, watch: DependencyWatch[W]) -> None:
        try:
            async with asyncio.timeout(self._list_s):
                await watch.settled.wait()
                if watch.failure is not None:
                    raise watch.failure.with_traceback(None)
        except TimeoutError as late:
            if not watch.listed:  # it may have listed in the turn of the limit
                raise StoreTimeoutError(
                    f"{watch.dependency} was not listed within {self._list_s:g} s"
                ) from late
        if dependent not in watch.dependents:
            raise WatchStoppingError(f"the watch of {watch.dependency} was stopped")

    def release(self, dependent: W, dependency: Dependency[Any]) -> None:
        """End the dependency of *dependent* if it exists."""
        watch = self._watches.get(dependency)
        if watch is not None and dependent in watch.dependents:
            self._leave(dependent, watch)
            if not watch.dependents:
                self._end(watch, WatchStoppingError(f"nobody depends on {dependency} any more"))

    def keep_only(self, dependent: W, wanted: Collection[Dependency[Any]]) -> None:
        """End the dependencies of *dependent* that are not *wanted*."""
        for dependency in self.dependencies_of(dependent):
            if dependency not in wanted:
                self.release(dependent, dependency)

    async def depend_only(self, dependent: W, wanted: Collection[Dependency[Any]]) -> None:
        """Replace the dependencies of *dependent* after all new ones have listed.

        If one of them fails, the dependencies stay as they were, and the first error that `depend`
        raised is raised.
        """
        before = self.dependencies_of(dependent)
        new = [dependency for dependency in wanted if dependency not in before]
        try:
            async with together() as group:
                for dependency in new:
                    group.create_task(self.depend(dependent, dependency))
        except BaseException as error:
            for dependency in new:
                self.release(dependent, dependency)
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from None
            raise
        self.keep_only(dependent, wanted)

    def give_up(self, watch: DependencyWatch[W], error: NatsctlError) -> None:
        """End a failed watch: raise for callers that wait for it, or enqueue its dependents."""
        if self._watches.get(watch.dependency) is not watch:
            return
        dependents = list(watch.dependents) if watch.listed else []
        self._end(watch, error)
        if dependents:
            log.warning("stopped watching a dependency", dependency=watch.dependency, error=error)
        for dependent in dependents:
            self.enqueue(dependent)

    def _end(self, watch: DependencyWatch[W], why: NatsctlError) -> None:
        del self._watches[watch.dependency]
        for dependent in list(watch.dependents):
            self._leave(dependent, watch)
        watch.failure = why
        watch.settled.set()
        if watch.task is not asyncio.current_task():
            watch.task.cancel()

    def _leave(self, dependent: W, watch: DependencyWatch[W]) -> None:
        del watch.dependents[dependent]
        dependencies = self._dependencies[dependent]
        dependencies.discard(watch.dependency)
        if not dependencies:
            del self._dependencies[dependent]
