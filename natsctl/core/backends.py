"""The systems that store a controller's objects: NATS, a cluster, or both."""

from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from natsctl.core.store_proxy import Send, StoreProxy
from natsctl.core.sync import current_tape
from natsctl.core.tape import place_of
from natsctl.errors import UsageError
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import ManifestStore, ManifestStores, Sequenced, Store, Stores

T = TypeVar("T")


class TapedStore(StoreProxy):
    """A store whose calls the tape of the sync notes, or answers in a replay."""

    def __init__(self, store: Store) -> None:
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
        revision: int | None = None,
    ) -> Coroutine[Any, Any, T]:
        tape = current_tape()
        if tape is None:
            return send()
        if revision is not None:
            expected = tape.expected(self._place, key, revision)
            send = partial(send, revision=expected)  # type: ignore[call-arg]  # all such verbs have it
        return tape.call(self._place, verb, key, send, value)


class TapedBucket(TapedStore):
    """The same around a store with a newest revision; a `Sequenced`."""

    def last_revision(self) -> Coroutine[Any, Any, int]:
        return self._store.last_revision()  # type: ignore[no-any-return]  # a `Sequenced`

    def newest_revision(self) -> Coroutine[Any, Any, int]:
        return self._store.newest_revision()  # type: ignore[no-any-return]  # a `Sequenced`


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

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the kind's store; raises `UsageError` if its system is not connected."""
        store = await self.stores_of(kind).open(kind)
        return TapedBucket(store) if isinstance(store, Sequenced) else TapedStore(store)

    async def manifests(self, kind: KubeKind[Any]) -> ManifestStore:
        """Return the store of a kind of the cluster, as `open` does."""
        return TapedStore(await self.stores_of(kind).open(kind))
