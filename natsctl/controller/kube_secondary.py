"""Writes secondaries in a cluster by server-side apply.

The server knows which fields this controller applied. It removes the fields that a later manifest
lacks, and keeps the fields of other managers. https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from natsctl.controller.owned import Owned, Owners
from natsctl.controller.owners import Owner
from natsctl.core.compare_and_set import ATTEMPTS, Rewritten, read
from natsctl.core.informer import Informer
from natsctl.core.retry import backoff
from natsctl.core.sync import current_sync
from natsctl.core.table import is_read
from natsctl.core.writes import Writes
from natsctl.errors import (
    ConflictError,
    FieldConflictError,
    ImmutableFieldError,
    InvalidObjectError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    TooLargeError,
)
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.managed_fields import LostField, lost_fields
from natsctl.model.manifests import KubeKind, Manifest, OnImmutable, Reference
from natsctl.model.store import Change, EventType, ManifestStore, Stored
from natsctl.telemetry.hiding import enumerated

T = TypeVar("T")

TRIAL_NAME, TRIAL_DIGEST = 43, 8  # characters; with a dash, the 52 of a CronJob's name
GONE_S = 30.0  # how long the deletion of an object that is recreated may take
LOOK_MIN_S, LOOK_MAX_S = 0.02, 1.0  # between two reads of a deleted object, doubling

BASE_S, LIMIT_S = 0.005, 1000.0  # until an undone manifest is applied again, as for a failing key
CONTESTED = 3  # applies that are undone in a row before they are reported
CALM_S = 600.0  # an applied state that lasts this long after its wait ends the contest
CONTESTS_MAX = 10_000  # objects: those that were applied last
FIELDS_MAX = 5  # that a text names

REFUSALS = (InvalidObjectError, PermissionDeniedError, TooLargeError, ConflictError)

REASON_CONTESTED = "FieldsContested"
REASON_RECREATED = "Recreated"

Report = Callable[[str, EventType, str, str], None]
"""Logs a fact about a primary's key and sends it as an event: key, type, reason, message."""


class Contest(msgspec.Struct, frozen=True):
    """The last apply to an object of the primary `owner`, and how often it was undone in a row.

    `lost` are the fields that other writers changed the last time.
    """

    owner: str
    digest: str
    applied_at: float
    undone: int = 0
    wait_s: float = 0.0
    lost: tuple[LostField, ...] = ()

    @property
    def calm_at(self) -> float:
        return self.applied_at + self.wait_s + CALM_S

    @property
    def fact(self) -> str:
        """A text without the count, so that repeated events can be aggregated."""
        return (
            f"{self._rivals} changes {self._fields} back again and again; each apply waits longer"
        )

    def __str__(self) -> str:
        return (
            f"{self._rivals} changed {self._fields} back {self.undone} times in a row; "
            f"after the last apply the next one waits {self.wait_s:.3g} s"
        )

    @property
    def _rivals(self) -> str:
        managers = dict.fromkeys(name for field in self.lost for name in field.managers)
        return ", ".join(f'"{name}"' for name in managers) or "another writer"

    @property
    def _fields(self) -> str:
        paths = [field.path for field in self.lost]
        return enumerated(paths, FIELDS_MAX) if paths else "it"


