"""Secondaries in a cluster: manifests that the server lays over its objects (server-side apply).

The server knows which fields this controller said, takes away those that it says no more, and
keeps those of others. https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from natsctl.core.barrier import Barrier, current_sync
from natsctl.core.informer import Informer
from natsctl.core.installation import Mark
from natsctl.core.lastapplied import LastApplied
from natsctl.core.owned import Owned
from natsctl.core.owners import Owner, OwnerNames
from natsctl.core.ownwrites import OwnWrites
from natsctl.core.write import ATTEMPTS, Rewritten, read
from natsctl.errors import ConflictError, FieldConflictError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.manifests import KubeKind, Manifest, Reference
from natsctl.model.objects import Metadata
from natsctl.model.store import ManifestStore, Stored

T = TypeVar("T")

UNMARKED_INDEX = "natsctl/unmarked"
MARKER = "natsctl-installation"  # the field manager of the annotation alone


class KubeSecondary(Owned[T]):
    """The objects of a cluster that were made for primaries, each labelled with its owner.

    Args:
        manifests: the informer's store.
        manager: the name under which the server remembers what this controller said.
        mark: the annotation of this installation's objects.
        exists: returns whether a primary exists, as cached.
    """

    def __init__(
        self,
        informer: Informer[T],
        barrier: Barrier,
        own: OwnWrites,
        names: OwnerNames,
        owner_kind: str,
        *,
        manifests: ManifestStore,
        manager: str,
        mark: Mark,
        exists: Callable[[str], bool],
    ) -> None:
        super().__init__(informer, barrier, own, names, owner_kind, exists=exists)
        self._mark = mark
        self._manifests = manifests
        self._manager = manager
        self._of: KubeKind[T] = manifests.kind
        self._last = LastApplied(names.applied, partly=self._of.metadata_only)
        self._bookkeeping = {  # fields that are nobody else's
            *(f".metadata.labels.{name}" for name in (names.kind, names.key)),
            *(f".metadata.annotations.{name}" for name in msgspec.structs.astuple(names)),
        }

    async def apply(
        self, manifest: T | Manifest | msgspec.Struct, *, force: bool = True, adopt: bool = False
    ) -> int:
        """Make the object say what *manifest* says, and return its revision.

        Fields of an earlier manifest that this one lacks are removed. Fields of other managers
        stay, except those in the manifest: *force* takes them over. With `force=False`, raises
        `FieldConflictError`, which names the other managers and their fields. Nothing is sent if
        the cache shows that nothing would change. Raises `ExistsError` if the object exists and
        is not this owner's, unless *adopt*; another installation's object is never adopted.
        Does nothing and returns 0 if the kind is optional and the cluster does not have it.
        """
        owner = self._owner()
        if not self.available:
            return 0
        wanted = self._wanted(manifest, owner)
        key = await self._manifests.locate(wanted)
        with self._own.writing(key):
            seen = self._barrier.newest(self.informer, key)
            if seen is not None and self._last.is_current(wanted, seen):
                return seen.revision
            return await self._apply(wanted, key, seen, owner, force=force, adopt=adopt)

    async def create(self, manifest: T | Manifest | msgspec.Struct) -> int:
        """Add the object and return its revision, or 0 if the kind is optional and missing.

        Raises `ExistsError` if the object exists and is another owner's, `ConflictError` if it
        exists and is this owner's.
        """
        owner = self._owner()
        if not self.available:
            return 0
        wanted = self._wanted(manifest, owner)
        key = await self._manifests.locate(wanted)
        with self._own.writing(key):
            try:
                return await self._send(wanted, None, force=False)
            except ConflictError:
                current = await read(self._store, key)
                if current is not None:
                    self._refuse_foreign(current, owner)
                raise

    async def delete_stored(self, stored: Stored) -> None:
        """See `Owned.delete_stored`; one that is being deleted already is left to that."""
        if not self.is_going(stored):
            await super().delete_stored(stored)
            self._last.deleted(stored.key)
            self._touched(stored)

    def is_going(self, stored: Stored) -> bool:
        """See `Owned.is_going`."""
        return self._of.metadata(stored.value).deletion_timestamp is not None

    def foreign_installation(self, metadata: Metadata) -> str:
        """See `Owned.foreign_installation`."""
        return self._mark.foreign(metadata)

    def unmarked(self, key: str) -> list[Stored]:
        """See `Owned.unmarked`; natsctl 0.1 made such objects."""
        cached = self.informer.cache.by_index(UNMARKED_INDEX, key)
        newest = (self._barrier.read(self.informer, stored.key) for stored in cached)
        return [
            stored
            for stored in newest
            if stored is not None and self.is_unmarked(stored) and not self.is_going(stored)
        ]

    def is_unmarked(self, stored: Stored) -> bool:
        """See `Owned.is_unmarked`."""
        return not self._mark.on(self.metadata(stored))

    async def mark(self, stored: Stored) -> None:
        """See `Owned.mark`. Raises `ConflictError` if the object was replaced."""
        metadata = self._of.metadata(stored.value)
        reference = self._of.reference(stored.value)
        document: Document = {
            "apiVersion": reference.api_version,
            "kind": reference.kind,
            "metadata": {
                "name": metadata.name,
                **({"namespace": metadata.namespace} if metadata.namespace else {}),
                "annotations": self._mark.annotations,
            },
        }
        with self._own.writing(stored.key):
            marked = await self._manifests.apply(document, manager=MARKER, uid=metadata.uid)
            self._landed(Rewritten(marked, stored.revision))

    async def owns(self, owner: Owner, stored: Stored) -> bool:
        """See `Owned.owns`.

        Another installation's object is nobody's here. An object that carries no installation,
        as natsctl 0.1 made it, belongs to the owner only while the primary exists.
        """
        metadata = self.metadata(stored)
        if self._mark.foreign(metadata):
            return False
        if not self._mark.on(metadata) and not self._exists(owner.key):
            return False
        return await super().owns(owner, stored)

    def references(self, key: str) -> list[Reference]:
        """Return what names the objects that were made for the primary *key*."""
        return [self._of.reference(stored.value) for stored in self.owned_stored(key)]

    async def _apply(
        self,
        wanted: Document,
        key: str,
        seen: Stored | None,
        owner: Owner,
        *,
        force: bool,
        adopt: bool,
    ) -> int:
        """Apply to exactly the object that may be: what the cache shows, else what there is."""
        current = seen
        for _ in range(ATTEMPTS):
            if current is not None:
                await self._check_owner(wanted, current, owner, adopt=adopt)
            try:
                return await self._send(wanted, current, force=force)
            except FieldConflictError:
                raise
            except ConflictError:
                current = await read(self._store, key)
        raise ConflictError(f"{key} of {self.kind.name} is replaced all the time: try later")

    async def _check_owner(
        self, wanted: Document, current: Stored, owner: Owner, *, adopt: bool
    ) -> None:
        """Raise `ExistsError` if the object is not *owner*'s, or may not be adopted.

        An object with the digest of this very manifest is the owner's, whatever its labels name:
        the owner is part of the manifest.
        """
        ours = adopt or self._last.carries(wanted, current)
        if ours and not self._mark.foreign(self.metadata(current)):
            return
        if not await self.owns(owner, current):
            self._refuse_foreign(current, owner)

    async def _send(self, wanted: Document, current: Stored | None, *, force: bool) -> int:
        uid = "" if current is None else self._of.metadata(current.value).uid
        try:
            stored = await self._at_once(wanted, uid, force=force)
        except FieldConflictError as conflict:
            if not self._bookkeeping.issuperset(conflict.fields or {""}):
                raise
            stored = await self._at_once(wanted, uid, force=True)  # whose it is, we say
        self._last.applied(wanted, stored)
        base = 0 if current is None else current.revision
        if stored.revision == base:
            return stored.revision
        self._touched(stored)
        return self._landed(Rewritten(stored, base))

    async def _at_once(self, wanted: Document, uid: str, *, force: bool) -> Stored:
        return await self._manifests.apply(wanted, manager=self._manager, uid=uid, force=force)

    def _touched(self, stored: Stored) -> None:
        sync = current_sync.get()
        if sync is not None:
            sync.touched.append(self._of.reference(stored.value))

    def _wanted(self, manifest: T | Manifest | msgspec.Struct, owner: Owner) -> Document:
        """Return the manifest with its owner and its digest on it."""
        labels = self._names.labels(owner)
        annotations = {**self._names.annotations(owner), **self._mark.annotations}
        document = self._of.manifest(manifest)  # type: ignore[arg-type]  # T is one of the others
        return self._last.sealed(documents.with_labels(document, labels, annotations))
