"""A recorder that keeps events in memory."""

from collections.abc import Sequence

import msgspec

from natsctl.model.manifests import Reference
from natsctl.model.store import EventType, Guarded, SyncNote


class RecordedEvent(msgspec.Struct, frozen=True):
    """An event that a controller recorded about the object `key`."""

    key: str
    type: EventType
    reason: str
    message: str
    regarding: tuple[Reference, ...] = ()
    sync: SyncNote | None = None


class MemoryRecorder(Guarded):
    """Keeps events in a list, which guarded recorders share; a `Recorder`."""

    def __init__(self) -> None:
        self.events: list[RecordedEvent] = []

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
        *,
        sync: SyncNote | None = None,
    ) -> None:
        if self.guard.may_record(key):
            about = tuple(regarding)
            self.events.append(RecordedEvent(key, type, reason, message, about, sync))

    async def past_failures(self, key: str, handler: str = "") -> int:
        notes = (event.sync for event in self.events if event.key == key)
        syncs = [note for note in notes if note is not None and note.handler == handler]
        return syncs[-1].failures if syncs else 0
