"""A managed object: its stored state, its conditions, and the changes of a reconciliation."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import msgspec

from natsctl.core.retry import backoff
from natsctl.errors import NotFoundError, StoreError, UsageError
from natsctl.managed.links import (
    AnnotationNames,
    CreationLink,
    Mark,
    OtherCreationError,
    annotated,
    annotations_of,
    changes,
    ended,
)
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import Metadata
from natsctl.model.store import Store, Stored
from natsctl.model.times import time_text
from natsctl.telemetry.hiding import hidden

T = TypeVar("T")

READY = "Ready"
SYNCED = "Synced"
MESSAGE_MAX = 1024  # characters; messages of external systems may be long


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition of a status, as in Kubernetes; `reason` is for programs.

    `last_transition_time` (RFC 3339) changes only if `status` changes.
    """

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: str = ""

    @classmethod
    def available(cls) -> Self:
        """Return Ready=True: the external resource is usable."""
        return cls(READY, "True", "Available")

    @classmethod
    def unavailable(cls, message: str = "") -> Self:
        """Return Ready=False: the external resource should be usable, and isn't."""
        return cls(READY, "False", "Unavailable", _message(message))

    @classmethod
    def creating(cls) -> Self:
        """Return Ready=False: the external resource is being created."""
        return cls(READY, "False", "Creating")

    @classmethod
    def not_owned(cls, message: str) -> Self:
        """Return Ready=False: the external resource exists, and natsctl didn't create it."""
        return cls(READY, "False", "NotOwned", _message(message))

    @classmethod
    def deleting(cls, message: str = "") -> Self:
        """Return Ready=False: the external resource is being deleted."""
        return cls(READY, "False", "Deleting", _message(message))

    @classmethod
    def reconcile_success(cls, message: str = "") -> Self:
        """Return Synced=True: the last reconciliation succeeded."""
        return cls(SYNCED, "True", "ReconcileSuccess", _message(message))

    @classmethod
    def reconcile_error(cls, message: str) -> Self:
        """Return Synced=False: the last reconciliation failed with *message*."""
        return cls(SYNCED, "False", "ReconcileError", _message(message))

    @classmethod
    def reconcile_paused(cls) -> Self:
        """Return Synced=False: the object is paused."""
        return cls(SYNCED, "False", "ReconcilePaused")


def _message(message: str) -> str:
    return hidden(message)[:MESSAGE_MAX]


