"""One watch for each dependency: shared by whoever depends on it, counted, stopped with the last.

A dependent is registered first and reads afterwards: whatever changes after it read, it is woken.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Generic, TypeVar

from natsctl.core.cache.cache import Cache
from natsctl.core.cache.informer import Informer
from natsctl.core.dependencies.dependency import Dependency
from natsctl.core.task_group import together
from natsctl.errors import (
    InvalidKeyError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    PermissionDeniedError,
    StoppedError,
    StoreDiffersError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
    WatchStoppingError,
)
from natsctl.model.kinds import Kind
from natsctl.model.store import Change, Store, Stored

log = logging.getLogger(__name__)

T = TypeVar("T")
W = TypeVar("W", bound=Hashable)

LIST_S = 30.0  # how long a watch may take until it has listed what there is

_HOPELESS = (  # what trying again by itself does not change
    InvalidKeyError,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    StoreDiffersError,
    StoreMissingError,
)

Open = Callable[[Kind[Any]], Awaitable[Store]]


class Cause(Enum):
    """Why a dependent is woken."""

    FOUND = "found"
    """What it depends on from now on exists."""
    CHANGED = "changed"
    """What it depends on came, changed or went."""
    LOST = "lost"
    """What it depended on can be watched no more; it does not depend on that any longer."""


class DependencyWatch(Generic[W]):
    """A watch of one dependency, and who depends on it.

    *over* is told when it cannot be had, or not any more; it has ended by itself then.
    """

    def __init__(
        self,
        on: Dependency[Any],
        wake: Callable[[W, Cause], None],
        over: "Callable[[DependencyWatch[W], NatsctlError], None]",
    ) -> None:
        self.on = on
        self.dependents: dict[W, None] = {}
        self.listed = False  # whether what there is was listed, and told
        self._wake = wake
        self._over = over
        self._cache: Cache[Any] | None = None
        self._settled = asyncio.Event()  # it is listed, or over
        self._failure: NatsctlError | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self, open_store: Open, group: asyncio.TaskGroup) -> None:
        """Watch from now on."""
        self._task = group.create_task(self._run(open_store), name=f"watch of {self.on}")

    def stop(self, why: NatsctlError) -> None:
        """End; who still waits for the listing is told why."""
        self._failure = why
        self._settled.set()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    async def settled(self) -> None:
        """Wait until it has listed what there is; raises why it cannot."""
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def objects(self) -> list[Stored]:
        """Return what is there, in the order of keys; of what is not valid, the last that was.

        Raises `InvalidObjectError` where the one object that is meant never was valid.
        """
        cache = self._cache
        if cache is None:
            return []
        invalid = None if self.on.key is None else cache.invalid.get(self.on.key)
        if invalid is not None and invalid.last is None:
            raise invalid.error
        found = (cache.get(key) for key in sorted(cache.keys()))
        return [stored for stored in found if stored is not None and self.on.means(stored)]

    async def _run(self, open_store: Open) -> None:
        try:
            store = await open_store(self.on.kind)
            informer = Informer(store, self.on.kind, on_listed=self._on_listed)
            self._cache = informer.cache
            with informer.subscribe(self._changed):
                await informer.run(over=self._is_over)
        except NatsctlError as error:
            self._over(self, error)

    def _is_over(self, error: StoreError) -> bool:
        return not self.listed or isinstance(error, _HOPELESS)

    def _on_listed(self) -> None:
        self.listed = True
        self._settled.set()

    def _changed(self, change: Change[Any]) -> None:
        cause = Cause.CHANGED if self.listed else Cause.FOUND
        if cause is Cause.FOUND and change.after is None:
            return  # it was deleted before anybody depended on it
        if self.on.concerns(change):
            for dependent in tuple(self.dependents):
                self._wake(dependent, cause)


class DependencyWatches(Generic[W]):
    """DependencyWatches, one for each dependency.

    Args:
        open_store: gives the store of a part of a kind.
        wake: told whom to wake and why; it must not block.
        list_s: how long a watch may take until it has listed what there is.

    *Guarantees.* While anybody depends on something there is one watch of it, and none otherwise.
    A watch that breaks is begun anew, later and later. One that cannot be had at first, or not
    any more because a permission or its kind is gone, is given up: nobody depends on it then, and
    everybody who did is woken.
    """

    def __init__(
        self, open_store: Open, wake: Callable[[W, Cause], None], *, list_s: float = LIST_S
    ) -> None:
        self._open_store = open_store
        self._wake = wake
        self._list_s = list_s
        self._watches: dict[Dependency[Any], DependencyWatch[W]] = {}
        self._dependencies: dict[W, set[Dependency[Any]]] = {}
        self._group: asyncio.TaskGroup | None = None

    def __len__(self) -> int:
        """Count the watches."""
        return len(self._watches)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let there be watches for as long as the context lasts."""
        async with together() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for watch in list(self._watches.values()):
                    self._end(watch, WatchStoppingError(f"the watch of {watch.on} was stopped"))

    @property
    def dependents(self) -> Collection[W]:
        """Who depends on anything."""
        return tuple(self._dependencies)

    def of(self, dependent: W) -> Collection[Dependency[Any]]:
        """Return what *dependent* depends on."""
        return frozenset(self._dependencies.get(dependent, ()))

    def find(self, on: Dependency[Any]) -> DependencyWatch[W] | None:
        """Return the watch of this dependency, if it has listed what there is."""
        watch = self._watches.get(on)
        return watch if watch is not None and watch.listed else None

    async def depend(self, dependent: W, on: Dependency[Any]) -> DependencyWatch[W]:
        """Have *dependent* woken by every change from now on; return the watch once it has listed.

        Where it cannot be had, *dependent* does not depend on it, and the `NatsctlError` is raised
        that says why: `StoreTimeoutError` where that took too long, `WatchStoppingError` where
        *dependent* was released meanwhile.
        """
        watch = self._watches.get(on) or self._begin(on)
        new = dependent not in watch.dependents
        if new:
            self._join(dependent, watch)
        if not watch.listed:
            try:
                await self._listing(dependent, watch)
            except BaseException:
                if new:
                    self.release(dependent, on)
                raise
        return watch

    def release(self, dependent: W, on: Dependency[Any]) -> None:
        """Let *dependent* not depend on it any more; one that does not is fine."""
        watch = self._watches.get(on)
        if watch is None or dependent not in watch.dependents:
            return
        self._leave(dependent, watch)
        if not watch.dependents:
            self._end(watch, WatchStoppingError(f"nobody depends on {on} any more"))

    def keep_only(self, dependent: W, wanted: Collection[Dependency[Any]]) -> None:
        """Let *dependent* depend on nothing but these, of what it depends on now."""
        for on in self.of(dependent):
            if on not in wanted:
                self.release(dependent, on)

    async def depend_only(self, dependent: W, wanted: Collection[Dependency[Any]]) -> None:
        """Have *dependent* depend on these and on nothing else, once all of them have listed.

        All or nothing: where one cannot be had, what it depended on before stays as it was, and
        the error is raised that `depend` raised first.
        """
        new = [on for on in wanted if on not in self.of(dependent)]
        try:
            async with together() as group:
                for on in new:
                    group.create_task(self.depend(dependent, on))
        except BaseException as error:
            for on in new:
                self.release(dependent, on)
            if isinstance(error, ExceptionGroup):
                raise error.exceptions[0] from None
            raise
        self.keep_only(dependent, wanted)

    def _begin(self, on: Dependency[Any]) -> DependencyWatch[W]:
        if self._group is None:
            raise StoppedError("nothing is watched before the start, nor after the end")
        watch = self._watches[on] = DependencyWatch(on, self._wake, self._give_up)
        watch.begin(self._open_store, self._group)
        return watch

    def _join(self, dependent: W, watch: DependencyWatch[W]) -> None:
        watch.dependents[dependent] = None
        self._dependencies.setdefault(dependent, set()).add(watch.on)
        if watch.listed and _has_any(watch):
            self._wake(dependent, Cause.FOUND)

    async def _listing(self, dependent: W, watch: DependencyWatch[W]) -> None:
        try:
            async with asyncio.timeout(self._list_s):
                await watch.settled()
        except TimeoutError as late:
            told = f"{watch.on} was not listed within {self._list_s:g} s"
            raise StoreTimeoutError(told) from late
        if dependent not in watch.dependents:
            raise WatchStoppingError(f"the watch of {watch.on} was given up meanwhile")

    def _give_up(self, watch: DependencyWatch[W], error: NatsctlError) -> None:
        """Tell all who depended on it: those who wait for it, or else by waking them."""
        if self._watches.get(watch.on) is not watch:
            return
        woken = list(watch.dependents) if watch.listed else []
        self._end(watch, error)
        if woken:
            log.warning("%s is not watched any more: %s", watch.on, error)
        for dependent in woken:
            self._wake(dependent, Cause.LOST)

    def _end(self, watch: DependencyWatch[W], why: NatsctlError) -> None:
        del self._watches[watch.on]
        for dependent in list(watch.dependents):
            self._leave(dependent, watch)
        watch.stop(why)

    def _leave(self, dependent: W, watch: DependencyWatch[W]) -> None:
        del watch.dependents[dependent]
        dependencies = self._dependencies[dependent]
        dependencies.discard(watch.on)
        if not dependencies:
            del self._dependencies[dependent]


def _has_any(watch: DependencyWatch[W]) -> bool:
    try:
        return bool(watch.objects())
    except InvalidObjectError:
        return True
