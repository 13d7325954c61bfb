"""Notes the calls of stores, and their answers, on the tape of the current sync."""

import asyncio
import copy
from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Self, TypeVar

from natsctl.core.backends import Backends
from natsctl.core.store_proxy import ManifestStoreProxy, Send, StoreProxy
from natsctl.core.sync import current_tape
from natsctl.core.tape import RecordedError, StoreCall, Tape
from natsctl.errors import StoreMissingError
from natsctl.model import documents
from natsctl.model.discovery import Discovers, ResourceType
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import Recorder
from natsctl.model.store import JetStream, ManifestStore, ManifestStores, Sequenced, Store, Stores
from natsctl.model.write_guard import WriteGuard

T = TypeVar("T")
S = TypeVar("S", bound=Store)
Systems = TypeVar("Systems", bound=Stores)


class NotedStore(StoreProxy[S]):
    """A store whose calls are noted; a `Store`. It has the other attributes of its store too."""

    def __init__(self, store: S) -> None:
        super().__init__(store)
        self._place = place_of(store.kind)

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._store, name)

    def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",
        *,
        revision: int | None = None,  # noqa: ARG002 - a recording does not have it
    ) -> Coroutine[Any, Any, T]:
        tape = current_tape()
        return send() if tape is None else self._note(tape, verb, key, send, value)

    async def _note(
        self, tape: Tape, verb: str, key: str, send: Send[T], value: bytes | Document
    ) -> T:
        clock = asyncio.get_running_loop().time
        begun, answer, failure = clock(), None, None
        written = value if isinstance(value, bytes) else documents.render(value)
        try:
            answer = await send()
        except BaseException as error:
            failure = RecordedError.of(error)
            raise
        finally:
            took_s = clock() - begun
            tape.append(StoreCall(self._place, verb, key, written, answer, failure, took_s))
        return answer


class NotedSequence(NotedStore[Any]):
    """A noted store with a newest revision; a `Sequenced`."""

    def last_revision(self) -> Coroutine[Any, Any, int]:
        """See `Sequenced.last_revision`."""
        return self._store.last_revision()  # type: ignore[no-any-return]  # a `Sequenced`

    def newest_revision(self) -> Coroutine[Any, Any, int]:
        """See `Sequenced.newest_revision`."""
        return self._store.newest_revision()  # type: ignore[no-any-return]  # a `Sequenced`


class NotedManifestStore(NotedStore[ManifestStore], ManifestStoreProxy[ManifestStore]):
    """A store with server-side apply whose calls are noted; a `ManifestStore`."""


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
