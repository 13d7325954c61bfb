"""Names the finalizer, the annotations and the controllers of managed objects."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from natsctl.model.kinds import Kind
from natsctl.model.objects import DOMAIN, LINK, WISHES

FINALIZER_NAME = "natsctl.io/managed"
"""Holds a managed object until its external resource is cleaned up (seed: `FinalizerName`)."""

KRATEO_FINALIZER_NAME = "finalizer.managedresource.krateo.io"

CREATE_PENDING = "external-create-pending"


class AnnotationNames(msgspec.Struct, frozen=True):
    """Names the annotations of managed objects, by their domain, and the finalizer.

    `KRATEO` has the names of krateo's provider-runtime. Objects that carry the names of either of
    the two are read by a reconciler with the other, and its next write renames them.
    """

    domain: str = DOMAIN
    finalizer: str = FINALIZER_NAME

    @property
    def external_name(self) -> str:
        """The name of the external resource."""
        return f"{self.domain}/external-name"

    @property
    def create_pending(self) -> str:
        """The intent: the time at which a creation began."""
        return f"{self.domain}/{CREATE_PENDING}"

    @property
    def create_succeeded(self) -> str:
        """The time at which a creation was known to have succeeded."""
        return f"{self.domain}/external-create-succeeded"

    @property
    def create_failed(self) -> str:
        """The time at which a creation was known to have failed."""
        return f"{self.domain}/external-create-failed"

    @property
    def paused(self) -> str:
        """With the value `true`, nothing is done for the object."""
        return f"{self.domain}/paused"

    @property
    def management_policy(self) -> str:
        """The operations that are allowed on the external resource."""
        return f"{self.domain}/management-policy"

    @property
    def deletion_policy(self) -> str:
        """The fate of the external resource when the object is deleted."""
        return f"{self.domain}/deletion-policy"

    def words(self, words: Iterable[str]) -> list[str]:
        """Return the annotations with these last words."""
        return [f"{self.domain}/{word}" for word in words]

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that are read, the own one first."""
        others = _KNOWN - {self.domain} if self.domain in _KNOWN else ()
        return (self.domain, *others)

    def finalizers(self, own: str) -> frozenset[str]:
        """Return the finalizers that mean the same as *own*."""
        known = frozenset({FINALIZER_NAME, KRATEO_FINALIZER_NAME})
        return known if own in known else frozenset({own})

    def link(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return the annotations that link to the external resource, under the own names.

        They come from one domain: the first that has any.
        """
        found = (self._read(annotations, domain, LINK) for domain in self.domains)
        return next((texts for texts in found if texts), {})

    def wishes(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return the annotations by which a user asks for something, under the own names."""
        domains = reversed(self.domains)
        found = (self._read(annotations, domain, WISHES) for domain in domains)
        return {name: text for texts in found for name, text in texts.items()}

    def migrated(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return all annotations, those that link to the external resource under the own names."""
        read = {f"{domain}/{word}" for domain in self.domains for word in LINK}
        others = {name: text for name, text in annotations.items() if name not in read}
        return {**others, **self.link(annotations)}

    def _read(
        self, annotations: Mapping[str, str], domain: str, words: tuple[str, ...]
    ) -> dict[str, str]:
        found = ((word, annotations.get(f"{domain}/{word}")) for word in words)
        return {f"{self.domain}/{word}": text for word, text in found if text is not None}


KRATEO = AnnotationNames("krateo.io", KRATEO_FINALIZER_NAME)
"""The names that krateo's provider-runtime uses."""

_KNOWN = frozenset({DOMAIN, KRATEO.domain})


def controller_name(kind: str | Kind[Any]) -> str:
    """Return the recommended name of a controller of this kind (seed: `ControllerName`)."""
    return f"managed/{(kind if isinstance(kind, str) else kind.name).lower()}"
