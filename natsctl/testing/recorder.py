"""Events that are kept in memory."""

import copy
from collections.abc import Sequence

import msgspec

from natsctl.model.manifests import Reference
from natsctl.model.recorder import EventType
from natsctl.model.write_guard import UNGUARDED, WriteGuard


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
        self.guard = UNGUARDED

    def guarded(self, guard: WriteGuard) -> "MemoryRecorder":
        """Return a recorder with the same list, which asks *guard* before it records."""
        guarded = copy.copy(self)
        guarded.guard = guard
        return guarded

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
    ) -> None:
        """See `Recorder.event`."""
        if self.guard.may_record(key):
            self.events.append(Event(key, type, reason, message, tuple(regarding)))
