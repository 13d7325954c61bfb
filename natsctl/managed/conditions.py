"""The conditions `Synced` and `Ready` in the status of a managed object."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Self

import msgspec

from natsctl.model.times import time_text
from natsctl.telemetry.hiding import hidden

READY = "Ready"
SYNCED = "Synced"
MESSAGE_MAX = 1024  # characters; messages of external systems may be long


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition of a status, as in Kubernetes; `reason` is for programs.

    `last_transition_time` (RFC 3339) changes only if `status` changes.
    """

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: str = ""

    @classmethod
    def available(cls) -> Self:
        """Return Ready=True: the external resource is usable."""
        return cls(READY, "True", "Available")

    @classmethod
    def unavailable(cls, message: str = "") -> Self:
        """Return Ready=False: the external resource should be usable and is not."""
        return cls(READY, "False", "Unavailable", _message(message))

    @classmethod
    def creating(cls) -> Self:
        """Return Ready=False: the external resource is being created."""
        return cls(READY, "False", "Creating")

    @classmethod
    def not_owned(cls, message: str) -> Self:
        """Return Ready=False: the external resource exists, and natsctl didn't create it."""
        return cls(READY, "False", "NotOwned", _message(message))

    @classmethod
    def deleting(cls, message: str = "") -> Self:
        """Return Ready=False: the external resource is being deleted."""
        return cls(READY, "False", "Deleting", _message(message))

    @classmethod
    def reconcile_success(cls, message: str = "") -> Self:
        """Return Synced=True: the last reconciliation succeeded."""
        return cls(SYNCED, "True", "ReconcileSuccess", _message(message))

    @classmethod
    def reconcile_error(cls, message: str) -> Self:
        """Return Synced=False: the last reconciliation failed with *message*."""
        return cls(SYNCED, "False", "ReconcileError", _message(message))

    @classmethod
    def reconcile_paused(cls) -> Self:
        """Return Synced=False: the object is paused."""
        return cls(SYNCED, "False", "ReconcilePaused")


def condition(status: object, name: str) -> Condition | None:
    """Return the condition of type *name* in a status, or None."""
    for item in _list(status):
        if isinstance(item, dict) and item.get("type") == name:
            try:
                return msgspec.convert(item, Condition)
            except msgspec.ValidationError:
                return None
    return None


def with_conditions(status: object, new: Sequence[Condition], now: datetime) -> list[object]:
    """Return the status's conditions, with the new ones replacing those of the same type.

    A condition whose status does not change keeps its transition time.
    """
    result = list(_list(status))
    for added in new:
        before = condition(status, added.type)
        unchanged = before is not None and before.status == added.status
        time = before.last_transition_time if before is not None and unchanged else time_text(now)
        document = msgspec.to_builtins(msgspec.structs.replace(added, last_transition_time=time))
        for index, old in enumerate(result):
            if isinstance(old, dict) and old.get("type") == added.type:
                result[index] = document
                break
        else:
            result.append(document)
    return result


def _message(message: str) -> str:
    return hidden(message)[:MESSAGE_MAX]


def _list(status: object) -> list[object]:
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return conditions if isinstance(conditions, list) else []
