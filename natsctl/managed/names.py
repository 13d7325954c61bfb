"""What the finalizer, the annotations and the controllers of managed objects are called."""

from typing import Any

import msgspec

from natsctl.model.kinds import Kind

FINALIZER_NAME = "finalizer.managedresource.krateo.io"
"""Holds a managed object until its external resource is cleaned up (seed: `FinalizerName`)."""


class AnnotationNames(msgspec.Struct, frozen=True):
    """The annotations of managed objects; by default the seed's, so that its objects are known."""

    domain: str = "krateo.io"

    @property
    def external_name(self) -> str:
        """How the outside system calls the resource."""
        return f"{self.domain}/external-name"

    @property
    def create_pending(self) -> str:
        """The intent: when a creation was begun."""
        return f"{self.domain}/{CREATE_PENDING}"

    @property
    def create_succeeded(self) -> str:
        """When the creation was known to have succeeded."""
        return f"{self.domain}/external-create-succeeded"

    @property
    def create_failed(self) -> str:
        """When the creation was known to have failed."""
        return f"{self.domain}/external-create-failed"

    @property
    def paused(self) -> str:
        """With the value `true`: hands off."""
        return f"{self.domain}/paused"

    @property
    def management_policy(self) -> str:
        """What may be done to the external resource."""
        return f"{self.domain}/management-policy"

    @property
    def deletion_policy(self) -> str:
        """What becomes of the external resource when the object is deleted."""
        return f"{self.domain}/deletion-policy"


CREATE_PENDING = "external-create-pending"


def controller_name(kind: str | Kind[Any]) -> str:
    """Return the recommended name of a controller of this kind (seed: `ControllerName`)."""
    return f"managed/{(kind if isinstance(kind, str) else kind.name).lower()}"
