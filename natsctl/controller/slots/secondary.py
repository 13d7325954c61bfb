"""Writes secondaries in NATS by compare-and-set, merged into the existing object."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from natsctl.controller.slots.owned import Owned
from natsctl.controller.slots.owners import Owner
from natsctl.core.compare_and_set import Rewritten, read, rewrite
from natsctl.core.table import is_read
from natsctl.errors import ConflictError, InvalidObjectError, NewerVersionError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.store import Stored

T = TypeVar("T")


class Secondary(Owned[T]):
    """The secondaries of a kind in NATS; each write labels the object with its owner."""

    async def apply(self, key: str, obj: T, *, adopt: bool = False) -> int:
        """Create the object, or change it to *obj*, and return its revision.

        Fields that *obj*'s type doesn't know stay. Nothing is sent if nothing would change. An
        invalid object is replaced. Raises `ExistsError` if the object exists and isn't this
        owner's, unless *adopt*, and `NewerVersionError` if a newer version of its type stored it,
        and this one can't read it.
        """
        owner = self._owner()
        return await self._rewrite(key, owner, partial(self._owned_value, obj, owner), adopt=adopt)

    async def report(self, key: str, status: Document) -> int:
        """Merge *status* into the status that the object has for the primary *key*.

        Creates the object, or replaces an invalid one, and returns the revision.
        """
        owner = Owner(self._owner_kind, key)

        def value(current: Stored | None) -> bytes:
            owned = self._owned_value(self.kind.type(), owner, current)
            document = documents.parse(owned)
            changed = documents.with_status(document, status)
            return owned if changed == document else documents.render(changed)

        return await self._rewrite(key, owner, value)

    async def _rewrite(
        self,
        key: str,
        owner: Owner,
        value: Callable[[Stored | None], bytes],
        *,
        adopt: bool = False,
    ) -> int:
        with self._writes.writing(self.informer, key):
            seen = self._writes.newest(self.informer, key)
            if seen is not None and not is_read(seen):
                seen = await read(self._store, key)
            ours = seen is not None and await self.owns(owner, seen)

            def change(current: Stored | None) -> bytes:
                if current is not None and not (adopt or (ours and current == seen)):
                    self._refuse_foreign(current, owner)
                return value(current)

            return self._note_write(await rewrite(self._store, key, change, seen=seen))

    async def create(self, key: str, obj: T) -> int:
        """Create the object and return its revision.

        Raises `ConflictError` if it exists and this owner owns it, `ExistsError` if it exists
        otherwise.
        """
        owner = self._owner()
        with self._writes.writing(self.informer, key):
            try:
                stored = await self._store.create(key, self._owned_value(obj, owner, None))
            except ConflictError:
                current = await read(self._store, key)
                if current is not None:
                    self._refuse_foreign(current, owner)
                raise
            return self._note_write(Rewritten(stored, 0))

    def _owned_value(self, obj: T, owner: Owner, current: Stored | None) -> bytes:
        current = self._valid(current)
        before = None if current is None else self.kind.document(current.value)
        merged = self.kind.overlay(None if current is None else current.value, obj)
        owned = documents.with_labels(
            merged, self._names.labels(owner), self._names.annotations(owner)
        )
        stamped = documents.stamp(before, owned)
        if current is not None and stamped == before:
            return current.value
        return self.kind.render(stamped, None if current is None else current.value)

    def _valid(self, current: Stored | None) -> Stored | None:
        """Return the object, None if it is invalid; raises `NewerVersionError`."""
        if current is not None:
            try:
                self.kind.decode(current.value)
            except NewerVersionError:
                raise
            except InvalidObjectError:
                return None
        return current
