"""Holds one managed object as it is stored, and the changes made to it since."""

import copy
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from natsctl.errors import UsageError
from natsctl.managed.conditions import Condition, condition, with_conditions
from natsctl.managed.creation.creation import Creation
from natsctl.managed.creation.links import Link, annotations_of
from natsctl.managed.names import AnnotationNames
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.objects import Metadata
from natsctl.model.store import Stored

T = TypeVar("T")

Clock = Callable[[], datetime]


class Managed(Generic[T]):
    """A managed object, as it is handed to an `ExternalClient`.

    `object` is what is stored, decoded. `annotations`, `status` and `spec` may be changed, as far
    as the call at hand says; `ExternalClient` says what is stored of it.

    Args:
        kind: what the object is.
        stored: what the store has.
        names: the names of its annotations; those of older names are read under these.
        clock: what time it is.
        gone: it was deleted past its finalizer; *stored* is what it was.
    """

    def __init__(
        self,
        kind: Kind[T],
        stored: Stored,
        *,
        names: AnnotationNames,
        clock: Clock,
        gone: bool = False,
    ) -> None:
        self.kind = kind
        self.gone = gone
        self.recovered = False  # its link was lost, and comes from the record
        self._names = names
        self._clock = clock
        self.reset(stored)

    # ---- what a client reads and changes

    @property
    def key(self) -> str:
        """The object's name within its kind."""
        return self.stored.key

    @property
    def external_name(self) -> str:
        """How the outside system calls the resource; empty where that is not known yet."""
        return self.annotations.get(self._names.external_name, "")

    @external_name.setter
    def external_name(self, name: str) -> None:
        self.annotations[self._names.external_name] = name

    def set_conditions(self, *conditions: Condition) -> None:
        """Say this in the status; times are set where the condition's status changes."""
        self.said |= {said.type for said in conditions}
        self.status["conditions"] = with_conditions(self.status, conditions, self._clock())

    def condition(self, of: str) -> Condition | None:
        """Return the condition of that type, None where the status has none."""
        return condition(self.status, of)

    # ---- what the reconciler asks

    @property
    def is_going(self) -> bool:
        """Whether it is to go: it is marked deleted, or gone already."""
        return self.gone or self.metadata.deletion_timestamp is not None

    @property
    def creation(self) -> Creation:
        """The state of the last creation of its external resource."""
        return Creation.of(self._kept, self._names)

    @property
    def link(self) -> Link:
        """The link to its external resource, without changes that a client has just made."""
        return Link.of(self._kept, self._names)

    @property
    def wishes(self) -> dict[str, str]:
        """The annotations by which a user asks for something."""
        return self._names.wishes(self.metadata.annotations)

    @property
    def finalizers(self) -> tuple[str, ...]:
        """The finalizers that are stored."""
        return self.metadata.finalizers

    def relink(self, link: Link) -> None:
        """Take over a link that another place has recorded; the next write stores it."""
        self.annotations = {**self._unlinked(self._kept), **link.annotations(self._names)}
        self.keep()

    def suggest_name(self, name: str) -> None:
        """Call the external resource so, though it may not exist; `accept_name` stores it."""
        self.external_name = self._suggested = name

    def accept_name(self) -> None:
        """Have the next write store the suggested name, because a resource is linked by it."""
        if self._suggested:
            self._kept[self._names.external_name] = self._suggested

    def keep(self) -> None:
        """Have the next write store the annotations as they are now, whatever it writes."""
        self._kept: dict[str, str] = dict(self.annotations)

    def keep_only(self) -> None:
        """Keep the annotations as they are now, and drop all other changes."""
        annotations = self.annotations
        self.reset(self.stored)
        self.annotations = annotations
        self.keep()

    @property
    def linked_only(self) -> bool:
        """Whether no annotation but those of the link waits to be stored."""
        return self._unlinked(self._kept) == self._unlinked(
            self._names.migrated(self.metadata.annotations)
        )

    @property
    def annotations_differ(self) -> bool:
        """True if a client has changed annotations."""
        return self.annotations != self._kept

    @property
    def changed_annotations(self) -> dict[str, str | None]:
        """The annotations that differ from the stored ones; None is one that was removed."""
        return _changes(self.metadata.annotations, self.annotations)

    @property
    def status_patch(self) -> Document:
        """What was changed of the status, as a JSON merge patch (RFC 7396)."""
        return _difference(_part(self._document, "status"), self.status)

    def additions(self) -> Document:
        """Return what was added to the spec, as a JSON merge patch.

        Raises `UsageError` where something that was set is another now: an observation may only
        add.
        """
        patch = _difference(_part(self._document, "spec"), self.spec)
        changed = _overwritten(_part(self._document, "spec"), patch)
        if changed:
            raise UsageError(
                f"observing {self.key} changed spec.{changed}, which was set: "
                "late initialization may only set what was not"
            )
        return patch

    def document(
        self, *, finalizer: str, spec: Document | None = None, status: Document | None = None
    ) -> bytes:
        """Return the object as it was read, with all changed annotations and the finalizer.

        *spec* and *status* are merged into it.
        """
        new = dict(self._document)
        if spec:
            new["spec"] = documents.merge_patch(_part(new, "spec"), spec)
        document = self._dressed(self._document, new, self.changed_annotations, finalizer)
        return documents.render(documents.with_status(document, status) if status else document)

    def over(self, current: bytes, *, finalizer: str, status: Document) -> bytes:
        """Return the object as it is now, with *status* merged into it.

        If it is still linked as it was when it was read, it gets the link that is known now.
        Without a *finalizer* the finalizers stay as they are. Older names alone are no reason for a
        write.
        """
        document = documents.parse(current)
        updated = documents.with_status(document, status) if status else document
        if not self._news(document, finalizer) and documents.same(updated, document):
            return current
        changes = {}
        if Link.of(annotations_of(current), self._names) == self._stored_link:
            changes = _changes(self.metadata.annotations, self._kept)
        changed = self._dressed(document, document, changes, finalizer)
        changed = documents.with_status(changed, status) if status else changed
        return current if documents.same(changed, document) else documents.render(changed)

    def unsettled(self, finalizer: str) -> bool:
        """Return whether metadata is to be stored: the link, or the finalizer if one is given."""
        return self._news(self._document, finalizer)

    def _news(self, document: Document, finalizer: str) -> bool:
        """Return whether the link is known better than stored, or the finalizer is missing."""
        held = documents.finalizers_of(document)
        added = set(self._held_by(document, finalizer)) - set(held)
        missing = bool(added) and self._names.finalizers(finalizer).isdisjoint(held)
        return missing or self._kept != self._names.migrated(self.metadata.annotations)

    def _unlinked(self, annotations: Mapping[str, str]) -> dict[str, str]:
        link = self._names.link(annotations)
        return {name: text for name, text in annotations.items() if name not in link}

    def _dressed(
        self,
        current: Document,
        new: Document,
        annotations: dict[str, str | None],
        finalizer: str,
    ) -> Document:
        """Return *new*, made of *current*, with changed annotations and held by the finalizer."""
        held = documents.finalizers_of(current)
        finalizers = self._held_by(current, finalizer)
        if new is current and not annotations and finalizers == held:
            return current
        if annotations:
            metadata = documents.metadata_of(current)
            patched = documents.merge_patch(metadata, {"annotations": dict(annotations)})
            new = {**new, "metadata": patched}
        if not isinstance(self.kind, KubeKind):
            new = documents.stamp(current, new)
        return new if finalizers == held else documents.with_finalizers(new, finalizers)

    def _held_by(self, document: Document, finalizer: str) -> tuple[str, ...]:
        """Return the finalizers with ours; one that is to go gets no new ones."""
        held = documents.finalizers_of(document)
        if not finalizer or documents.metadata_of(document).get("deletionTimestamp"):
            return held
        ours = self._names.finalizers(finalizer)
        renamed = tuple(dict.fromkeys(finalizer if name in ours else name for name in held))
        return renamed if finalizer in renamed else (*renamed, finalizer)

    def reset(self, stored: Stored) -> None:
        """Become what is stored; what was changed is dropped."""
        self.stored = stored
        self.object = self.kind.decode(stored.value)
        self.metadata: Metadata = self.kind.metadata(stored.value)
        self.said: set[str] = set()  # the types of the conditions that were set since
        self._document = documents.parse(stored.value)
        self.annotations = self._names.migrated(self.metadata.annotations)
        self._suggested = ""
        self._stored_link = Link.of(self.metadata.annotations, self._names)
        self.keep()
        self.spec: dict[str, Any] = copy.deepcopy(_part(self._document, "spec"))
        self.status: dict[str, Any] = copy.deepcopy(_part(self._document, "status"))

    def advance(self, stored: Stored) -> None:
        """Become what is stored, and keep what was changed of the status."""
        patch, said = self.status_patch, self.said
        self.reset(stored)
        self.status = documents.merge_patch(self.status, patch)
        self.said = said


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    removed = dict.fromkeys(before.keys() - after.keys())
    return {**removed, **{name: text for name, text in after.items() if before.get(name) != text}}


def _part(document: Document, name: str) -> dict[str, Any]:
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def _difference(before: Document, after: Document) -> Document:
    """Return the merge patch that leads from *before* to *after*."""
    patch: Document = dict.fromkeys(before.keys() - after.keys())
    for name, new in after.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = _difference(old, new)
            if inner:
                patch[name] = inner
        elif new != old:
            patch[name] = new
    return patch


def _overwritten(before: Document, patch: Document) -> str:
    """Return the first field that was set and that *patch* changes, empty where there is none."""
    for name, new in patch.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = _overwritten(old, new)
            if inner:
                return f"{name}.{inner}"
        elif old is not None:
            return name
    return ""
