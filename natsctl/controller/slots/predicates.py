"""Decides which changes of a secondary enqueue its owner."""

from collections.abc import Callable
from typing import Any, Literal

from natsctl.core.table import is_read
from natsctl.errors import UsageError
from natsctl.model.store import Change
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

Predicate = Callable[[Change[Any]], bool]
Forward = Callable[[Change[Any], str | None], None]
WakeOn = Literal["any", "spec"]


def predicate_of(wake_on: WakeOn, predicate: Predicate | None) -> Predicate | None:
    """Return the condition under which a change enqueues the owner; None for every change.

    Raises `UsageError` if *wake_on* is neither `any` nor `spec`, or *predicate* is not callable.
    """
    if predicate is not None and not callable(predicate):
        raise UsageError(f"predicate={predicate!r}: give a function that takes a Change")
    match wake_on:
        case "any":
            return predicate
        case "spec" if predicate is None:
            return desired_changed
        case "spec":
            return lambda change: desired_changed(change) and predicate(change)
        case _:
            raise UsageError(f"wake_on={wake_on!r}: give 'any' or 'spec'")


def desired_changed(change: Change[Any]) -> bool:
    """Return whether the object was created, deleted, or changed in more than its status.

    Fields that the server keeps up to date, such as `resourceVersion`, do not count.
    """
    if change.before is None or change.after is None:
        return True
    return change.kind.differs(change.before.value, change.after.value)


def filtered(forward: Forward, predicate: Predicate) -> Forward:
    """Return a function that forwards the changes for which *predicate* is true.

    A change without one of its values is forwarded: another process kept the value, or keeps it
    now, because the owner changed. If *predicate* raises, the error is logged and the change is
    forwarded.
    """

    def forward_if(change: Change[Any], writer: str | None) -> None:
        states = (change.before, change.after)
        if any(stored is not None and not is_read(stored) for stored in states):
            forward(change, writer)
            return
        try:
            matches = predicate(change)
        except (Exception, SystemExit):
            log.exception(
                "a predicate failed; enqueuing the owner", kind=change.kind.name, key=change.key
            )
            matches = True
        if matches:
            forward(change, writer)

    return forward_if
