"""The reasons for a sync, and the priority of each."""

from enum import StrEnum

from natsctl.core.queue.ready_queue import Priority


class Operation(StrEnum):
    """The reason for a sync: for people and for its priority, never an input to the handler."""

    PUT = "put"
    DELETE = "delete"
    PURGE = "purge"
    SECONDARY = "secondary"
    RESYNC = "resync"
    RETRY = "retry"
    MANUAL = "manual"

    @property
    def priority(self) -> Priority:
        """How urgent the sync is."""
        return _PRIORITY.get(self, Priority.USER)


_PRIORITY = {
    Operation.SECONDARY: Priority.SECONDARY,
    Operation.RETRY: Priority.RETRY,
    Operation.RESYNC: Priority.RESYNC,
}
