"""What a managed object and its people are told: conditions, events, log lines."""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Protocol, cast

from natsctl.core.write import rewrite
from natsctl.errors import ConflictError, NotFoundError, StoreError
from natsctl.managed.conditions import SYNCED, Condition
from natsctl.managed.objects import Managed
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.manifests import KubeKind
from natsctl.model.recorder import EventType
from natsctl.model.store import ManifestStore, Store, Stored

REPORT_S = 30.0
"""What a reconciliation may take longer than its `timeout_s`, to store what came of it."""


class EventRecorder(Protocol):
    """Takes events: a `ControllerRuntime`, or any `Recorder`. Never blocks, never raises."""

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record that something happened to the object *key*."""
        ...


class Reports:
    """Stores statuses, records events, logs. *recorder* None: nobody hears of events."""

    def __init__(
        self, store: Store, *, recorder: EventRecorder | None, logger: logging.Logger
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._log = logger
        self._counts_statuses = False

    def event(self, managed: Managed[Any], reason: str, message: str) -> None:
        """Tell what was done."""
        self._log.info("%s: %s", managed.key, message)
        self._record(managed, EventType.NORMAL, reason, message)

    def warning(self, managed: Managed[Any], reason: str, message: str) -> None:
        """Tell what somebody should look at."""
        self._log.warning("%s: %s", managed.key, message)
        self._record(managed, EventType.WARNING, reason, message)

    async def trouble(
        self, managed: Managed[Any], reason: str, message: str, *conditions: Condition
    ) -> None:
        """Say on the object that it is not synced, and why; people are told once."""
        wanted = Condition.reconcile_error(message)
        before = managed.condition(SYNCED)
        if before is None or (before.reason, before.message) != (wanted.reason, wanted.message):
            self.warning(managed, reason, message)
        await self.status(managed, *conditions, wanted)

    async def failed(self, managed: Managed[Any], reason: str, message: str) -> None:
        """Tell of a failure that is raised as well; that the status cannot be stored is logged."""
        self.warning(managed, reason, message)
        try:
            async with asyncio.timeout(REPORT_S):
                await self.status(managed, Condition.reconcile_error(message))
        except (StoreError, TimeoutError) as error:
            self._log.warning("%s: its status cannot be stored: %s", managed.key, error)

    async def status(self, managed: Managed[Any], *conditions: Condition) -> None:
        """Store what was changed of the status, with these conditions, where anything was.

        An object that is gone has no status any more.
        """
        managed.set_conditions(*conditions)
        if managed.gone:
            return
        with suppress(NotFoundError):
            store = self._patch if isinstance(self._store.kind, KubeKind) else self._rewrite
            managed.reset(await store(managed, self._status(managed)))

    def _status(self, managed: Managed[Any]) -> Document:
        """Return what is to change of the status, with the generation that it is about."""
        generation = managed.metadata.generation
        if not generation or self._counts_statuses:
            return managed.status_patch
        return {**managed.status_patch, "observedGeneration": generation}

    async def _rewrite(self, managed: Managed[Any], patch: Document) -> Stored:
        def change(current: Stored | None) -> bytes:
            if current is None:
                raise NotFoundError(f"{managed.key} is gone")
            document = documents.parse(current.value)
            changed = documents.with_status(document, patch)
            return current.value if changed == document else documents.render(changed)

        return (await rewrite(self._store, managed.key, change, seen=managed.stored)).stored

    async def _patch(self, managed: Managed[Any], patch: Document) -> Stored:
        """Have the cluster change the status, whoever has written the object meanwhile."""
        document = documents.parse(managed.stored.value)
        if documents.with_status(document, patch) == document:
            return managed.stored
        manifests = cast("ManifestStore", self._store)  # as its kind says
        key, revision = managed.key, managed.stored.revision
        try:
            stored = await manifests.patch_status(key, patch, revision=revision)
        except ConflictError:
            return await manifests.patch_status(key, patch)
        # a kind without that subresource counts every status as a generation: to say which one
        # was seen would make another, without end
        if managed.kind.metadata(stored.value).generation > managed.metadata.generation:
            self._counts_statuses = True
        return stored

    def _record(self, managed: Managed[Any], type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        if self._recorder is not None:
            self._recorder.event(managed.key, type, reason, message)
