"""Events that are kept in memory."""

from collections.abc import Sequence

import msgspec

from natsctl.model.manifests import Reference
from natsctl.model.recorder import EventType


class Event(msgspec.Struct, frozen=True):
    """An event as it was recorded."""

    key: str
    type: EventType
    reason: str
    message: str
    regarding: tuple[Reference, ...] = ()


class MemoryRecorder:
    """Keeps events in a list; a `Recorder`."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
    ) -> None:
        """See `Recorder.event`."""
        self.events.append(Event(key, type, reason, message, tuple(regarding)))
