"""Stores the results of creations, and retries those that could not be stored."""

from typing import Any

import msgspec

from natsctl.core.compare_and_set import read
from natsctl.errors import ConflictError, NotFoundError
from natsctl.managed.creation.links import CreationLink, Links, annotations_of
from natsctl.managed.critical import (
    CriticalAnnotationUpdateFn,
    CriticalAnnotationUpdater,
    RetryingCriticalAnnotationUpdater,
    annotated,
    retry_store_errors,
)
from natsctl.managed.names import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.managed.reports import CANNOT_UPDATE, Reports
from natsctl.model.store import Store, Stored


class Results(msgspec.Struct, eq=False, kw_only=True):
    """Stores the result of each creation before the reconciliation goes on.

    With *links*, a result is stored in the record first, and in the object with its next write.
    With an *updater*, a result is stored in the object's annotations at once. By default, only
    objects without records have one.
    """

    objects: Store
    reports: Reports
    names: AnnotationNames
    links: Links | None
    updater: CriticalAnnotationUpdater | CriticalAnnotationUpdateFn | None
    _pending: dict[str, Managed[Any]] = {}
    _withdrawn: set[str] = set()
    """The keys whose intent may not be stored."""

    def __post_init__(self) -> None:
        """Make the default updater."""
        if self.updater is None and self.links is None:
            self.updater = RetryingCriticalAnnotationUpdater(self.objects, names=self.names)

    async def store(self, managed: Managed[Any]) -> None:
        """Store the result in the annotations; a result that cannot be stored stays pending."""
        self._pending[managed.key] = managed
        await self._write(managed)
        self.forget(managed.key)

    def pending(self, key: str) -> tuple[Managed[Any], bool] | None:
        """Return the pending result, and whether its creation did not begin; None if none is."""
        pending = self._pending.get(key)
        return None if pending is None else (pending, key in self._withdrawn)

    def expect(self, managed: Managed[Any], *, withdrawn: bool) -> None:
        """Take a result as pending, as `pending` returned it."""
        self._pending[managed.key] = managed
        if withdrawn:
            self._withdrawn.add(managed.key)

    def withdraw(self, managed: Managed[Any]) -> None:
        """Record that a creation did not begin; its result matters only if its intent is stored."""
        self._pending[managed.key] = managed
        self._withdrawn.add(managed.key)

    async def catch_up(self, key: str) -> None:
        """Store a result that could not be stored before."""
        pending = self._pending.get(key)
        if pending is None:
            return
        if key in self._withdrawn and not await self._is_intent_stored(pending):
            self.forget(key)
            return
        try:
            await self._write(pending)
        except NotFoundError:
            return  # `with_pending_result` returns it, so that the external resource is deleted
        except ConflictError as error:
            name = pending.external_name
            self.reports.warning(
                pending,
                CANNOT_UPDATE,
                f"{error}; the result of the last one is lost: {name or 'none'}",
            )
        self.forget(key)

    def with_pending_result(self, last: Stored) -> Stored:
        """Return the last state of a deleted object with its pending result."""
        pending = self._pending.get(last.key)
        if pending is None:
            return last
        return Stored(last.key, last.revision, annotated(last.value, pending.changed_annotations))

    def forget(self, key: str) -> None:
        """Drop the pending result of the object."""
        self._pending.pop(key, None)
        self._withdrawn.discard(key)

    async def _write(self, managed: Managed[Any]) -> None:
        links = self.links
        if links is not None:
            await retry_store_errors(lambda: links.write(managed.key, managed.link))
            managed.keep_only()
        if isinstance(self.updater, CriticalAnnotationUpdater):
            await self.updater.update_critical_annotations(managed)
        elif self.updater is not None:
            await self.updater(managed)

    async def _is_intent_stored(self, pending: Managed[Any]) -> bool:
        """Return whether the intent was stored and so needs its result."""
        stored = await read(self.objects, pending.key)
        if stored is None:
            return False
        return (
            CreationLink.of(annotations_of(stored.value), self.names).pending
            == pending.link.pending
        )
