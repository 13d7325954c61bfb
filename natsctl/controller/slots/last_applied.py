"""Whether applying a manifest once more would change anything.

The object carries a digest of the manifest last applied. Where that is the same and the object
says all that the manifest says, nothing would. A server may keep a value in another form (`1000m`
as `1`). The form that it made of a manifest is remembered, so the manifest is not applied again. A
new process remembers none: it asks once which fields are still ours (`model/managed_fields.py`).
"""

import hashlib
from collections.abc import Callable

import msgspec

from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.store import Stored


class LastApplied:
    """What applying came to, for the objects of one kind.

    Args:
        annotation: the name under which an object carries its digest.
        partly: objects are seen in part only, so that just the state which an apply left is known
            to be as it should.
    """

    def __init__(self, annotation: str, *, partly: bool = False) -> None:
        self._annotation = annotation
        self._came_to: dict[str, tuple[str, object]] = {}  # by key: digest, and what it came to
        self._seen: Callable[[Document, Stored], object] = _revision if partly else _seen

    def __len__(self) -> int:
        """Count the objects of which something has to be remembered."""
        return len(self._came_to)

    def sealed(self, manifest: Document) -> Document:
        """Return the manifest with its digest on it."""
        encoded = msgspec.json.encode(manifest, order="deterministic")
        digest = hashlib.sha256(encoded).hexdigest()[:32]
        return documents.with_labels(manifest, {}, {self._annotation: digest})

    def carries(self, manifest: Document, stored: Stored) -> bool:
        """Return whether the object carries the digest of the sealed *manifest*."""
        return self.digest(manifest) == self.digest(documents.parse(stored.value))

    def is_current(self, manifest: Document, stored: Stored) -> bool:
        """Say whether the object is what applying the sealed *manifest* makes of it."""
        if not self.carries(manifest, stored):
            return False
        seen = self._seen(manifest, stored)
        return seen == manifest or self._came_to.get(stored.key) == (self.digest(manifest), seen)

    def applied(self, manifest: Document, stored: Stored) -> None:
        """Remember what applying the sealed *manifest* came to, where it does not show."""
        seen = self._seen(manifest, stored)
        if seen == manifest:
            self._came_to.pop(stored.key, None)
        else:
            self._came_to[stored.key] = self.digest(manifest), seen

    def deleted(self, key: str) -> None:
        """Forget the object."""
        self._came_to.pop(key, None)

    def digest(self, document: Document) -> str:
        """Return the digest on a document, empty if it has none."""
        annotations = documents.metadata_of(document).get("annotations")
        digest = annotations.get(self._annotation, "") if isinstance(annotations, dict) else ""
        return str(digest)


def _revision(_manifest: Document, stored: Stored) -> object:
    return stored.revision


def _seen(manifest: Document, stored: Stored) -> object:
    return documents.view(manifest, documents.parse(stored.value))