class KubeSecondary(Owned[T]):
    """The secondaries of a kind in a cluster, each labelled with its owner."""

    def __init__(
        self,
        informer: Informer[T],
        writes: Writes,
        owners: Owners,
        *,
        manifests: ManifestStore,
        manager: str,
        on_immutable: OnImmutable,
        sync_later: Callable[[str, float], None],
        report: Report,
    ) -> None:
        super().__init__(informer, writes, owners)
        self.undone = 0  # how often other writers changed an applied object back
        self._contests: OrderedDict[str, Contest] = OrderedDict()  # by key
        self._forms: dict[str, tuple[str, object]] = {}  # by key, see `_form`
        self._clock = asyncio.get_running_loop().time
        self._manifests, self._manager = manifests, manager
        self._on_immutable = on_immutable
        self._sync_later, self._report = sync_later, report
        self._kube_kind: KubeKind[T] = manifests.kind
        names = owners.names
        self._bookkeeping = {  # fields that only natsctl writes
            *(f".metadata.labels.{name}" for name in (names.kind, names.key)),
            *(f".metadata.annotations.{name}" for name in msgspec.structs.astuple(names)),
        }

    async def apply(  # noqa: C901 - one straight line
        self, manifest: T | Manifest | msgspec.Struct, *, force: bool = True, adopt: bool = False
    ) -> int:
        """Apply *manifest* to the object, and return the revision of the object.

        Fields of an earlier manifest that this one lacks are removed. Fields of other managers
        stay, except those in the manifest: *force* takes them over. With `force=False`, raises
        `FieldConflictError`, which names the other managers and their fields. Nothing is sent if
        the cache shows that nothing would change. Raises `ExistsError` if the object exists and
        is not this owner's, unless *adopt*; an object of another installation is never adopted.
        Does nothing and returns 0 if the kind is optional and the cluster doesn't have it.

        If other writers undo the same manifest repeatedly, its next apply waits, longer each time.
        Then this call changes nothing, and the key is synced after the wait.
        """
        owner = self._owner()
        if not self.available:
            return 0
        sealed = self._with_marks(manifest, owner)
        key = self._kube_kind.key_of(sealed)
        with self._writes.writing(self.informer, key):
            current = await self._newest(key)
            if current is not None and self._is_current(sealed, current):
                return current.revision
            if await self._waits(sealed, key, current):
                return 0 if current is None else current.revision
            lost = None if current is None else await self._lost_fields(sealed, current)
            if current is not None and lost == []:
                self._note_form(sealed, current)
                return current.revision
            for _ in range(ATTEMPTS):  # to exactly one object: the cached one, else the stored one
                if current is not None:
                    # an object with the digest of this manifest is the owner's, also without labels
                    ours = adopt or self._carries(sealed, current)
                    ours = ours and not self.foreign(current)
                    if not ours and not await self.owns(owner, current):
                        self._refuse_foreign(current, owner)
                try:
                    return await self._send(sealed, current, force=force, lost=lost or ())
                except FieldConflictError:
                    raise
                except ImmutableFieldError as error:
                    if current is None or self._on_immutable != "recreate":
                        raise
                    if not await self.owns(owner, current):
                        raise
                    current = await self._remove(sealed, current, error)
                except ConflictError:
                    current = await read(self._store, key)
        raise ConflictError(f"{key} of {self.kind.name} is replaced all the time: try later")

    async def create(self, manifest: T | Manifest | msgspec.Struct) -> int:
        """Create the object and return its revision, or 0 if the kind is optional and missing.

        Raises `ExistsError` if the object exists and is another owner's, `ConflictError` if it
        exists and is this owner's.
        """
        owner = self._owner()
        if not self.available:
            return 0
        sealed = self._with_marks(manifest, owner)
        key = self._kube_kind.key_of(sealed)
        with self._writes.writing(self.informer, key):
            try:
                return await self._send(sealed, None, force=False)
            except ConflictError:
                current = await read(self._store, key)
                if current is not None:
                    self._refuse_foreign(current, owner)
                raise

    async def delete_stored(self, stored: Stored) -> None:
        if not self.is_terminating(stored):
            await super().delete_stored(stored)
            self._forms.pop(stored.key, None)
            self._contests.pop(stored.key, None)
            self._note_touched(stored)

    def see(self, change: Change[Any]) -> None:
        if change.after is None:  # whoever deleted it
            self._forms.pop(change.key, None)
        super().see(change)

    def contested(self) -> dict[str, Contest]:
        """Return the objects that other writers change back repeatedly, by key."""
        now, contests = self._clock(), self._contests.items()
        return {key: it for key, it in contests if it.undone >= CONTESTED and now <= it.calm_at}

    def is_terminating(self, stored: Stored) -> bool:
        return self._kube_kind.metadata(stored.value).deletion_timestamp is not None

    def references(self, key: str) -> list[Reference]:
        owned = filter(is_read, self.owned_stored(key))
        return [self._kube_kind.reference(stored.value) for stored in owned]

    async def _waits(self, sealed: Document, key: str, seen: Stored | None) -> bool:
        """Return whether the manifest is applied later, because other writers undo it repeatedly.

        A sync that a person requests does not wait, nor does the creation of a deleted object.
        """
        sync, last = current_sync.get(), self._contests.get(key)
        if last is None or last.digest != self._digest(sealed) or sync is None or sync.manual:
            return False
        wait_s = last.applied_at + last.wait_s - self._clock()
        if wait_s <= 0 or (seen is None and await read(self._store, key) is None):
            return False
        self._sync_later(sync.key, wait_s)
        return True

    async def _lost_fields(self, sealed: Document, seen: Stored) -> list[LostField] | None:
        """Return the applied fields that others changed since.

        Returns None if another manifest was applied last, or if the cached state is out of date.
        """
        if not self._carries(sealed, seen):
            return None
        try:
            managed = await self._manifests.managed(seen.key)
        except NotFoundError:
            return None
        if managed.revision != seen.revision:
            return None
        document, partly = documents.parse(seen.value), self._kube_kind.metadata_only
        return lost_fields(sealed, document, managed.managers, self._manager, metadata_only=partly)

    async def _send(
        self,
        sealed: Document,
        current: Stored | None,
        *,
        force: bool,
        lost: Sequence[LostField] = (),
    ) -> int:
        """Apply the manifest; *lost* are the fields that others changed since the last apply."""
        uid = "" if current is None else self.metadata(current).uid
        apply = partial(self._manifests.apply, sealed, manager=self._manager, uid=uid)
        try:
            stored = await apply(force=force)
        except FieldConflictError as conflict:
            if not self._bookkeeping.issuperset(conflict.fields or {""}):
                raise
            # the conflict is only about the owner, which only this controller names
            stored = await apply(force=True)
        self._note_form(sealed, stored)
        base = 0 if current is None else current.revision
        if stored.revision == base:
            return stored.revision
        self._note_touched(stored)
        key, digest, now = self._kube_kind.key_of(sealed), self._digest(sealed), self._clock()
        contest = Contest(self._owner().key, digest, now)
        # a creation undoes no other writer's fields: evicted Pods, Jobs with a time to live
        last = None if current is None else self._contests.get(key)
        if last is not None and last.digest == digest and now <= last.calm_at:
            self.undone += 1
            undone = last.undone + 1
            wait_s = backoff(undone, base_s=BASE_S, limit_s=LIMIT_S)
            fields = tuple(lost) or last.lost
            contest = Contest(contest.owner, digest, now, undone, wait_s, fields)
        self._contests[key] = contest
        self._contests.move_to_end(key)
        if len(self._contests) > CONTESTS_MAX:
            self._contests.popitem(last=False)
        if contest.undone >= CONTESTED:
            message = f"{self.kind.name} {key}: {contest.fact}"
            self._report(contest.owner, EventType.WARNING, REASON_CONTESTED, message)
        return self._note_write(Rewritten(stored, base))

    async def _remove(
        self, sealed: Document, current: Stored, error: ImmutableFieldError
    ) -> Stored | None:
        """Delete the object and wait until it is gone; return a new object of its name, if any.

        Nothing is deleted unless the server accepts the new object under another name, which is the
        same for the same manifest, and short enough for every kind. Raises *error* if it refuses,
        and `StoreError` if the object is not gone in time: finalizers may hold it.
        """
        key, uid = current.key, self.metadata(current).uid
        if not self.is_terminating(current):
            metadata = documents.metadata_of(sealed)
            digest = self._digest(sealed)[:TRIAL_DIGEST]
            name = f"{str(metadata['name'])[:TRIAL_NAME].rstrip('.-')}-{digest}"
            trial = {**sealed, "metadata": {**metadata, "name": name}}
            try:
                await self._manifests.check_create(trial, manager=self._manager)
            except REFUSALS as refused:
                text = f"{error}; it is not deleted, because the server refuses the new object: "
                raise ImmutableFieldError(f"{text}{refused}", error.fields) from refused
            try:
                await self.delete_stored(current)
            except ConflictError:
                return await read(self._store, key)
            except NotFoundError:
                return None
            fields = ", ".join(error.fields) or "a field"
            message = f"{self.kind.name} {key} is deleted and created again to change {fields}"
            self._report(self._owner().key, EventType.NORMAL, REASON_RECREATED, message)
        stored: Stored | None = current
        try:
            async with asyncio.timeout(GONE_S):
                pause_s = LOOK_MIN_S
                while (stored := await read(self._store, key)) is not None:
                    if self.metadata(stored).uid != uid:
                        return stored
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, LOOK_MAX_S)
        except TimeoutError as late:
            held = ", ".join(self._kube_kind.metadata((stored or current).value).finalizers)
            raise StoreError(
                f"{self.kind.name} {key} is to be created again, but the deleted one is "
                f"still there after {GONE_S:g} s; its finalizers: {held or 'none'}"
            ) from late
        return None

    def _note_touched(self, stored: Stored) -> None:
        if sync := current_sync.get():
            sync.touched += (self._kube_kind.reference(stored.value),)

    def _with_marks(self, manifest: T | Manifest | msgspec.Struct, owner: Owner) -> Document:
        """Return the manifest with labels and annotations of its owner, installation and digest.

        Raises `InvalidObjectError` if the slot does not select it: its object would never be seen.
        """
        names, installation = self.owners.names, self.owners.installation
        labels = names.labels(owner)
        annotations = {**names.annotations(owner), names.installation: installation.id}
        document = self._kube_kind.manifest(manifest)  # type: ignore[arg-type]  # T is one of the others
        document = documents.with_labels(document, labels, annotations)
        given = documents.metadata_of(document)["labels"]
        unmet = self._kube_kind.selector.unmet(given)  # type: ignore[arg-type]  # labels
        if unmet.requirements:
            name = documents.metadata_of(document)["name"]
            raise InvalidObjectError(
                f"{self.kind.name} {name} is not selected by its own slot, which has "
                f'labels="{unmet}": give the manifest such labels'
            )
        encoded = msgspec.json.encode(document, order="deterministic")
        digest = hashlib.sha256(encoded).hexdigest()[:32]
        marked = {**documents.annotations_of(document), names.applied: digest}
        return documents.with_annotations(document, marked)

    # ---- what the last apply to an object left

    def _digest(self, document: Document) -> str:
        """Return the digest of the manifest that the document has or is; empty if it has none."""
        return str(documents.annotations_of(document).get(self.owners.names.applied, ""))

    def _carries(self, sealed: Document, stored: Stored) -> bool:
        return self._digest(sealed) == self._digest(documents.parse(stored.value))

    def _is_current(self, sealed: Document, stored: Stored) -> bool:
        """Return whether another apply of the manifest would leave the object as it is."""
        document = documents.parse(stored.value)
        if self._digest(sealed) != self._digest(document):
            return False
        form = self._form(sealed, stored, document)
        return form is None or self._forms.get(stored.key) == form

    def _note_form(self, sealed: Document, stored: Stored) -> None:
        form = self._form(sealed, stored, documents.parse(stored.value))
        self._forms.pop(stored.key, None)
        if form is not None:
            self._forms[stored.key] = form

    def _form(
        self, sealed: Document, stored: Stored, document: Document
    ) -> tuple[str, object] | None:
        """Return the manifest's digest and what the server made of it; None if that's the same.

        If only metadata is watched, an object is current at the revision of its last apply alone.
        """
        if self._kube_kind.metadata_only:
            return self._digest(sealed), stored.revision
        if documents.agrees(sealed, document):
            return None
        return self._digest(sealed), documents.view(sealed, document)
