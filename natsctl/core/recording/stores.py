"""Notes the calls of stores, and their answers, on the tape of the current sync."""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeAlias, TypeVar

from natsctl.core.objects.backends import Backends
from natsctl.core.objects.read_your_writes import current_tape
from natsctl.core.objects.tape import RecordedError, StoreCall, Tape
from natsctl.errors import StoreMissingError
from natsctl.model import documents
from natsctl.model.discovery import Discovers, ResourceType
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import Recorder
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
from natsctl.model.write_guard import WriteGuard

T = TypeVar("T")
S = TypeVar("S", bound=Store)
Systems = TypeVar("Systems", bound=Stores)


Send: TypeAlias = Callable[[], Coroutine[Any, Any, T]]


class NotedStore(Generic[S]):
    """A store whose calls are noted; a `Store`. It has the other attributes of its store too."""

    def __init__(self, store: S) -> None:
        self._store = store
        self._place = place_of(store.kind)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._store, name)

    @property
    def kind(self) -> Kind[Any]:
        """See `Store.kind`."""
        return self._store.kind

    def get(self, key: str) -> Coroutine[Any, Any, Stored]:
        """See `Store.get`."""
        return self._noted("get", key, lambda: self._store.get(key))

    def create(self, key: str, value: bytes) -> Coroutine[Any, Any, Stored]:
        """See `Store.create`."""
        return self._noted("create", key, lambda: self._store.create(key, value), value)

    def update(self, key: str, value: bytes, *, revision: int) -> Coroutine[Any, Any, Stored]:
        """See `Store.update`."""
        return self._noted(
            "update", key, lambda: self._store.update(key, value, revision=revision), value
        )

    def delete(
        self, key: str, *, revision: int | None = None, uid: str = "", purge: bool = False
    ) -> Coroutine[Any, Any, int]:
        """See `Store.delete`."""
        return self._noted(
            "delete", key, lambda: self._store.delete(key, revision=revision, uid=uid, purge=purge)
        )

    def history(self, key: str) -> Coroutine[Any, Any, list[Stored | Deleted]]:
        """See `Store.history`."""
        return self._noted("history", key, lambda: self._store.history(key))

    def watch(self) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """See `Store.watch`."""
        return self._store.watch()

    def _noted(
        self, verb: str, key: str, call: Send[T], value: bytes = b""
    ) -> Coroutine[Any, Any, T]:
        tape = current_tape()
        return call() if tape is None else self._note(tape, verb, key, call, value)

    async def _note(
        self,
        tape: Tape,
        verb: str,
        key: str,
        call: Send[T],
        value: bytes,
    ) -> T:
        clock = asyncio.get_running_loop().time
        begun, answer, failure = clock(), None, None
        try:
            answer = await call()
        except BaseException as error:
            failure = RecordedError.of(error)
            raise
        finally:
            took_s = clock() - begun
            tape.append(StoreCall(self._place, verb, key, value, answer, failure, took_s))
        return answer


class NotedSequence(NotedStore[Any]):
    """A noted store with a newest revision; a `Sequenced`."""

    def newest_revision(self) -> Coroutine[Any, Any, int]:
        """See `Sequenced.newest_revision`."""
        return self._store.newest_revision()  # type: ignore[no-any-return]  # a `Sequenced`


class NotedManifestStore(NotedStore[ManifestStore]):
    """A store with server-side apply whose calls are noted; a `ManifestStore`."""

    @property
    def kind(self) -> KubeKind[Any]:
        """See `ManifestStore.kind`."""
        return self._store.kind

    def locate(self, manifest: Document) -> Coroutine[Any, Any, str]:
        """See `ManifestStore.locate`."""
        return self._store.locate(manifest)

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        """See `ManifestStore.apply`."""
        store = self._store
        key = await store.locate(manifest)
        return await self._noted(
            "apply",
            key,
            lambda: store.apply(manifest, manager=manager, uid=uid, force=force),
            documents.render(manifest),
        )

    def managed(self, key: str) -> Coroutine[Any, Any, ManagedFields]:
        """See `ManifestStore.managed`."""
        return self._noted("managed", key, lambda: self._store.managed(key))

    def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Coroutine[Any, Any, Stored]:
        """See `ManifestStore.patch_status`."""
        return self._noted(
            "patch_status",
            key,
            lambda: self._store.patch_status(key, patch, revision=revision),
            documents.render(patch),
        )


class _Noted(Generic[Systems]):
    """A system whose stores note their calls. It has the other attributes of the system too."""

    def __init__(self, stores: Systems) -> None:
        self._stores = stores

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._stores, name)

    def guarded(self, guard: WriteGuard) -> Self:
        """See `Stores.guarded`."""
        guarded = copy.copy(self)
        guarded._stores = self._stores.guarded(guard)  # noqa: SLF001 - of a copy of this object
        return guarded

    def recorder(self, controller: str) -> AbstractAsyncContextManager[Recorder]:
        """See `Stores.recorder`."""
        return self._stores.recorder(controller)


class NotedStores(_Noted[Stores]):
    """A NATS system whose stores note their calls; a `Stores`."""

    async def open(self, kind: Kind[Any]) -> Store:
        """See `Stores.open`."""
        store = await self._stores.open(kind)
        return NotedSequence(store) if isinstance(store, Sequenced) else NotedStore(store)

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """See `JetStream.api`."""
        if not isinstance(self._stores, JetStream):
            raise StoreMissingError("these stores have no JetStream API")
        return await self._stores.api(endpoint, body)


class NotedManifestStores(_Noted[ManifestStores]):
    """A cluster whose stores note their calls; a `ManifestStores`."""

    async def open(self, kind: Kind[Any]) -> ManifestStore:
        """See `ManifestStores.open`."""
        return NotedManifestStore(await self._stores.open(kind))

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        """See `Discovers.resource`."""
        if not isinstance(self._stores, Discovers):
            raise StoreMissingError("this cluster cannot look kinds up")
        return await self._stores.resource(api_version, kind)


def noted(backends: Backends) -> Backends:
    """Return the same systems, whose stores note their calls if recordings are kept here."""
    nats, kube = backends.nats, backends.kube
    return Backends(
        nats=None if nats is None else NotedStores(nats),
        kube=None if kube is None else NotedManifestStores(kube),
    )


def place_of(kind: Kind[Any]) -> str:
    """Return the place of the objects of a kind: `kv/BUCKET`, or `kube/API-VERSION/KIND`."""
    if isinstance(kind, KvKind):
        return f"kv/{kind.bucket}"
    return f"kube/{kind.api_version}/{kind.kind}" if isinstance(kind, KubeKind) else kind.name
