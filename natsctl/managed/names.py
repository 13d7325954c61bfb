"""The names of the finalizer, annotations and controllers of managed objects."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from natsctl.model.kinds import Kind
from natsctl.model.objects import DOMAIN, LINK, POLICIES

FINALIZER_NAME = "natsctl.io/managed"
"""The finalizer that keeps a managed object until its external resource is deleted.

Seed: `FinalizerName`.
"""

KRATEO_FINALIZER_NAME = "finalizer.managedresource.krateo.io"

CREATE_PENDING = "external-create-pending"


class AnnotationNames(msgspec.Struct, frozen=True):
    """The finalizer of managed objects, and the domain of their annotations.

    `KRATEO` has the names of krateo's provider-runtime. A reconciler with one of the two sets of
    names also reads the other, and its next write of an object renames them.
    """

    domain: str = DOMAIN
    finalizer: str = FINALIZER_NAME

    @property
    def external_name(self) -> str:
        """The name of the external resource."""
        return f"{self.domain}/external-name"

    @property
    def create_pending(self) -> str:
        """The time at which a creation began: the intent."""
        return f"{self.domain}/{CREATE_PENDING}"

    @property
    def create_succeeded(self) -> str:
        """The time at which the success of a creation was recorded."""
        return f"{self.domain}/external-create-succeeded"

    @property
    def create_failed(self) -> str:
        """The time at which the failure of a creation was recorded."""
        return f"{self.domain}/external-create-failed"

    @property
    def adopted(self) -> str:
        """The time at which a resource that existed before was taken over."""
        return f"{self.domain}/external-adopted"

    @property
    def adopt(self) -> str:
        """The annotation that permits to take over a resource that natsctl didn't create."""
        return f"{self.domain}/adopt"

    @property
    def paused(self) -> str:
        """The annotation that pauses an object, see `natsctl.model.pause`."""
        return f"{self.domain}/paused"

    @property
    def management_policy(self) -> str:
        """The annotation that limits the operations on the external resource."""
        return f"{self.domain}/management-policy"

    @property
    def deletion_policy(self) -> str:
        """The annotation that keeps or deletes the external resource of a deleted object."""
        return f"{self.domain}/deletion-policy"

    def qualified(self, names: Iterable[str]) -> list[str]:
        """Return these names with the prefix of this domain."""
        return [f"{self.domain}/{name}" for name in names]

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains that are read, this domain first."""
        equivalent_domains = (
            _EQUIVALENT_DOMAINS - {self.domain} if self.domain in _EQUIVALENT_DOMAINS else ()
        )
        return (self.domain, *equivalent_domains)

    @property
    def finalizers(self) -> frozenset[str]:
        """All finalizers that are equivalent to the one of these names."""
        equivalent = frozenset({FINALIZER_NAME, KRATEO_FINALIZER_NAME})
        return equivalent if self.finalizer in equivalent else frozenset({self.finalizer})

    def link(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return the annotations that link to the external resource, renamed to this domain.

        The link is read from the first domain that has one.
        """
        links = (self._read(annotations, domain, LINK) for domain in self.domains)
        return next((link for link in links if link), {})

    def policies(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return the annotations with which users set policies, renamed to this domain."""
        domains = reversed(self.domains)
        policies = (self._read(annotations, domain, POLICIES) for domain in domains)
        return {name: text for texts in policies for name, text in texts.items()}

    def migrated(self, annotations: Mapping[str, str]) -> dict[str, str]:
        """Return all annotations, with the link renamed to this domain."""
        links = {f"{domain}/{word}" for domain in self.domains for word in LINK}
        other_annotations = {name: text for name, text in annotations.items() if name not in links}
        return {**other_annotations, **self.link(annotations)}

    def _read(
        self, annotations: Mapping[str, str], domain: str, words: tuple[str, ...]
    ) -> dict[str, str]:
        texts = ((word, annotations.get(f"{domain}/{word}")) for word in words)
        return {f"{self.domain}/{word}": text for word, text in texts if text is not None}


KRATEO = AnnotationNames("krateo.io", KRATEO_FINALIZER_NAME)
"""The names of krateo's provider-runtime."""

_EQUIVALENT_DOMAINS = frozenset({DOMAIN, KRATEO.domain})


def controller_name(kind: str | Kind[Any]) -> str:
    """Return the recommended name of a controller of this kind (seed: `ControllerName`)."""
    return f"managed/{(kind if isinstance(kind, str) else kind.name).lower()}"
