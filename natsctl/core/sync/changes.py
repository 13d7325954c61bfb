"""Decides whether a change of a primary enqueues its key, and why."""

from typing import Any

from natsctl.core.objects.primary import Primary
from natsctl.core.sync.operation import Operation
from natsctl.errors import InvalidInputError
from natsctl.model.store import Change


def operation_for(change: Change[Any], primary: Primary[Any]) -> Operation | None:
    """Return why the changed key is to be synced, None if nothing that is desired changed.

    A key that was skipped because it was invalid is synced again, even if the object is back at
    its last valid state. The last state of a deleted object is remembered in `Primary.gone`.
    """
    key, before, after = change.key, change.before, change.after
    if after is None:
        if before is not None:
            primary.gone[key] = before
        return Operation.PURGE if change.purged else Operation.DELETE
    synced = None if key in primary.skipped else before
    if synced is not None and not change.kind.differs(synced.value, after.value):
        return None
    primary.gone.pop(key, None)
    return Operation.PUT


def named(key: str) -> str:
    """Return *key*; raises `InvalidInputError` if it is empty and so names no object."""
    if not key:
        raise InvalidInputError("a key is needed: an empty one names no object")
    return key
