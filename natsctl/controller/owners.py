"""Names the owner of a secondary in its labels, for search, and in its annotations.

A label value has at most 63 characters of a small alphabet; a key may be longer and have others. So
the label is the key if it fits, else a hash of the key. The annotation of the same name has the
exact key. natsctl writes both, so an object whose label and annotation disagree was edited by hand:
it names no owner.
"""

import base64
import hashlib
import re
from typing import TypeVar

import msgspec

from natsctl.model.objects import Metadata
from natsctl.telemetry.hiding import hidden

T = TypeVar("T")

_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z")
_HASHED = "h."
_NAMES = ("owner-kind", "owner-key", "applied", "installation")
SHOWN_MAX = 300  # characters of an owner in a message


class Owner(msgspec.Struct, frozen=True):
    """A primary, by the name of its kind and its key.

    Both may come from an annotation, which may have any text, so `str` shortens them.
    """

    kind: str
    key: str

    def __str__(self) -> str:
        return hidden(f"{self.kind} {self.key}", limit=SHOWN_MAX)


class OwnerNames(msgspec.Struct, frozen=True):
    """The names of the labels and annotations that link a secondary to its primary.

    `kind` and `key` name a label and an annotation each. `applied` and `installation` name
    annotations of objects in a cluster: a digest of the manifest last applied, and the
    installation that the object belongs to.
    """

    kind: str = "natsctl.io/owner-kind"
    key: str = "natsctl.io/owner-key"
    applied: str = "natsctl.io/applied"
    installation: str = "natsctl.io/installation"

    @classmethod
    def of_domain(cls, domain: str) -> "OwnerNames":
        """Return the names with the prefix `<domain>/`."""
        return cls(*(f"{domain}/{name}" for name in _NAMES))

    def selector(self, owner_kind: str) -> dict[str, str]:
        """Return the label of all objects whose owner is of *owner_kind*."""
        return {self.kind: label_value(owner_kind)}

    def labels(self, owner: Owner) -> dict[str, str]:
        """Return the labels of the objects that *owner* owns."""
        return {self.kind: label_value(owner.kind), self.key: label_value(owner.key)}

    def annotations(self, owner: Owner) -> dict[str, str]:
        """Return the annotations of the objects that *owner* owns."""
        return {self.kind: owner.kind, self.key: owner.key}

    def owner(self, metadata: Metadata) -> Owner | None:
        """Return the owner of the object; None if it has none, or only a hash of one.

        An object without the label of the owner's kind has no owner.
        """
        kind = self._exact(metadata, self.kind)
        label, key = metadata.labels.get(self.key), metadata.annotations.get(self.key)
        if key is None:
            key = self._exact(metadata, self.key)
        elif label is not None and label != label_value(key):
            return None  # one of them was edited
        return None if kind is None or key is None else Owner(kind, key)

    def claimed(self, metadata: Metadata) -> Owner | None:
        """Return the owner that the annotations name, even if the labels are lost."""
        kind, key = metadata.annotations.get(self.kind), metadata.annotations.get(self.key)
        return None if kind is None or key is None else Owner(kind, key)

    @staticmethod
    def _exact(metadata: Metadata, name: str) -> str | None:
        label = metadata.labels.get(name)
        if label is None:
            return None
        exact = metadata.annotations.get(name)
        if exact is not None:
            return exact
        return None if label.startswith(_HASHED) else label


KUMORI = OwnerNames("kumori/ownerkind", "kumori/ownerkey", "kumori/applied", "kumori/installation")
"""The names in Kumori's controllerruntime."""


def label_value(text: str) -> str:
    """Return *text* if it is a legal label value, else `h.` and its base32 SHA-256."""
    if _LABEL.match(text) and not text.startswith(_HASHED):
        return text
    digest = hashlib.sha256(text.encode()).digest()
    return _HASHED + base64.b32encode(digest).decode().rstrip("=").lower()
