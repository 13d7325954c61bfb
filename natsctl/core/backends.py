"""The systems that store a controller's objects: NATS, a cluster, or both."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias, TypeVar

from natsctl.core.sync import current_tape
from natsctl.core.tape import place_of
from natsctl.errors import UsageError
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import ManifestStores, Sequenced, Store, Stores

T = TypeVar("T")

Send: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
"""Calls the store below."""

_VERBS = {"get", "create", "update", "delete", "history", "managed", "patch_status"}
_OF_MANIFESTS = {"apply", "check_create"}


class StoreProxy(ABC):
    """A store that makes each call of the *store* below in `_call`; a `ManifestStore` above one.

    It has the other attributes of the store too.
    """

    kind: Any
    get: Any
    create: Any
    update: Any
    delete: Any
    history: Any
    watch: Any
    locate: Any
    apply: Any
    check_create: Any
    managed: Any
    patch_status: Any

    def __init__(self, store: Store) -> None:
        self._store: Any = store

    @abstractmethod
    def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",
        *,
        revision: int | None = None,
    ) -> Coroutine[Any, Any, T]:
        """Make a call with *send*, and return its answer.

        Args:
            verb: the name of the method.
            key: the key of the object.
            send: calls the store below.
            value: the value, the manifest or the patch that the call writes.
            revision: the revision that the call expects, if it expects one.
        """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        below = getattr(self._store, name)
        if name in _VERBS:

            def call(key: str, *value: bytes | Document, **options: Any) -> Any:
                send = partial(below, key, *value, **options)
                return self._call(name, key, send, *value, revision=options.get("revision"))

            return call
        if name in _OF_MANIFESTS:

            async def write(manifest: Document, **options: Any) -> Any:
                key = await self._store.locate(manifest)
                return await self._call(name, key, partial(below, manifest, **options), manifest)

            return write
        return below


class TapedStore(StoreProxy):
    """A store whose calls the tape of the sync notes, or answers in a replay."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._place = place_of(store.kind)
        if isinstance(store, Sequenced):  # so is this store
            self.last_revision, self.newest_revision = store.last_revision, store.newest_revision

    def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",
        *,
        revision: int | None = None,
    ) -> Coroutine[Any, Any, T]:
        tape = current_tape()
        if tape is None:
            return send()
        if revision is not None:
            expected = tape.expected(self._place, key, revision)
            send = partial(send, revision=expected)  # type: ignore[call-arg]  # all such verbs have it
        return tape.call(self._place, verb, key, send, value)


class Backends:
    """Opens the stores of kinds in NATS and in a cluster; None means that one is not connected."""

    def __init__(self, *, nats: Stores | None, kube: ManifestStores | None) -> None:
        self.nats = nats
        self.kube = kube

    def use(self, *, nats: Stores | None, kube: ManifestStores | None) -> None:
        """Replace the systems that are not None."""
        self.nats = self.nats if nats is None else nats
        self.kube = self.kube if kube is None else kube

    def stores_of(self, kind: Kind[Any]) -> Stores | ManifestStores:
        """Return the system that stores the kind; raises `UsageError` if it is not connected."""
        if not isinstance(kind, KubeKind):
            if self.nats is None:
                raise UsageError(
                    f"{kind.name} is stored in NATS, but no connection exists: pass nats="
                )
            return self.nats
        if self.kube is None:
            raise UsageError(
                f"{kind.name} is stored in Kubernetes, but no cluster exists: pass kube="
            )
        return self.kube

    async def open(self, kind: Kind[Any]) -> TapedStore:
        """Return the kind's store; raises `UsageError` if its system is not connected."""
        return TapedStore(await self.stores_of(kind).open(kind))
