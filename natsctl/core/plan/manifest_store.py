"""A store of a cluster's objects whose writes the server checks and nobody stores."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from natsctl.core.plan.store import PlannedState, PlanningStore, State
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model import documents
from natsctl.model.documents import VOLATILE, Document
from natsctl.model.managed_fields import ManagedFields
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import Metadata
from natsctl.model.store import Applied, Deleted, ManifestStore, Stored, WatchEvent
from natsctl.model.times import time_text

_IDENTITY = ("uid", "creationTimestamp")


class PlanningManifestStore(PlanningStore):
    """The objects of one kind of a cluster, with planned writes above them; a `ManifestStore`.

    Every write is sent as a dry run, so its result has the defaults of the server, and admission
    and field conflicts are the server's. The server knows nothing of earlier planned writes: it
    checks each one against the stored object. An object that the plan deletes and creates again is
    not checked.
    """

    kind: KubeKind[Any]
    _stored: ManifestStore

    async def locate(self, manifest: Document) -> str:
        return await self._stored.locate(manifest)

    async def check_create(self, manifest: Document, *, manager: str) -> None:
        self._guard.check(self.kind)
        await self._stored.check_create(manifest, manager=manager)

    async def managed(self, key: str) -> ManagedFields:
        """See `ManifestStore.managed`; of a planned object, nothing is known."""
        if key in self._overlay.entries:
            raise NotFoundError(f"{key} of {self.kind.name} has planned changes")
        return await self._stored.managed(key)

    async def apply(
        self, manifest: Document, *, manager: str, uid: str, force: bool = False
    ) -> Stored:
        self._guard.check(self.kind)
        key = await self.locate(manifest)
        current = await self._current(key)
        if ("" if current is None else self._uid(current)) != uid:
            raise ConflictError(f"{key} of {self.kind.name} is a different object now, or deleted")
        planned = self._overlay.entries.get(key)
        alone = planned is None or self._overlay.appliers.get(key) == manager
        if (planned is not None and planned.fresh and planned.base) or _deleted(planned):
            new = _recreated(current, manifest)
        else:
            fresh = planned is not None and planned.fresh
            answer = documents.parse(
                (
                    await self._stored.apply(
                        manifest, manager=manager, uid="" if fresh else uid, force=force
                    )
                ).value
            )
            new = await self._combined(key, current, answer, alone=alone, fresh=fresh)
        stored = self._replace(key, current, new, planned)
        if alone:
            self._overlay.appliers[key] = manager
        return stored

    async def update(self, key: str, value: bytes, *, revision: int) -> Stored:
        # an object that is marked deleted goes with its last finalizer
        stored = await super().update(key, value, revision=revision)
        self._overlay.appliers.pop(key, None)
        metadata = self.kind.metadata(stored.value)
        if metadata.deletion_timestamp is not None and not metadata.finalizers:
            planned = self._overlay.entries[key]
            super()._remove(stored, planned, base=planned.base, purge=False)
        return stored

    async def patch_status(
        self, key: str, patch: Document, *, revision: int | None = None
    ) -> Stored:
        self._guard.check(self.kind)
        current = await self.get(key)
        if revision not in {None, current.revision}:
            raise ConflictError(f"{key} of {self.kind.name} changed since it was read")
        planned = self._overlay.entries.get(key)
        if planned is None or not planned.fresh:
            await self._stored.patch_status(key, patch)
        new = documents.with_status(documents.parse(current.value), patch)
        self._overlay.appliers.pop(key, None)
        return self._replace(key, current, new, planned)

    def _replace(
        self, key: str, current: Stored | None, new: Document, planned: PlannedState | None
    ) -> Stored:
        """Plan the new state of an object, unless it is the present one."""
        if current is not None:
            states = (documents.parse(current.value), new)
            if documents.same(*(documents.without_metadata(state, VOLATILE) for state in states)):
                return current
        before = None if current is None else current.value
        base = 0 if current is None else current.revision
        fresh = current is None
        if planned is not None:
            base, fresh = planned.base, planned.fresh or fresh
        return self._plan(key, documents.render(new), before, planned, base=base, fresh=fresh)

    async def _combined(
        self, key: str, current: Stored | None, answer: Document, *, alone: bool, fresh: bool
    ) -> Document:
        """Return the planned state with the change that the server's answer makes."""
        if current is None or (alone and not fresh):
            return answer
        planned = documents.parse(current.value)
        if fresh:
            own = {name: documents.metadata_of(planned).get(name) for name in _IDENTITY}
            combined = answer if alone else documents.merge_patch(planned, answer)
            return {**combined, "metadata": {**documents.metadata_of(combined), **own}}
        stored = documents.parse((await self._stored.get(key)).value)
        return documents.merge_patch(planned, documents.patch_between(stored, answer))

    def _remove(
        self, current: State, planned: PlannedState | None, *, base: int, purge: bool
    ) -> int:
        # finalizers hold the object, which is then marked deleted
        metadata = Metadata()
        if isinstance(current, Stored):
            metadata = self.kind.metadata(current.value)
        if not (isinstance(current, Stored) and metadata.finalizers):
            return super()._remove(current, planned, base=base, purge=purge)
        if metadata.deletion_timestamp is not None:
            return current.revision - 1
        marked = documents.marked_deleted(documents.parse(current.value))
        self._replace(current.key, current, marked, planned)
        return current.revision

    async def _expected(self, key: str, revision: int) -> tuple[State | None, PlannedState | None]:
        current, planned = await super()._expected(key, revision)
        if not isinstance(current, Stored):
            raise ConflictError(f"{key} of {self.kind.name} was deleted in the meantime")
        return current, planned

    async def _to_delete(
        self, key: str, revision: int | None, uid: str, *, purge: bool
    ) -> tuple[State, PlannedState | None]:
        current, planned = await super()._to_delete(key, revision, uid, purge=purge)
        if isinstance(current, Stored) and uid not in {"", self._uid(current)}:
            raise ConflictError(f"{key} of {self.kind.name} is a different object now")
        return current, planned

    def _numbered(self, value: bytes, revision: int) -> bytes:
        document = documents.parse(value)
        metadata = {**documents.metadata_of(document), "resourceVersion": str(revision)}
        return documents.render({**document, "metadata": metadata})

    async def _checked_create(self, key: str, value: bytes, *, base: int) -> bytes | None:
        if base:  # the server still has the object that the plan deletes
            return documents.render(_recreated(None, documents.parse(value)))
        return await super()._checked_create(key, value, base=base)

    def _planned_event(self, event: Applied | Deleted) -> Iterator[WatchEvent]:
        for shown in super()._planned_event(event):
            if isinstance(shown, Applied):
                labels = self.kind.metadata(shown.stored.value).labels
                if not self.kind.selector.matches(labels):
                    yield Deleted(shown.stored.key, shown.stored.revision)
                    continue
            yield shown

    async def _current(self, key: str) -> Stored | None:
        try:
            return await self.get(key)
        except NotFoundError:
            return None

    def _uid(self, stored: Stored) -> str:
        return self.kind.metadata(stored.value).uid


def _deleted(planned: PlannedState | None) -> bool:
    return planned is not None and isinstance(planned.state, Deleted)


def _recreated(current: Stored | None, document: Document) -> Document:
    """Return the object of a manifest that no server has checked."""
    before = {} if current is None else documents.parse(current.value)
    created = {"uid": str(uuid4()), "creationTimestamp": time_text(datetime.now(UTC))}
    merged = documents.merge_patch(before, document)
    return {**merged, "metadata": {**created, **documents.metadata_of(merged)}}
