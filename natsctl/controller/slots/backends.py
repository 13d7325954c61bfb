"""Where a controller's kinds are kept: in NATS, and in a cluster where it has such kinds."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from natsctl.controller.slots.declare import slots
from natsctl.controller.slots.kube_secondary import KubeSecondary
from natsctl.core.coordination.installation import Installation, installation
from natsctl.errors import UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import Recorder
from natsctl.model.store import ManifestStore, ManifestStores, Store, Stores


class Systems:
    """The systems that keep what a controller works with.

    Raises `UsageError` for a controller with kinds of a cluster where no cluster is given.
    """

    def __init__(self, controller: type, nats: Stores, kube: ManifestStores | None) -> None:
        self._nats = nats
        self._kube = kube
        self._tells_kube = any(slot.role is KubeSecondary for slot in slots(controller))
        for slot in slots(controller):
            if isinstance(slot.kind, KubeKind) and kube is None:
                raise UsageError(
                    f"{controller.__name__}.{slot.name} is kept in Kubernetes, and no cluster is "
                    "given: pass kube=, as natsctl.connect_kube gives it"
                )

    async def open(self, kind: Kind[Any]) -> Store:
        """Return the kind's store."""
        return await (self.manifests(kind) if isinstance(kind, KubeKind) else self._nats.open(kind))

    async def installation(self) -> Installation:
        """Return the installation: the NATS system that keeps the primaries."""
        return await installation(self._nats)

    async def manifests(self, kind: KubeKind[Any]) -> ManifestStore:
        """Return the store of a kind of the cluster."""
        if self._kube is None:
            raise UsageError(f"{kind.name} is kept in Kubernetes, and no cluster is given")
        return await self._kube.open(kind)

    @asynccontextmanager
    async def recorders(self, controller: str) -> AsyncIterator[list[Recorder]]:
        """Return where events of the controller go; leaving the context sends what is left."""
        async with AsyncExitStack() as stack:
            kube = [self._kube] if self._kube is not None and self._tells_kube else []
            systems = [self._nats, *kube]
            yield [await stack.enter_async_context(at.recorder(controller)) for at in systems]