class Managed(Generic[T]):
    """A managed object, as an `ExternalClient` receives it.

    `object` is the decoded stored value. `ExternalClient` documents which changes of `annotations`,
    `status` and `spec` are stored after each call.

    Equivalent names of annotations and the finalizer are renamed to *names*. If the object is
    *gone*, it was deleted despite its finalizer, and *stored* is its last state.
    """

    def __init__(
        self,
        kind: Kind[T],
        stored: Stored,
        *,
        names: AnnotationNames,
        clock: Callable[[], datetime],
        gone: bool = False,
    ) -> None:
        self.kind = kind
        self.gone = gone
        self.recovered = False  # true if the link comes from the record, because the object lost it
        self._names = names
        self._clock = clock
        self.reset(stored)

    # ---- for clients

    @property
    def key(self) -> str:
        return self.stored.key

    @property
    def external_name(self) -> str:
        """The name of the external resource; empty if it isn't known yet."""
        return self.annotations.get(self._names.external_name, "")

    @external_name.setter
    def external_name(self, name: str) -> None:
        self.annotations[self._names.external_name] = name

    def set_conditions(self, *conditions: Condition) -> None:
        """Set conditions of the status; a transition time changes only with its status."""
        self.set_types |= {new.type for new in conditions}
        items, now = self._conditions(), time_text(self._clock())
        for new in conditions:
            before = self.condition(new.type)
            unchanged = before is not None and before.status == new.status
            time = before.last_transition_time if before is not None and unchanged else now
            item = msgspec.to_builtins(msgspec.structs.replace(new, last_transition_time=time))
            types = [old.get("type") if isinstance(old, dict) else None for old in items]
            at = types.index(new.type) if new.type in types else len(items)
            items[at : at + 1] = [item]
            self.status["conditions"] = items

    def condition(self, name: str) -> Condition | None:
        """Return the condition of this type; None if there is none, or an invalid one."""
        items = (it for it in self._conditions() if isinstance(it, dict) and it.get("type") == name)
        with suppress(msgspec.ValidationError):
            return next((msgspec.convert(item, Condition) for item in items), None)
        return None

    def _conditions(self) -> list[object]:
        conditions = self.status.get("conditions")
        return list(conditions) if isinstance(conditions, list) else []

    # ---- for the reconciler

    @property
    def is_going(self) -> bool:
        return self.gone or self.metadata.deletion_timestamp is not None

    @property
    def link(self) -> CreationLink:
        """The link to its external resource and its creation, without changes of a client."""
        return CreationLink.of(self._kept, self._names)

    @property
    def policies(self) -> dict[str, str]:
        return self._names.policies(self.metadata.annotations)

    @property
    def held(self) -> bool:
        """True if the stored object has the finalizer, or an equivalent one."""
        return not self._names.finalizers.isdisjoint(self.metadata.finalizers)

    def relink(self, link: CreationLink) -> None:
        """Replace the link; the next write stores it."""
        self.annotations = {**self._unlinked(self._kept), **link.annotations(self._names)}
        self.keep()

    def suggest_name(self, name: str) -> None:
        """Set the name of a resource that may not exist yet; `accept_name` keeps it for storage."""
        self.external_name = self._suggested = name

    def accept_name(self) -> None:
        if self._suggested:
            self._kept[self._names.external_name] = self._suggested

    @property
    def owned(self) -> bool:
        """True if natsctl created its external resource, may have created it, or adopted it."""
        link = self.link
        return link.owns(link.external_name or self._suggested)

    @property
    def named_by_user(self) -> bool:
        """True if the user wrote the name of the external resource on the object."""
        link, name = self.link, self.link.external_name
        return bool(name) and name != self._suggested and not link.gave(name)

    @property
    def given_name(self) -> str:
        """The name of the external resource unless the user wrote it; empty otherwise."""
        is_users = self.named_by_user and self.external_name == self.link.external_name
        return "" if is_users else self.external_name

    def adopt(self) -> None:
        """Take over the external resource; the next write stores that, and nothing else."""
        self.accept_name()
        self._kept[self._names.adopted] = str(Mark(self._clock(), name=self.link.external_name))
        self.annotations = dict(self._kept)

    def begin(self, given: str) -> None:
        """Add the intent to create upon the stored revision, without earlier results.

        *given* is the name of the resource unless the user wrote it. The next write stores it.
        """
        names, mark = self._names, Mark(self._clock(), self.stored.revision, given)
        results = {names.create_succeeded, names.create_failed, names.adopted}
        kept = {name: text for name, text in self.annotations.items() if name not in results}
        self.annotations = {**kept, names.create_pending: str(mark)}
        self.keep()

    def end(self, *, created: bool) -> None:
        """Give the intent its result; the next write stores it."""
        name = self.external_name if created else self.given_name
        now, names = self._clock(), self._names
        self.annotations = ended(self.annotations, names, now, created=created, name=name)
        self.keep()

    def drop_name(self) -> None:
        """Drop a name of the external resource that a client has set."""
        self.annotations.pop(self._names.external_name, None)
        if name := self._suggested or self.link.external_name:
            self.external_name = name

    def keep(self) -> None:
        self._kept: dict[str, str] = dict(self.annotations)

    def keep_only(self) -> None:
        """Keep the present annotations, and drop all other changes."""
        annotations = self.annotations
        self.reset(self.stored)
        self.annotations = annotations
        self.keep()

    @property
    def linked_only(self) -> bool:
        """True if only annotations of the link wait to be stored."""
        stored = self._names.migrated(self.metadata.annotations)
        return self._unlinked(self._kept) == self._unlinked(stored)

    @property
    def annotations_differ(self) -> bool:
        suggested = {self._names.external_name: self._suggested} if self._suggested else {}
        return self.annotations != {**self._kept, **suggested}

    @property
    def changed_annotations(self) -> dict[str, str | None]:
        """The annotations that differ from the stored ones; None is one that was removed."""
        return changes(self.metadata.annotations, self.annotations)

    @property
    def status_patch(self) -> Document:
        """The pending changes of the status, as a JSON merge patch (RFC 7396)."""
        return documents.patch_between(_part(self._document, "status"), self.status)

    def additions(self) -> Document:
        """Return the fields that were added to the spec, as a JSON merge patch.

        Raises `UsageError` if a field that was set has changed, because an observation may only
        add fields.
        """
        spec = _part(self._document, "spec")
        patch = documents.patch_between(spec, self.spec)
        if changed := _overwritten(spec, patch):
            raise UsageError(
                f"observing {self.key} changed spec.{changed}, which was set: "
                "late initialization may only set unset fields"
            )
        return patch

    def document(self, *, spec: Document | None = None, status: Document | None = None) -> bytes:
        """Return the object as it was read, with changed annotations and the finalizer.

        Merges *spec* and *status* into it. Raises `UsageError` if the object would become invalid.
        """
        new = dict(self._document)
        if spec:
            new["spec"] = documents.merge_patch(_part(new, "spec"), spec)
        document = self._with_metadata(self._document, new, self.changed_annotations, hold=True)
        changed = documents.with_status(document, status) if status else document
        return self.kind.render(changed, self.stored.value)

    def over(self, current: bytes, *, hold: bool, status: Document) -> bytes:
        """Return the *current* object with *status* merged into it.

        If its link is the one that was read, replaces the link by the newest known one. Adds the
        finalizer if *hold*. Equivalent names alone do not cause a change. Raises `UsageError` if
        the object would become invalid.
        """
        document = self.kind.document(current)
        changed = documents.with_status(document, status) if status else document
        if self.unsettled(hold=hold, document=document) or not documents.same(changed, document):
            read = CreationLink.of(self.metadata.annotations, self._names)
            same_link = CreationLink.of(annotations_of(current), self._names) == read
            linked = changes(self.metadata.annotations, self._kept) if same_link else {}
            changed = self._with_metadata(document, document, linked, hold=hold)
            changed = documents.with_status(changed, status) if status else changed
        return current if documents.same(changed, document) else self.kind.render(changed, current)

    def unsettled(self, *, hold: bool, document: Document | None = None) -> bool:
        """Return whether the link, or if *hold* the finalizer, has to be stored."""
        document = self._document if document is None else document
        present = documents.finalizers_of(document)
        added = set(self._finalizers(document, hold=hold)) - set(present)
        missing = bool(added) and self._names.finalizers.isdisjoint(present)
        return missing or self._kept != self._names.migrated(self.metadata.annotations)

    def _unlinked(self, annotations: Mapping[str, str]) -> dict[str, str]:
        link = self._names.link(annotations)
        return {name: text for name, text in annotations.items() if name not in link}

    def _with_metadata(
        self, current: Document, new: Document, annotations: dict[str, str | None], *, hold: bool
    ) -> Document:
        present = documents.finalizers_of(current)
        finalizers = self._finalizers(current, hold=hold)
        if new is current and not annotations and finalizers == present:
            return current
        if annotations:
            metadata = documents.metadata_of(current)
            patched = documents.merge_patch(metadata, {"annotations": dict(annotations)})
            new = {**new, "metadata": patched}
        if not isinstance(self.kind, KubeKind):
            new = documents.stamp(current, new)
        return new if finalizers == present else documents.with_finalizers(new, finalizers)

    def _finalizers(self, document: Document, *, hold: bool) -> tuple[str, ...]:
        present = documents.finalizers_of(document)
        if not hold or documents.metadata_of(document).get("deletionTimestamp"):
            return present
        own, ours = self._names.finalizer, self._names.finalizers
        renamed = tuple(dict.fromkeys(own if name in ours else name for name in present))
        return renamed if own in renamed else (*renamed, own)

    def reset(self, stored: Stored) -> None:
        """Replace the object by its stored state, and drop pending changes."""
        self.stored = stored
        self.object = self.kind.decode(stored.value)
        self.metadata: Metadata = self.kind.metadata(stored.value)
        self.set_types: set[str] = set()  # the types of the conditions set since the reset
        self._document = self.kind.document(stored.value)
        self.annotations = self._names.migrated(self.metadata.annotations)
        self._suggested = ""
        self.keep()
        self.spec: dict[str, Any] = copy.deepcopy(_part(self._document, "spec"))
        self.status: dict[str, Any] = copy.deepcopy(_part(self._document, "status"))

    def check(self, *, status: bool = True) -> None:
        """Raise `UsageError` if the changes of a client would make the object invalid.

        Drops these changes then. Without *status*, only annotations are checked.
        """
        patch = self.status_patch if status else {}
        if not patch and not self.annotations_differ:
            return
        try:
            self.document(status=patch)
        except UsageError:
            self.annotations = dict(self._kept)
            self.status = copy.deepcopy(_part(self._document, "status"))
            self.set_types = set()
            raise

    def advance(self, stored: Stored) -> None:
        """Replace the object by its stored state, and keep pending changes of the status."""
        patch, set_types = self.status_patch, self.set_types
        self.reset(stored)
        self.status = documents.merge_patch(self.status, patch)
        self.set_types = set_types


