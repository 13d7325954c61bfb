"""The seam for events: messages about a key, for people."""

from enum import Enum
from typing import Protocol


class EventType(Enum):
    """Whether somebody should look."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Recorder(Protocol):
    """Takes events and sends them when it can; never blocks, never raises."""

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record that something happened to *key*.

        *reason* is short, CamelCase and made for programs; *message* is for people.
        """
        ...
