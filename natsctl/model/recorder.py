"""The seam for events: messages about a key, for people."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from natsctl.model.manifests import Reference


class EventType(Enum):
    """Whether somebody should look."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Recorder(Protocol):
    """Takes events and sends them when it can; never blocks, never raises."""

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
    ) -> None:
        """Record that something happened to the primary *key*, and to what was made for it.

        *reason* is short, CamelCase and made for programs; *message* is for people; *regarding*
        names the objects of a cluster that were made for it.
        """
        ...
