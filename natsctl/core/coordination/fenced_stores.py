"""Stores in which only a leader writes.

What is read is read by standbys too. A write is let through only while nobody else can be leading.
The servers cannot check that themselves: JetStream compares a write with the last revision of one
subject, its own or another of the same stream, and has no way to look at a lease in another stream;
nor has a kube-apiserver. So the epoch goes with no write. What was sent in time, and arrives after
somebody else has begun to lead, is refused by the compare-and-set that every write is, unless
nothing has changed since.
"""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from natsctl.core.coordination.guarded_steps import Steps
from natsctl.core.coordination.installation import INSTALLATION
from natsctl.core.coordination.term import Leadership
from natsctl.model.discovery import Discovers, ResourceType
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.recorder import EventType, Recorder
from natsctl.model.store import (
    Deleted,
    JetStream,
    ManifestStore,
    ManifestStores,
    Sequenced,
    Store,
    Stored,
    Stores,
    WatchEvent,
)

T = TypeVar("T")

_READING = {"INFO", "NAMES", "LIST", "MSG.GET"}


class FencedStore:
    """A `Store` whose writes raise `NotLeadingError` while somebody else may be leading.

    A write that waits meanwhile, for its turn or to be tried again, is cancelled where it would go
    on, whichever task it is in: it is not sent late.
    """

    def __init__(self, store: Store, leadership: Leadership) -> None:
        self.kind: Kind[Any] = store.kind
        self._store = store
        self._leadership = leadership

    def _steps(self, write: Awaitable[T]) -> Steps[T]:
        """Have a write that has begun take no step more when the term is over, nor be repeated."""
        return Steps(write, lambda: self._leadership.leads)

    async def get(self, key: str) -> Stored:
        """See `Store.get`."""
        return await self._store.get(key)

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`."""
        self._leadership.check()
        return await self._steps(self._store.create(key, value))

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """See `Store.update`."""
        self._leadership.check()
        return await self._steps(self._store.update(key, value, revision=revision))

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        """See `Store.delete`."""
        self._leadership.check()
        return await self._steps(self._store.delete(key, revision=revision, uid=uid, purge=purge))

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`."""
        return await self._store.history(key)

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch`."""
        return self._store.watch()


class FencedSequencedStore(FencedStore):
    """The same of a store that can say how far it is."""

    def __init__(self, store: Store, sequenced: Sequenced, leadership: Leadership) -> None:
        super().__init__(store, leadership)
        self._sequenced = sequenced

    async def newest_revision(self) -> int:
        """See `Sequenced.newest_revision`."""
        return await self._sequenced.newest_revision()


class FencedManifestStore(FencedStore):
    """The same of a `ManifestStore`."""

    def __init__(self, manifests: ManifestStore, leadership: Leadership) -> None:
        super().__init__(manifests, leadership)
        self.kind: KubeKind[Any] = manifests.kind
        self._manifests = manifests

    async def locate(self, manifest: Document) -> str:
        """See `ManifestStore.locate`."""
        return await self._manifests.locate(manifest)

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        """See `ManifestStore.apply`."""
        self._leadership.check()
        return await self._steps(
            self._manifests.apply(manifest, manager=manager, uid=uid, force=force)
        )

    async def managed(self, key: str) -> ManagedFields:
        """See `ManifestStore.managed`."""
        return await self._manifests.managed(key)

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        """See `ManifestStore.patch_status`."""
        self._leadership.check()
        return await self._steps(self._manifests.patch_status(key, patch, revision=revision))


class FencedRecorder:
    """A `Recorder` that is told of a key by whoever it is; others see the same, and say nothing."""

    def __init__(self, recorder: Recorder, leadership: Leadership) -> None:
        self._recorder = recorder
        self._leadership = leadership

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
    ) -> None:
        """See `Recorder.event`."""
        if self._leadership.has(key):
            self._recorder.event(key, type, reason, message, regarding)


class FencedStores:
    """A `Stores` whose stores are fenced.

    The installation's id is not: it is made once by whichever process is first, and never changed.
    """

    def __init__(self, stores: Stores, leadership: Leadership) -> None:
        self._stores = stores
        self._leadership = leadership

    async def open(self, kind: Kind[Any]) -> Store:
        """See `Stores.open`."""
        store = await self._stores.open(kind)
        if kind is INSTALLATION:
            return store
        if isinstance(store, Sequenced):
            return FencedSequencedStore(store, store, self._leadership)
        return FencedStore(store, self._leadership)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[Recorder]:
        """See `Stores.recorder`."""
        async with self._stores.recorder(controller) as recorder:
            yield FencedRecorder(recorder, self._leadership)


class FencedNats(FencedStores):
    """The same of a `JetStream`, which it is too."""

    def __init__(self, stores: Stores, jetstream: JetStream, leadership: Leadership) -> None:
        super().__init__(stores, leadership)
        self._jetstream = jetstream

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """See `JetStream.api`; what does more than read is fenced."""
        what = endpoint.partition(".")[2] or endpoint
        if not any(what == verb or what.startswith(f"{verb}.") for verb in _READING):
            self._leadership.check()
        return await self._jetstream.api(endpoint, body)


class FencedCluster(FencedStores):
    """The same of a `Cluster`."""

    def __init__(self, cluster: ManifestStores, leadership: Leadership) -> None:
        super().__init__(cluster, leadership)
        self._cluster = cluster

    async def open(self, kind: Kind[Any]) -> FencedManifestStore:
        """See `ManifestStores.open`."""
        return FencedManifestStore(await self._cluster.open(kind), self._leadership)

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        """See `Discovers.resource`."""
        discovers: Discovers = self._cluster  # type: ignore[assignment]  # asked of those who can
        return await discovers.resource(api_version, kind)


def fenced(stores: Stores, leadership: Leadership) -> FencedStores:
    """Return the same stores, in which only a leader writes; a `JetStream` where they are one."""
    if isinstance(stores, JetStream):
        return FencedNats(stores, stores, leadership)
    return FencedStores(stores, leadership)
