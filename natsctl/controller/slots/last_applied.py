"""Decides whether another apply of a manifest would change its object.

The object carries a digest of the last applied manifest. If the digest is equal and the object has
all fields of the manifest, an apply changes nothing. A server may store a value in another form
(`1000m` as `1`). The stored form is remembered, so the manifest is not applied again. A new process
remembers none, and asks the server once which fields it still owns (`model/managed_fields.py`).
"""

import hashlib

import msgspec

from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.store import Stored


class LastApplied:
    """Remembers the results of applies for the objects of one kind.

    Args:
        annotation: the name of the annotation with the digest.
        partly: only the metadata of objects is watched, so an object is current only at the
            revision that its last apply returned.
    """

    def __init__(self, annotation: str, *, partly: bool = False) -> None:
        self._annotation = annotation
        self._results: dict[str, tuple[str, object]] = {}  # by key: the digest and the stored form
        self._partly = partly

    def __len__(self) -> int:
        """Count the objects whose stored form is remembered."""
        return len(self._results)

    def sealed(self, manifest: Document) -> Document:
        """Return the manifest with an annotation of its digest."""
        encoded = msgspec.json.encode(manifest, order="deterministic")
        digest = hashlib.sha256(encoded).hexdigest()[:32]
        annotations = {**documents.annotations_of(manifest), self._annotation: digest}
        return documents.with_annotations(manifest, annotations)

    def carries(self, manifest: Document, stored: Stored) -> bool:
        """Return whether the object carries the digest of the sealed *manifest*."""
        return self.digest(manifest) == self.digest(documents.parse(stored.value))

    def is_current(self, manifest: Document, stored: Stored) -> bool:
        """Return whether another apply of the sealed *manifest* would leave the object as it is."""
        digest, document = self.digest(manifest), documents.parse(stored.value)
        if digest != self.digest(document):
            return False
        if not self._partly and documents.agrees(manifest, document):
            return True
        return self._results.get(stored.key) == (
            digest,
            self._applied_form(manifest, stored, document),
        )

    def applied(self, manifest: Document, stored: Stored) -> None:
        """Remember the stored form after an apply of the sealed *manifest*, if it differs."""
        document = documents.parse(stored.value)
        if not self._partly and documents.agrees(manifest, document):
            self._results.pop(stored.key, None)
        else:
            form = self._applied_form(manifest, stored, document)
            self._results[stored.key] = self.digest(manifest), form

    def _applied_form(self, manifest: Document, stored: Stored, document: Document) -> object:
        return stored.revision if self._partly else documents.view(manifest, document)

    def deleted(self, key: str) -> None:
        """Forget the object."""
        self._results.pop(key, None)

    def digest(self, document: Document) -> str:
        """Return the digest of a document's annotation; empty if it has none."""
        return str(documents.annotations_of(document).get(self._annotation, ""))
