"""The stores as one process of a world sees them: through the network."""

from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, TypeVar

from natsctl.core.backends import Send, StoreProxy
from natsctl.errors import UsageError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import UNGUARDED, Guarded, Recorder, WatchEvent, WriteGuard
from natsctl.testing.cluster import MemoryCluster
from natsctl.testing.jetstream import changes_something
from natsctl.testing.kinds import MemoryResource
from natsctl.testing.manifest_store import MemoryManifestStore
from natsctl.testing.memory import MemoryStore, MemoryStores
from natsctl.testing.simulation.world.faults import (
    READ_FAULTS,
    REPLACE_FAULTS,
    REQUEST_FAULTS,
    WRITE_FAULTS,
)
from natsctl.testing.simulation.world.network import Life

T = TypeVar("T")
Base = TypeVar("Base", bound=MemoryStores | MemoryCluster)

_READS = {"check_create", "get", "history", "managed", "read"}
_PARTIAL = {"apply", "patch_status"}  # verbs that may change nothing
_OPERATIONS = {"check_create": "check", "managed": "read", "patch_status": "patch"}  # others: equal


class SimulatedStore(StoreProxy):
    """A store behind a connection; a `ManifestStore` for a kind of a cluster."""

    def __init__(
        self,
        base: MemoryStore | MemoryManifestStore,
        life: Life,
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        super().__init__(base)
        self._life = life
        self._guard = guard
        self.place = place_of(base.kind)

    def watch(
        self, shown: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        opened = partial(self._store.watch, shown)
        return self._life.network.watch(self._life, self.place, opened, self._store.forget)

    def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",
        *,
        revision: int | None = None,
    ) -> Coroutine[Any, Any, T]:
        network, life = self._life.network, self._life
        operation = _OPERATIONS.get(verb, verb)
        if verb in _READS:
            return network.call(life, operation, self.place, key, send, types=READ_FAULTS)

        async def write() -> T:
            before = self._store.writes
            result = await send()
            if verb not in _PARTIAL or self._store.writes > before:
                self._wrote(verb, key, value)
            return result

        replaces = verb == "apply" or revision is not None
        return network.call(
            life,
            operation,
            self.place,
            key,
            write,
            types=REPLACE_FAULTS if replaces else WRITE_FAULTS,
            may_send=self._may_send,
        )

    def _may_send(self) -> None:
        self._guard.check(self.kind)

    def _wrote(self, verb: str, key: str, value: bytes | Document) -> None:
        operation = "patch status of" if verb == "patch_status" else verb
        written = value if isinstance(value, bytes) else documents.render(value)
        self._life.network.wrote(self._life.name, operation, self.place, key, written)


class SimulatedBucket(SimulatedStore):
    """A bucket behind a connection; a `Sequenced`."""

    def last_revision(self) -> Coroutine[Any, Any, int]:
        return self._call("read", "", self._store.last_revision)

    def newest_revision(self) -> Coroutine[Any, Any, int]:
        return self._call("read", "", self._store.newest_revision)


class _Simulated(Guarded, Generic[Base]):
    """A system behind a connection, whose guard is asked before a write is sent."""

    forgets = True  # no record of failing keys

    def __init__(self, base: Base, life: Life) -> None:
        self._base = base
        self._life = life

    def recorder(self, controller: str) -> AbstractAsyncContextManager[Recorder]:
        return self._base.guarded(self.guard).recorder(controller)


class SimulatedStores(_Simulated[MemoryStores]):
    """The buckets behind a connection; a `Stores` with a JetStream API."""

    async def open(self, kind: Kind[Any]) -> SimulatedBucket:
        return self.store(kind)

    def store(self, kind: Kind[Any]) -> SimulatedBucket:
        """Return the kind's store."""
        self._life.network.opened[place_of(kind)] = kind
        return SimulatedBucket(self._base.store(kind), self._life, self.guard)

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        network, life, changes = self._life.network, self._life, changes_something(endpoint)

        async def api() -> dict[str, Any]:
            response = await self._base.api(endpoint, body)
            if changes:
                network.wrote(self._life.name, "request", "jetstream", endpoint)
            return response

        def may_send() -> None:
            if changes:
                self.guard.check(None)

        types = REQUEST_FAULTS if changes else READ_FAULTS
        return await network.call(
            life, "request", "jetstream", endpoint, api, types=types, may_send=may_send
        )


class SimulatedCluster(_Simulated[MemoryCluster]):
    """The kinds of a cluster behind a connection; a `ManifestStores`."""

    async def open(self, kind: Kind[Any]) -> SimulatedStore:
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not a Kubernetes kind")
        self._life.network.opened[place_of(kind)] = kind
        return SimulatedStore(self._base.store(kind), self._life, self.guard)

    async def resource(self, api_version: str, kind: str) -> MemoryResource:
        return await self._base.resource(api_version, kind)


def place_of(kind: Kind[Any]) -> str:
    """Return the bucket of a kind, or the kind in a cluster, as findings name it."""
    if isinstance(kind, KvKind):
        return kind.bucket
    return kind.kind if isinstance(kind, KubeKind) else kind.name
