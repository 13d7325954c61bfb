"""Opens the stores of a plan, whose writes stay in memory, for NATS and for a cluster."""

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, Self, TypeVar

import msgspec

from natsctl.core.plan.manifest_store import PlanningManifestStore
from natsctl.core.plan.record import PlanRecord, place_of
from natsctl.core.plan.store import Overlay, PlanningStore, planned_revisions
from natsctl.errors import StoreError, StoreMissingError
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind, Reference
from natsctl.model.store import (
    DRY_RUN,
    Discovers,
    EventType,
    Guarded,
    JetStream,
    ManifestStores,
    Requester,
    ResourceType,
    Store,
    Stores,
    SyncNote,
)

S = TypeVar("S", bound=Stores)

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
        *,
        sync: SyncNote | None = None,
    ) -> None:
        """See `Recorder.event`."""


class _Planning(Guarded, Generic[S]):
    """The overlays of the kinds of a system, the record of their planned writes, and the guard."""

    forgets = True  # no record of failing keys

    def __init__(self, stores: S, record: PlanRecord, revisions: Iterator[int]) -> None:
        self._stores = stores.guarded(DRY_RUN)
        self._record = record
        self._revisions = revisions
        self._overlays: dict[str, Overlay] = {}

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        return all(overlay.settled for overlay in self._overlays.values())

    def recorded(self, record: PlanRecord) -> Self:
        """Return these stores with another record of their planned writes."""
        recorded = copy.copy(self)
        recorded._record = record  # noqa: SLF001 - of a copy of this object
        return recorded

    @asynccontextmanager
    async def recorder(self, controller: str) -> AsyncIterator[NoRecorder]:  # noqa: ARG002 - no event is recorded
        """See `Stores.recorder`; events are dropped."""
        yield NoRecorder()

    def _overlay(self, place: str) -> Overlay:
        return self._overlays.setdefault(place, Overlay(place, self._revisions))


class PlanningStores(_Planning[Stores]):
    """The buckets of a NATS system, with planned writes above them; a `Stores`.

    A bucket that does not exist is empty, and is not created, unless its kind forbids that.
    """

    def __init__(self, stores: Stores, record: PlanRecord, revisions: Iterator[int]) -> None:
        super().__init__(stores, record, revisions)
        self.missing: set[str] = set()  # the opened buckets that do not exist

    async def open(self, kind: Kind[Any]) -> PlanningStore:
        stored = await self._opened(kind)
        if stored is None and isinstance(kind, KvKind) and not kind.create:
            stored = await self._stores.open(kind)  # raises that the bucket does not exist
        return self._overlay_store(kind, stored, partial(self._opened, kind))

    def over(self, kind: KvKind[Any], stored: Store | None) -> PlanningStore:
        """Return a store with the planned writes of the kind's bucket above *stored*.

        *stored* is None if the bucket does not exist. Its writes must be dry runs.
        """
        return self._overlay_store(kind, stored, None)

    def _overlay_store(
        self,
        kind: Kind[Any],
        stored: Store | None,
        reopen: Callable[[], Awaitable[Store | None]] | None,
    ) -> PlanningStore:
        bucket = place_of(kind)
        record = None if bucket == RECORDS else self._record
        return PlanningStore(
            kind, stored, self._overlay(bucket), record, guard=self.guard, reopen=reopen
        )

    async def _opened(self, kind: Kind[Any]) -> Store | None:
        """Return the store of the kind, None if it does not exist."""
        try:
            store = await self._stores.open(kind)
        except StoreMissingError:
            self.missing.add(place_of(kind))
            return None
        self.missing.discard(place_of(kind))
        return store

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """See `JetStream.api`; a request that changes something raises `NotStoredError`."""
        if not isinstance(self._stores, JetStream):
            raise StoreMissingError("these stores have no JetStream API")
        return await self._stores.api(endpoint, body)

    async def request(
        self, subject: str, body: bytes, *, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        """See `Requester.request`; a plan asks hooks for real, because they only decide."""
        if not isinstance(self._stores, Requester):
            raise StoreError("these stores carry no requests")
        return await self._stores.request(subject, body, headers=headers, timeout_s=timeout_s)


class PlanningManifestStores(_Planning[ManifestStores]):
    """The kinds of a cluster, with planned writes above them; a `Cluster`.

    The server checks every write by a dry run (`dryRun=All`). See `PlanningStores`.
    """

    async def open(self, kind: Kind[Any]) -> PlanningManifestStore:
        stored = await self._stores.open(kind)
        declared: KubeKind[Any] = stored.kind
        overlay = self._overlay(place_of(declared))
        return PlanningManifestStore(declared, stored, overlay, self._record, guard=self.guard)

    async def resource(self, api_version: str, kind: str) -> ResourceType:
        if not isinstance(self._stores, Discovers):
            raise StoreMissingError("this cluster cannot look kinds up")
        return await self._stores.resource(api_version, kind)


class Planned(msgspec.Struct, frozen=True):
    """The stores of a plan, and the record of the writes of one controller."""

    record: PlanRecord
    nats: PlanningStores
    kube: PlanningManifestStores | None

    @property
    def settled(self) -> bool:
        """True if every watch has delivered every planned write."""
        return self.nats.settled and (self.kube is None or self.kube.settled)

    def of_another(
        self, key_of: Callable[[], str], *, cluster: ManifestStores | None = None
    ) -> "Planned":
        """Return the same planned states with a record for another controller.

        *cluster* is the cluster of the other controller if this plan has none.
        """
        record = PlanRecord(key_of, continuous=self.record.continuous)
        kube = None if self.kube is None else self.kube.recorded(record)
        if kube is None and cluster is not None:
            kube = PlanningManifestStores(cluster, record, planned_revisions())
        return Planned(record, self.nats.recorded(record), kube)


def planned(
    *,
    nats: Stores,
    kube: ManifestStores | None,
    key_of: Callable[[], str],
    continuous: bool = False,
) -> Planned:
    """Return stores over *nats* and *kube* whose writes are recorded and not stored.

    *key_of* returns the key of the present sync. See `PlanRecord` about *continuous* plans.
    """
    record, revisions = PlanRecord(key_of, continuous=continuous), planned_revisions()
    return Planned(
        record,
        PlanningStores(nats, record, revisions),
        None if kube is None else PlanningManifestStores(kube, record, revisions),
    )
