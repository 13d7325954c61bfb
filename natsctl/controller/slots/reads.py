"""Reads within a sync that are remembered: what was read wakes the key when it changes.

Around each sync there is a batch of reads. Whatever the sync reads is watched first and read then,
so that no change falls in between; what the next sync does not read any more is let go.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from natsctl.core.dependencies.batches import Batches
from natsctl.core.dependencies.dependency import Dependency, one, those
from natsctl.core.dependencies.watches import Cause, DependencyWatches
from natsctl.core.objects.backends import Backends
from natsctl.core.objects.read_your_writes import current_sync
from natsctl.core.sync.calls import awaitable
from natsctl.core.sync.loop import SyncHandler
from natsctl.errors import InvalidKeyError, InvalidObjectError, UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.selectors import Selector
from natsctl.model.store import Store, Stored

T = TypeVar("T")


class Reads:
    """Reads objects of any kind, for the key being synced, and watches them from then on.

    A change of what a sync read wakes its key, and so does an object that comes where it read that
    there is none. There is one watch for each object or selection, however many keys read it.

    Args:
        backends: opens the stores of kinds.
        wake: told which keys to visit.

    Seed: stolostron kubernetes-dependency-watches v0.5.2, whose query batches are syncs here.
    """

    def __init__(self, backends: Backends, wake: Callable[[str], None]) -> None:
        self._backends = backends
        self._wake = wake
        self._watches = DependencyWatches(self._open, self._woken)
        self._batches = Batches(self._watches)

    @property
    def watch_count(self) -> int:
        """How many watches there are."""
        return len(self._watches)

    async def get(self, kind: Kind[T], key: str) -> T | None:
        """Return the object, decoded anew; None where it does not exist.

        Waits for the server only where nobody has read it before. Raises `InvalidKeyError`;
        `InvalidObjectError` where no state of it ever was valid; the `StoreError` that says why it
        cannot be watched; `UsageError` outside a sync.
        """
        found = await self._read(one(kind, key))
        return next((kind.decode(stored.value) for stored in found if stored.key == key), None)

    async def list(
        self, kind: Kind[T], *, labels: str | Mapping[str, str] | None = None
    ) -> dict[str, T]:
        """Return the objects of this kind, or of this part of it, decoded anew, by key.

        *labels* is a label selector, as `kubectl -l` takes it, or the labels that they have. What
        never was valid is left out. Raises what `get` raises.
        """
        selector = Selector.parse(labels) if isinstance(labels, str) else Selector.of(labels or {})
        found = await self._read(those(kind, selector))
        return {stored.key: kind.decode(stored.value) for stored in found}

    def depends_on(self, key: str) -> Sequence[str]:
        """Return what wakes *key*, for people."""
        return sorted(map(str, self._watches.of(key)))

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Watch nothing more for keys that are not *wanted*, unless they are being synced."""
        for key in self._watches.dependents:
            if key not in self._batches and not wanted(key):
                self._watches.keep_only(key, ())

    def running(self) -> AbstractAsyncContextManager[None]:
        """Let there be watches for as long as the context lasts."""
        return self._watches.running()

    def tracked(self, handler: SyncHandler) -> SyncHandler:
        """Return the handler with a batch of reads around each of its runs.

        One that fails may not have come to all that it reads: then nothing is let go.
        """

        async def sync(key: str) -> float | None:
            self._batches.start(key)
            try:
                after = await awaitable(handler, key)
            except BaseException:
                self._batches.abandon(key)
                raise
            self._batches.end(key)
            return after

        return sync

    async def _read(self, on: Dependency[Any]) -> Sequence[Stored]:
        sync = current_sync.get()
        if sync is None:
            raise UsageError(f"{on} is read within a sync handler only, for the key being synced")
        return (await self._batches.read(sync.key, on)).objects()

    def _woken(self, key: str, cause: Cause) -> None:
        if cause is not Cause.FOUND:  # who reads it knows
            self._wake(key)

    def _open(self, kind: Kind[Any]) -> Awaitable[Store]:
        if isinstance(kind, KubeKind) and kind.object_name is not None:
            return self._open_one(kind, kind.object_name)
        return self._backends.open(kind)

    async def _open_one(self, kind: KubeKind[Any], name: str) -> Store:
        """Return the store, once it is known that an object can have this namespace, or none."""
        manifests = await self._backends.manifests(kind)
        metadata = {"name": name, "namespace": kind.namespace or ""}
        try:
            await manifests.locate({"metadata": metadata})
        except InvalidObjectError as error:
            raise InvalidKeyError(str(error)) from error
        return manifests
