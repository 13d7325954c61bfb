"""Secondaries written by compare-and-set: the wanted fields laid over the object that is there."""

from typing import TypeVar

from natsctl.controller.slots.owned import Owned
from natsctl.controller.slots.owners import Owner
from natsctl.core.objects.compare_and_set import Rewritten, read, rewrite
from natsctl.errors import ConflictError
from natsctl.model import documents
from natsctl.model.store import Stored

T = TypeVar("T")


class Secondary(Owned[T]):
    """The objects made for primaries: what is written is labelled with the owner."""

    async def apply(self, key: str, obj: T, *, adopt: bool = False) -> int:
        """Make the object say what *obj* says, and return its revision.

        Creates it, or changes the fields that *obj*'s type knows; nothing is sent where the cache
        shows that nothing would change. What is no valid object is replaced. Raises `ExistsError`
        where the object exists and is not this owner's, unless *adopt*.
        """
        owner = self._owner()
        with self._own.writing(key):
            seen = self._barrier.newest(self.informer, key)
            ours = seen is not None and await self.owns(owner, seen)

            def change(current: Stored | None) -> bytes:
                if current is not None and not (adopt or (ours and current == seen)):
                    self._refuse_foreign(current, owner)
                return self._owned_value(current, obj, owner)

            return self._landed(await rewrite(self._store, key, change, seen=seen))

    async def create(self, key: str, obj: T) -> int:
        """Add the object and return its revision.

        Raises `ExistsError` where it exists and is another's, `ConflictError` where it is ours.
        """
        owner = self._owner()
        with self._own.writing(key):
            try:
                stored = await self._store.create(key, self._owned_value(None, obj, owner))
            except ConflictError:
                current = await read(self._store, key)
                if current is not None:
                    self._refuse_foreign(current, owner)
                raise
            return self._landed(Rewritten(stored, 0))

    def _owned_value(self, current: Stored | None, obj: T, owner: Owner) -> bytes:
        if current is not None and not self.kind.valid(current.value):
            current = None
        before = None if current is None else documents.parse(current.value)
        laid = self.kind.overlay(None if current is None else current.value, obj)
        owned = documents.with_labels(
            laid, self._names.labels(owner), self._names.annotations(owner)
        )
        stamped = documents.stamp(before, owned)
        if current is not None and stamped == before:
            return current.value
        return documents.render(stamped)
