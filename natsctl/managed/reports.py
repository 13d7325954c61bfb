"""Reports on managed objects in their status, in events and in the log."""

import asyncio
from contextlib import suppress
from typing import Any, Protocol, cast

import msgspec

from natsctl.core.compare_and_set import rewrite
from natsctl.errors import ConflictError, NotFoundError, StoreError
from natsctl.managed.links import AnnotationNames
from natsctl.managed.objects import SYNCED, Condition, Managed
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import EventType
from natsctl.model.store import ManifestStore, Store, Stored
from natsctl.telemetry.logger import EventLogger

REPORT_S = 30.0
"""The time in seconds beyond `timeout_s` for storing the results of a reconciliation."""


class KeyEventRecorder(Protocol):
    """Takes events: a `ControllerRuntime`, or any `Recorder`. Never blocks, never raises."""

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record an event about the object *key*."""
        ...


CANNOT_UPDATE = "CannotUpdateManagedResource"
"""The reason of events about an object that cannot be written."""


class Reports(msgspec.Struct, eq=False, kw_only=True):
    """Stores statuses, records events and writes log lines.

    A write of a status also stores changes of the link to the external resource and can add the
    finalizer, so these need no separate write. Without a *recorder*, events are dropped.
    """

    store: Store
    recorder: KeyEventRecorder | None
    log: EventLogger
    names: AnnotationNames
    _counts_statuses: bool = False

    def event(
        self, managed: Managed[Any], reason: str, message: str, *, warns: bool = False
    ) -> None:
        """Record an event and log it, as a warning if it *warns* of a problem."""
        write = self.log.warning if warns else self.log.info
        write("managed resource event", key=managed.key, reason=reason, note=message)
        if self.recorder is not None:
            type_ = EventType.WARNING if warns else EventType.NORMAL
            self.recorder.event(managed.key, type_, reason, message)

    async def not_synced(
        self, managed: Managed[Any], reason: str, message: str, *conditions: Condition
    ) -> None:
        """Set the object's status to not synced; the event is recorded once per message."""
        failed = Condition.reconcile_error(message)
        before = managed.condition(SYNCED)
        if before is None or (before.reason, before.message) != (failed.reason, failed.message):
            self.event(managed, reason, message, warns=True)
        await self.status(managed, *conditions, failed)

    async def failed(
        self, managed: Managed[Any], reason: str, message: str, *conditions: Condition
    ) -> None:
        """Report a failure that is also raised; a status that cannot be stored is logged."""
        self.event(managed, reason, message, warns=True)
        try:
            async with asyncio.timeout(REPORT_S):
                await self.status(managed, *conditions, Condition.reconcile_error(message))
        except (StoreError, TimeoutError) as error:
            self.log.warning("cannot store the status", key=managed.key, error=error)

    async def status(
        self, managed: Managed[Any], *conditions: Condition, hold: bool = False
    ) -> None:
        """Store the status with these conditions, if it differs from the stored one.

        If *hold*, adds the finalizer too. Does nothing for an object that is gone.
        """
        managed.set_conditions(*conditions)
        if managed.gone:
            return
        with suppress(NotFoundError):
            store = self._patch if isinstance(self.store.kind, KubeKind) else self._rewrite
            managed.reset(await store(managed, hold=hold or self.held(managed)))

    def held(self, managed: Managed[Any]) -> bool:
        """Return whether the object has the finalizer, or an equivalent one."""
        return not self.names.finalizers.isdisjoint(managed.finalizers)

    def patch(self, managed: Managed[Any]) -> Document:
        """Return the changes of the status, with the observed generation."""
        generation = managed.metadata.generation
        if not generation or self._counts_statuses:
            return managed.status_patch
        return {**managed.status_patch, "observedGeneration": generation}

    async def _rewrite(self, managed: Managed[Any], *, hold: bool) -> Stored:
        status = self.patch(managed)

        def change(current: Stored | None) -> bytes:
            if current is None:
                raise NotFoundError(f"{managed.key} is gone")
            return managed.over(current.value, hold=hold, status=status)

        return (await rewrite(self.store, managed.key, change, seen=managed.stored)).stored

    async def _patch(self, managed: Managed[Any], *, hold: bool) -> Stored:
        """Patch the status in a cluster, even if the object has changed since it was read."""
        if managed.unsettled(hold=hold):
            value = managed.over(managed.stored.value, hold=hold, status={})
            stored = await self.store.update(managed.key, value, revision=managed.stored.revision)
            managed.advance(stored)
        patch = self.patch(managed)
        document = documents.parse(managed.stored.value)
        if documents.with_status(document, patch) == document:
            return managed.stored
        manifests = cast("ManifestStore", self.store)  # its kind is a `KubeKind`
        key, revision = managed.key, managed.stored.revision
        try:
            stored = await manifests.patch_status(key, patch, revision=revision)
        except ConflictError:
            return await manifests.patch_status(key, patch)
        # without a status subresource, every status increments the generation, so storing the
        # observed generation would never end
        if managed.kind.metadata(stored.value).generation > managed.metadata.generation:
            self._counts_statuses = True
        return stored
