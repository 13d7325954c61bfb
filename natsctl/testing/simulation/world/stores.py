"""The stores as one process of a world sees them: through the network."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, Self, TypeVar

import msgspec

from natsctl.errors import UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import Recorder
from natsctl.model.store import Deleted, Stored, WatchEvent
from natsctl.model.write_guard import UNGUARDED, WriteGuard
from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.kinds import MemoryResource
from natsctl.testing.manifest_store import MemoryManifestStore
from natsctl.testing.memory import MemoryStore, MemoryStores
from natsctl.testing.simulation.world.faults import (
    READ_FAULTS,
    REPLACE_FAULTS,
    REQUEST_FAULTS,
    WRITE_FAULTS,
    FaultType,
)
from natsctl.testing.simulation.world.network import Life, Network

T = TypeVar("T")
S = TypeVar("S", bound=MemoryStore | MemoryManifestStore)


class Connection(msgspec.Struct, frozen=True):
    """The connection of one life of a process to the network."""

    network: Network
    life: Life
    process: str


class SimulatedStore(Generic[S]):
    """A store behind a connection; a `Store`."""

    def __init__(self, base: S, connection: Connection, guard: WriteGuard = UNGUARDED) -> None:
        self._base = base
        self._at = connection
        self._guard = guard
        self.place = place_of(base.kind)

    @property
    def kind(self) -> Kind[Any]:
        """The kind of the objects."""
        return self._base.kind

    async def get(self, key: str) -> Stored:
        """See `Store.get`."""
        return await self._read("get", key, lambda: self._base.get(key))

    async def create(self, key: str, value: bytes) -> Stored:
        """See `Store.create`."""

        async def create() -> Stored:
            stored = await self._base.create(key, value)
            self._wrote("create", key, value)
            return stored

        return await self._write("create", key, create, WRITE_FAULTS)

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        """See `Store.update`."""

        async def update() -> Stored:
            stored = await self._base.update(key, value, revision=revision)
            self._wrote("update", key, value)
            return stored

        return await self._write("update", key, update, REPLACE_FAULTS)

    async def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> int:
        """See `Store.delete`."""

        async def delete() -> int:
            deleted = await self._base.delete(key, revision=revision, uid=uid, purge=purge)
            self._wrote("delete", key)
            return deleted

        types = WRITE_FAULTS if revision is None else REPLACE_FAULTS
        return await self._write("delete", key, delete, types)

    async def history(self, key: str) -> list[Stored | Deleted]:
        """See `Store.history`."""
        return await self._read("history", key, lambda: self._base.history(key))

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch`."""
        return self._at.network.watch(self._at.life, self.place, self._base.watch)

    def _read(self, operation: str, key: str, action: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        network, life = self._at.network, self._at.life
        return network.call(life, operation, self.place, key, action, types=READ_FAULTS)

    def _write(
        self,
        operation: str,
        key: str,
        action: Callable[[], Awaitable[T]],
        types: tuple[FaultType, ...],
    ) -> Awaitable[T]:
        network, life = self._at.network, self._at.life
        return network.call(
            life, operation, self.place, key, action, types=types, may_send=self._may_send
        )

    def _may_send(self) -> None:
        self._guard.check(self.kind)

    def _wrote(self, operation: str, key: str, value: bytes = b"") -> None:
        self._at.network.wrote(self._at.process, operation, self.place, key, value)


class SimulatedBucket(SimulatedStore[MemoryStore]):
    """A bucket behind a connection."""

    async def newest_revision(self) -> int:
        """See `Sequenced.newest_revision`."""
        return await self._read("read", "", self._base.newest_revision)


class SimulatedManifests(SimulatedStore[MemoryManifestStore]):
    """The objects of one kind of a cluster behind a connection; a `ManifestStore`."""

    @property
    def kind(self) -> KubeKind[Any]:
        """The kind of the objects."""
        return self._base.kind

    async def locate(self, manifest: Document) -> str:
        """See `ManifestStore.locate`."""
        return await self._base.locate(manifest)

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        """See `ManifestStore.apply`."""
        key = await self._base.locate(manifest)

        async def apply() -> Stored:
            before = self._base.writes
            stored = await self._base.apply(manifest, manager=manager, uid=uid, force=force)
            if self._base.writes > before:
                self._wrote("apply", key, documents.render(manifest))
            return stored

        return await self._write("apply", key, apply, REPLACE_FAULTS)

    async def managed(self, key: str) -> ManagedFields:
        """See `ManifestStore.managed`."""
        return await self._read("read", key, lambda: self._base.managed(key))

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        """See `ManifestStore.patch_status`."""

        async def patch_status() -> Stored:
            before = self._base.writes
            stored = await self._base.patch_status(key, patch, revision=revision)
            if self._base.writes > before:
                self._wrote("patch status of", key, documents.render(patch))
            return stored

        types = WRITE_FAULTS if revision is None else REPLACE_FAULTS
        return await self._write("patch", key, patch_status, types)


class SimulatedStores:
    """The buckets behind a connection; a `Stores` with a JetStream API."""

    def __init__(
        self, base: MemoryStores, connection: Connection, guard: WriteGuard = UNGUARDED
    ) -> None:
        self._base = base
        self._at = connection
        self._guard = guard

    async def open(self, kind: Kind[Any]) -> SimulatedBucket:
        """See `Stores.open`."""
        return self.store(kind)

    def store(self, kind: Kind[Any]) -> SimulatedBucket:
        """Return the kind's store."""
        self._at.network.opened[place_of(kind)] = kind
        return SimulatedBucket(self._base.store(kind), self._at, self._guard)

    def guarded(self, guard: WriteGuard) -> Self:
        """See `Stores.guarded`; the guard is asked before a write is sent."""
        return type(self)(self._base, self._at, guard)

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """See `JetStream.api`."""
        network, life, changes = self._at.network, self._at.life, _changes(endpoint)

        async def api() -> dict[str, Any]:
            response = await self._base.api(endpoint, body)
            if changes:
                network.wrote(self._at.process, "request", "jetstream", endpoint)
            return response

        def may_send() -> None:
            if changes:
                self._guard.check(None)

        types = REQUEST_FAULTS if changes else READ_FAULTS
        return await network.call(
            life, "request", "jetstream", endpoint, api, types=types, may_send=may_send
        )

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[Recorder]:
        """See `Stores.recorder`."""
        async with self._base.guarded(self._guard).recorder(controller) as recorder:
            yield recorder


class SimulatedCluster:
    """The kinds of a cluster behind a connection; a `ManifestStores`."""

    def __init__(
        self, base: MemoryCluster, connection: Connection, guard: WriteGuard = UNGUARDED
    ) -> None:
        self._base = base
        self._at = connection
        self._guard = guard

    async def open(self, kind: Kind[Any]) -> SimulatedManifests:
        """See `ManifestStores.open`."""
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not a Kubernetes kind")
        self._at.network.opened[place_of(kind)] = kind
        return SimulatedManifests(self._base.store(kind), self._at, self._guard)

    def guarded(self, guard: WriteGuard) -> Self:
        """See `Stores.guarded`; the guard is asked before a write is sent."""
        return type(self)(self._base, self._at, guard)

    async def resource(self, api_version: str, kind: str) -> MemoryResource:
        """See `Discovers.resource`."""
        return await self._base.resource(api_version, kind)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[Recorder]:
        """See `Stores.recorder`."""
        async with self._base.guarded(self._guard).recorder(controller) as recorder:
            yield recorder


def place_of(kind: Kind[Any]) -> str:
    """Return the bucket of a kind, or the kind in a cluster, as findings name it."""
    if isinstance(kind, KvKind):
        return kind.bucket
    return kind.kind if isinstance(kind, KubeKind) else kind.name


def _changes(endpoint: str) -> bool:
    verbs = endpoint.split(".")[:2]
    return not {"INFO", "NAMES", "LIST"}.intersection(verbs)