def _part(document: Document, name: str) -> dict[str, Any]:
    part = document.get(name)
    return part if isinstance(part, dict) else {}


def _overwritten(before: Document, patch: Document) -> str:
    for name, new in patch.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            if inner := _overwritten(old, new):
                return f"{name}.{inner}"
        elif old is not None:
            return name
    return ""


# ---- annotations that must not be lost: results of creations and external names

WITHIN_S = 20.0
BACKOFF_S, BACKOFF_MAX_S = 0.05, 2.0


@runtime_checkable
class CriticalAnnotationUpdater(Protocol):
    """Stores annotations before a reconciliation continues."""

    async def update_critical_annotations(self, managed: Managed[Any]) -> None:
        """Store the object's annotations, and reset the object to its stored state."""
        ...


CriticalAnnotationUpdateFn: TypeAlias = Callable[[Managed[Any]], Awaitable[None]]


class RetryingCriticalAnnotationUpdater:
    """Stores annotations, and retries for a limited time while the store fails.

    *Guarantees.* The updater merges the changed annotations into the newest state of the object by
    compare-and-set, and retries for *within_s* seconds. It drops other pending changes of the
    object. It never overwrites another creation or another object with the same key.

    Raises `OtherCreationError` (a `ConflictError`) for another creation, `NotFoundError` if the
    object is gone, and the last `StoreError` when the time is over.

    Seed: krateo provider-runtime, `RetryingCriticalAnnotationUpdater`.
    """

    def __init__(
        self, store: Store, *, names: AnnotationNames | None = None, within_s: float = WITHIN_S
    ) -> None:
        self._store, self._names, self._within_s = store, names or AnnotationNames(), within_s

    async def update_critical_annotations(self, managed: Managed[Any]) -> None:
        await retry_store_errors(lambda: self._update(managed), within_s=self._within_s)

    async def _update(self, managed: Managed[Any]) -> None:
        newest = await self._store.get(managed.key)
        if self._creation(managed.metadata) != self._creation(managed.kind.metadata(newest.value)):
            raise OtherCreationError(f"{managed.key} was replaced, or another creation has begun")
        value = annotated(newest.value, managed.changed_annotations)
        if value != newest.value:
            newest = await self._store.update(newest.key, value, revision=newest.revision)
        managed.reset(newest)

    def _creation(self, metadata: Metadata) -> tuple[str, str]:
        link = self._names.link(metadata.annotations)
        return metadata.uid, link.get(self._names.create_pending, "")


async def retry_store_errors(
    attempt: Callable[[], Awaitable[None]], *, within_s: float = WITHIN_S
) -> None:
    """Call *attempt* until it succeeds, for at most *within_s* seconds.

    Raises `NotFoundError` and `OtherCreationError` at once, because a retry would not help, and the
    last `StoreError` when the time is over.
    """
    clock = asyncio.get_running_loop().time
    deadline, failures = clock() + within_s, 0
    while True:
        last = clock() >= deadline
        try:
            return await attempt()
        except (NotFoundError, OtherCreationError):
            raise
        except StoreError:
            if last:
                raise
        failures += 1
        pause_s = backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S)
        await asyncio.sleep(min(pause_s, max(0.0, deadline - clock())))
