"""What an object's status says of itself: the conditions `Synced` and `Ready`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, Self

import msgspec

from natsctl.telemetry.hiding import hidden

READY = "Ready"
SYNCED = "Synced"
MESSAGE_MAX = 1024  # characters; what outside systems answer may be long


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One thing that is so, is not so, or is not known; `reason` is for programs.

    `last_transition_time` (RFC 3339) moves when `status` does.
    """

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    last_transition_time: str = ""

    @classmethod
    def available(cls) -> Self:
        """Ready: the external resource is there to be used."""
        return cls(READY, "True", "Available")

    @classmethod
    def unavailable(cls, message: str = "") -> Self:
        """Not ready: the external resource should be there to be used, and is not."""
        return cls(READY, "False", "Unavailable", _said(message))

    @classmethod
    def creating(cls) -> Self:
        """Not ready yet."""
        return cls(READY, "False", "Creating")

    @classmethod
    def deleting(cls, message: str = "") -> Self:
        """Not ready any more."""
        return cls(READY, "False", "Deleting", _said(message))

    @classmethod
    def reconcile_success(cls) -> Self:
        """Synced: the last reconciliation went well."""
        return cls(SYNCED, "True", "ReconcileSuccess")

    @classmethod
    def reconcile_error(cls, message: str) -> Self:
        """Not synced, and why."""
        return cls(SYNCED, "False", "ReconcileError", _said(message))

    @classmethod
    def reconcile_paused(cls) -> Self:
        """Not synced, for it is paused."""
        return cls(SYNCED, "False", "ReconcilePaused")


def condition(status: object, of: str) -> Condition | None:
    """Return the condition of that type in a status, None where there is none."""
    for found in _list(status):
        if isinstance(found, dict) and found.get("type") == of:
            try:
                return msgspec.convert(found, Condition)
            except msgspec.ValidationError:
                return None
    return None


def with_conditions(status: object, new: Sequence[Condition], now: datetime) -> list[object]:
    """Return a status's conditions with these among them; one that says the same stays as it is."""
    result = list(_list(status))
    for wanted in new:
        before = condition(status, wanted.type)
        same = before is not None and before.status == wanted.status
        time = before.last_transition_time if before is not None and same else _text(now)
        document = msgspec.to_builtins(msgspec.structs.replace(wanted, last_transition_time=time))
        for number, old in enumerate(result):
            if isinstance(old, dict) and old.get("type") == wanted.type:
                result[number] = document
                break
        else:
            result.append(document)
    return result


def _said(message: str) -> str:
    return hidden(message)[:MESSAGE_MAX]


def _list(status: object) -> list[object]:
    found = status.get("conditions") if isinstance(status, dict) else None
    return found if isinstance(found, list) else []


def _text(now: datetime) -> str:
    return now.isoformat(timespec="seconds").replace("+00:00", "Z")
