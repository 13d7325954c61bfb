"""One managed object: what is stored, and what was changed on it since it was read."""

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

from natsctl.errors import UsageError
from natsctl.managed.conditions import Condition, condition, with_conditions
from natsctl.managed.creation import Creation
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
        names: what its annotations are called.
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
        """What is known of the last creation of its external resource."""
        return Creation.of(self.metadata.annotations, self._names)

    @property
    def changed_annotations(self) -> dict[str, str | None]:
        """What was changed of the annotations: None is what was taken away."""
        before, after = self.metadata.annotations, self.annotations
        removed = dict.fromkeys(before.keys() - after.keys())
        return {**removed, **{k: v for k, v in after.items() if before.get(k) != v}}

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

    def document(self, *, finalizer: str, spec: Document | None = None) -> bytes:
        """Return the value to store: with our annotations and finalizer, and *spec* laid over."""
        held = documents.finalizers_of(self._document)
        finalizers = held if finalizer in held else (*held, finalizer)
        metadata = {**documents.metadata_of(self._document), "annotations": self.annotations}
        document = {**self._document, "metadata": metadata}
        if spec:
            document["spec"] = documents.merge_patch(_part(self._document, "spec"), spec)
        if not isinstance(self.kind, KubeKind):
            document = documents.stamp(self._document, document)
        return documents.render(documents.with_finalizers(document, finalizers))

    def reset(self, stored: Stored) -> None:
        """Become what is stored; what was changed is dropped."""
        self.stored = stored
        self.object = self.kind.decode(stored.value)
        self.metadata: Metadata = self.kind.metadata(stored.value)
        self.said: set[str] = set()  # the types of the conditions that were set since
        self._document = documents.parse(stored.value)
        self.annotations = dict(self.metadata.annotations)
        self.spec: dict[str, Any] = copy.deepcopy(_part(self._document, "spec"))
        self.status: dict[str, Any] = copy.deepcopy(_part(self._document, "status"))

    def advance(self, stored: Stored) -> None:
        """Become what is stored, and keep what was changed of the status."""
        patch, said = self.status_patch, self.said
        self.reset(stored)
        self.status = documents.merge_patch(self.status, patch)
        self.said = said


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
