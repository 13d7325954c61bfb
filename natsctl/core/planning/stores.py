"""Opens stores whose writes stay in memory, for NATS and for a cluster."""

import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from natsctl.core.planning.manifest_store import PlanningManifestStore
from natsctl.core.planning.overlay import Overlay, Revisions
from natsctl.core.planning.store import PlanningStore, Wrote
from natsctl.errors import StoreMissingError
from natsctl.model.discovery import Discovers, ResourceType
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.recorder import EventType
from natsctl.model.store import JetStream, ManifestStores, Stores
from natsctl.model.write_guard import DRY_RUN, UNGUARDED, WriteGuard

RECORDS = "natsctl"
"""The bucket of natsctl's own records, whose planned writes are no actions."""


class NoRecorder:
    """Drops events; a `Recorder`."""

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the name in Kubernetes
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
    ) -> None:
        """See `Recorder.event`."""


class PlanningStores:
    """The buckets of a NATS system, with planned writes above them; a `Stores`.

    A bucket that does not exist is empty, and is not created, unless its kind forbids that.

    Args:
        stores: the system.
        wrote: called with every planned write of an object.
        revisions: numbers the planned writes.
    """

    def __init__(self, stores: Stores, wrote: Wrote, revisions: Revisions) -> None:
        self._stores = stores.guarded(DRY_RUN)
        self._wrote = wrote
        self._revisions = revisions
        self.guard = UNGUARDED
        self._overlays: dict[str, Overlay] = {}

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        return all(overlay.settled for overlay in self._overlays.values())

    def guarded(self, guard: WriteGuard) -> Self:
        """See `Stores.guarded`; the guard permits or forbids each planned write."""
        guarded = copy.copy(self)
        guarded.guard = guard
        return guarded

    async def open(self, kind: Kind[Any]) -> PlanningStore:
        """See `Stores.open`."""
        bucket = kind.bucket if isinstance(kind, KvKind) else kind.name
        try:
            stored = await self._stores.open(kind)
        except StoreMissingError:
            if isinstance(kind, KvKind) and not kind.create:
                raise
            stored = None
        overlay = self._overlays.setdefault(bucket, Overlay(self._revisions))
        wrote = _ignore if bucket == RECORDS else self._wrote
        return PlanningStore(kind, stored, overlay, wrote, guard=self.guard)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[NoRecorder]:  # noqa: ARG002 - no event is recorded
        """See `Stores.recorder`; events are dropped."""
        yield NoRecorder()

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """See `JetStream.api`; a request that changes something raises `NotStoredError`."""
        if not isinstance(self._stores, JetStream):
            raise StoreMissingError("these stores have no JetStream API")
        return await self._stores.api(endpoint, body)


class PlanningManifestStores:
    """The kinds of a cluster, with planned writes above them; a `Cluster`.

    The server checks every write by a dry run (`dryRun=All`). See `PlanningStores`.
    """

    def __init__(self, stores: ManifestStores, wrote: Wrote, revisions: Revisions) -> None:
        self._stores = stores.guarded(DRY_RUN)
        self._wrote = wrote
        self._revisions = revisions
        self.guard = UNGUARDED
        self._overlays: dict[tuple[str, str], Overlay] = {}

    @property
    def settled(self) -> bool:
        """See `PlanningStores.settled`."""
        return all(overlay.settled for overlay in self._overlays.values())

    def guarded(self, guard: WriteGuard) -> Self:
        """See `Stores.guarded`; the guard permits or forbids each planned write."""
        guarded = copy.copy(self)
        guarded.guard = guard
        return guarded

    async def open(self, kind: Kind[Any]) -> PlanningManifestStore:
        """See `ManifestStores.open`."""
        stored = await self._stores.open(kind)
        declared: KubeKind[Any] = stored.kind
        name = declared.api_version, declared.kind
        overlay = self._overlays.setdefault(name, Overlay(self._revisions))
        return PlanningManifestStore(declared, stored, overlay, self._wrote, guard=self.guard)

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        """See `Discovers.resource`."""
        if not isinstance(self._stores, Discovers):
            raise StoreMissingError("this cluster cannot look kinds up")
        return await self._stores.resource(api_version, kind)

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[NoRecorder]:  # noqa: ARG002 - no event is recorded
        """See `Stores.recorder`; events are dropped."""
        yield NoRecorder()


def _ignore(kind: Kind[Any], key: str, before: bytes | None, after: bytes | None) -> None:
    """Leave natsctl's own records out of the plan."""
