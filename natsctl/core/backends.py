"""The systems that store a controller's objects: NATS, a cluster, or both."""

from typing import Any

from natsctl.errors import UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import ManifestStore, ManifestStores, Store, Stores


class Backends:
    """Opens the stores of kinds in NATS and in a cluster; None means that one is not connected."""

    def __init__(self, *, nats: Stores | None, kube: ManifestStores | None) -> None:
        self.nats = nats
        self.kube = kube

    def use(self, *, nats: Stores | None, kube: ManifestStores | None) -> None:
        """Replace the systems that are not None."""
        self.nats = self.nats if nats is None else nats
        self.kube = self.kube if kube is None else kube

    def stores_of(self, kind: Kind[Any]) -> Stores:
        """Return the system that stores the kind; raises `UsageError` if it is not connected."""
        return self._cluster(kind) if isinstance(kind, KubeKind) else self._nats(kind)

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the kind's store; raises `UsageError` if its system is not connected."""
        return await self.stores_of(kind).open(kind)

    async def manifests(self, kind: KubeKind[Any]) -> ManifestStore:
        """Return the store of a kind of the cluster, as `open` does."""
        return await self._cluster(kind).open(kind)

    def _cluster(self, kind: Kind[Any]) -> ManifestStores:
        if self.kube is None:
            raise UsageError(
                f"{kind.name} is stored in Kubernetes, but no cluster exists: pass kube="
            )
        return self.kube

    def _nats(self, kind: Kind[Any]) -> Stores:
        if self.nats is None:
            raise UsageError(f"{kind.name} is stored in NATS, but no connection exists: pass nats=")
        return self.nats
