"""Stores the results of creations, and keeps those that cannot be stored yet."""

from typing import Any

from natsctl.core.objects.compare_and_set import read
from natsctl.errors import ConflictError, NotFoundError
from natsctl.managed.creation.links import Link, Links, annotations_of
from natsctl.managed.critical import (
    CriticalAnnotationUpdateFn,
    CriticalAnnotationUpdater,
    RetryingCriticalAnnotationUpdater,
    annotated,
    insist,
    updated_by,
)
from natsctl.managed.names import AnnotationNames
from natsctl.managed.objects import Managed
from natsctl.managed.reports import CANNOT_UPDATE, Reports
from natsctl.model.store import Store, Stored


class Results:
    """Stores the result of each creation before the reconciliation goes on.

    With *links*, the record is where a result is stored first, and the next write of the object
    stores it there too. With an *updater*, the annotations of the object are stored by it at once.

    Args:
        store: the objects.
        reports: where lost results are reported.
        names: the names of the annotations.
        links: the records, if the objects have any.
        updater: stores annotations; by default what needs it, objects without records, get one.
    """

    def __init__(
        self,
        store: Store,
        reports: Reports,
        *,
        names: AnnotationNames,
        links: Links | None,
        updater: CriticalAnnotationUpdater | CriticalAnnotationUpdateFn | None,
    ) -> None:
        self._store = store
        self._reports = reports
        self._names = names
        self._links = links
        if updater is None and links is None:
            updater = RetryingCriticalAnnotationUpdater(store, names=names)
        self._updater = updater
        self._owed: dict[str, Managed[Any]] = {}
        self._withdrawn: set[str] = set()  # keys whose intent may not have been stored at all

    async def store(self, managed: Managed[Any]) -> None:
        """Store the result that the annotations hold; one that cannot be stored is owed."""
        self._owed[managed.key] = managed
        await self._write(managed)
        self.forget(managed.key)

    def withdraw(self, managed: Managed[Any]) -> None:
        """Owe the result of a creation that was not begun, if its intent turns out to be stored."""
        self._owed[managed.key] = managed
        self._withdrawn.add(managed.key)

    async def catch_up(self, key: str) -> None:
        """Store a result that could not be stored before."""
        owed = self._owed.get(key)
        if owed is None:
            return
        if key in self._withdrawn and not await self._stands(owed):
            self.forget(key)
            return
        try:
            await self._write(owed)
        except NotFoundError:
            return  # `known` passes it on, so that the external resource is cleaned up
        except ConflictError as error:
            name = owed.external_name
            self._reports.warning(
                owed,
                CANNOT_UPDATE,
                f"{error}; the result of the last one is lost: {name or 'none'}",
            )
        self.forget(key)

    def known(self, last: Stored) -> Stored:
        """Return the last state of an object that is gone, with the result that is owed to it."""
        owed = self._owed.get(last.key)
        if owed is None:
            return last
        return Stored(last.key, last.revision, annotated(last.value, owed.changed_annotations))

    def forget(self, key: str) -> None:
        """Owe nothing to the object any more."""
        self._owed.pop(key, None)
        self._withdrawn.discard(key)

    async def _write(self, managed: Managed[Any]) -> None:
        links = self._links
        if links is not None:
            await insist(lambda: links.write(managed.key, managed.link))
            managed.keep_only()
        if self._updater is not None:
            await updated_by(self._updater, managed)

    async def _stands(self, owed: Managed[Any]) -> bool:
        """Return whether the intent was stored, so that it needs its result."""
        stored = await read(self._store, owed.key)
        if stored is None:
            return False
        return Link.of(annotations_of(stored.value), self._names).pending == owed.link.pending
