"""A cluster in memory, with a store for each kind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from natsctl.errors import UsageError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import Guarded
from natsctl.testing.cluster_objects import ClusterObjects
from natsctl.testing.kinds import MemoryKinds, MemoryResource
from natsctl.testing.manifest_store import MemoryManifestStore
from natsctl.testing.recorder import MemoryRecorder


class MemoryCluster(Guarded):
    """Stores in memory, one per kind; a `ManifestStores`. `kinds` has their names and scopes."""

    def __init__(self, events: MemoryRecorder) -> None:
        self.events = events
        self.kinds = MemoryKinds()
        self._kinds: dict[tuple[str, str], ClusterObjects] = {}

    async def open(self, kind: Kind[Any]) -> MemoryManifestStore:
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not a Kubernetes kind")
        return self.store(kind)

    def store(self, kind: KubeKind[Any]) -> MemoryManifestStore:
        """Return the kind's store."""
        named = kind.api_version, kind.kind
        objects = self._kinds.setdefault(named, ClusterObjects())
        return MemoryManifestStore(kind, objects, self.kinds, guard=self.guard)

    @property
    def delivered(self) -> bool:
        """True if every open watch has yielded every change."""
        return all(objects.delivered for objects in self._kinds.values())

    async def resource(self, api_version: str, kind: str) -> MemoryResource:
        await asyncio.sleep(0)
        return self.kinds.resource(api_version, kind)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[MemoryRecorder]:  # noqa: ARG002 - one recorder serves all
        yield self.events.guarded(self.guard)
