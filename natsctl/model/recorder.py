"""The seam for events, which are messages to people about a key."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Protocol, runtime_checkable

import msgspec

from natsctl.model.manifests import Reference


class EventType(Enum):
    """The importance of an event, as in Kubernetes."""

    NORMAL = "Normal"
    WARNING = "Warning"


class SyncNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A sync that an event is about.

    Attributes:
        operation: the reason for the sync.
        revision: the revision of the object; None if the object did not exist.
        created: how many secondaries it created.
        updated: how many secondaries it updated.
        deleted: how many secondaries it deleted.
        failures: the failed syncs in a row, with this one; 0 if it succeeded.
        handler: the name of the handler, if several handlers get the key.
    """

    operation: str
    started: datetime
    duration_s: float
    revision: int | None = None
    created: int = 0
    updated: int = 0
    deleted: int = 0
    failures: int = 0
    handler: str = ""


class Recorder(Protocol):
    """Records events and sends them in the background; never blocks and never raises."""

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the name in Kubernetes
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
        *,
        sync: SyncNote | None = None,
    ) -> None:
        """Record an event about the primary *key* and about its objects in a cluster.

        *reason* is a short CamelCase word for programs, *message* is for people, and *regarding*
        refers to the key's secondaries in a cluster. *sync* is the sync that the event is about.
        """
        ...


@runtime_checkable
class RemembersSyncs(Protocol):
    """A recorder whose events can be read, also those of earlier processes."""

    async def past_failures(self, key: str, handler: str = "") -> int:
        """Return the failures in a row with the last recorded sync of the key by a handler.

        Raises `StoreError` if the events can't be read.
        """
        ...


@runtime_checkable
class CountsEvents(Protocol):
    """A recorder that counts its events."""

    def counted(self) -> Mapping[tuple[str, str], int]:
        """Return the number of events by system and outcome.

        The system is `nats` or `kubernetes`. The outcome is `sent`, `merged` into another event,
        or `dropped`.
        """
        ...
