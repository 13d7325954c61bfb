"""Reads objects of any kind within a sync, and enqueues the key when they change.

A batch of reads surrounds each sync. An object is watched before it is read, so that no change is
missed. A watch ends when the next sync does not read its object.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from natsctl.core.backends import Backends
from natsctl.core.dependencies import Dependency, DependencyWatches, one, those
from natsctl.core.sync import Sync, current_sync
from natsctl.core.tape import DependencyStep, place_of
from natsctl.errors import InvalidKeyError, InvalidObjectError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.selectors import Selector
from natsctl.model.store import Store, Stored
from natsctl.slices import in_slices, retain

T = TypeVar("T")


class Reads:
    """Reads objects of any kind for the key that is being synced, and watches them.

    When an object changes that a sync has read, its key is synced again; so it is when an object
    is created that the sync found missing. All keys that read an object share one watch.

    Seed: stolostron kubernetes-dependency-watches v0.5.2, whose query batches are syncs here.
    """

    def __init__(
        self,
        backends: Backends,
        enqueue: Callable[[str], None],
        is_claimed: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._is_claimed = is_claimed  # returns whether a key is being synced
        self._backends = backends
        self._watches = DependencyWatches(self._open, enqueue)
        self.dependents = self._watches.dependents  # keys that depend on objects, a live view

    @property
    def watch_count(self) -> int:
        """The number of watches."""
        return len(self._watches)

    async def get(self, kind: Kind[T], key: str) -> T | None:
        """Return a new copy of the object; None if it doesn't exist.

        Only the first read of an object waits for its server. Raises `InvalidKeyError`,
        `InvalidObjectError` if the object never had a valid state, a `StoreError` if it can't be
        watched, and `UsageError` outside a sync.
        """
        states = await self._read(one(kind, key))
        return next((kind.decode(stored.value) for stored in states if stored.key == key), None)

    async def list(
        self, kind: Kind[T], *, labels: str | Mapping[str, str] | None = None
    ) -> dict[str, T]:
        """Return new copies of the objects of the kind, or of a part of it, by key.

        *labels* is a label selector, as `kubectl -l` takes it, or the labels of the objects. The
        result lacks objects that never had a valid state. Raises the errors of `get`.
        """
        selector = Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
        decoded = dict[str, T]()

        def decode(stored: Stored) -> None:
            decoded[stored.key] = kind.decode(stored.value)

        await in_slices(await self._read(those(kind, selector)), decode)
        return decoded

    def depends_on(self, key: str) -> Sequence[str]:
        """Return the objects and selections whose changes enqueue the key, as text."""
        return sorted(map(str, self._watches.dependencies_of(key)))

    def end(self, sync: Sync) -> None:
        """End the watches of the key on all objects that its sync did not read."""
        if sync.read or sync.key in self.dependents:
            self._watches.keep_only(sync.key, sync.read or ())

    async def keep(self, wanted: Callable[[str], bool]) -> None:
        """End the watches of keys that are not *wanted* and are not being synced, in slices."""
        await retain(
            self.dependents,
            lambda key: self._is_claimed(key) or wanted(key),
            lambda key: self._watches.keep_only(key, ()),
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._watches.running()

    async def _read(self, dependency: Dependency[Any]) -> Sequence[Stored]:
        sync = current_sync.get()
        if sync is None or sync.over:
            raise UsageError(f"{dependency} can be read only within a sync handler")
        if sync.read is None:
            sync.read = set()
        sync.read.add(dependency)
        states = await (await self._watches.depend(sync.key, dependency)).read()
        if sync.tape is not None:
            place = place_of(dependency.kind)
            sync.tape.append(DependencyStep(str(dependency), place, tuple(states)))
        return states

    def _open(self, kind: Kind[Any]) -> Awaitable[Store]:
        if isinstance(kind, KubeKind) and kind.object_name is not None:
            return self._open_one(kind, kind.object_name)
        return self._backends.open(kind)

    async def _open_one(self, kind: KubeKind[Any], name: str) -> Store:
        """Return the store; raises `InvalidKeyError` if the kind cannot have this namespace."""
        manifests = await self._backends.open(kind)
        metadata = {"name": name, "namespace": kind.namespace or ""}
        try:
            await manifests.locate({"metadata": metadata})
        except InvalidObjectError as error:
            raise InvalidKeyError(str(error)) from error
        return manifests
