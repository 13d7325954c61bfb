"""Reads from an object's status whether the object is ready."""

from datetime import UTC, datetime

from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.objects import PAUSED
from natsctl.model.pause import Pause, active_pause

UNKNOWN = "-"

_READY_TYPES = ("Ready", "Available")  # condition types, the preferred one first
_UNSYNCED = ("Synced", "False")


def ready(document: Document | None) -> str:
    """Return the readiness of an object in one word.

    The word is `Paused`, `Deleting`, `Pending` if the controller hasn't seen the newest
    generation, the status of the ready condition, such as `True` or `False`, or `-` if the
    readiness is unknown.
    """
    if document is None:
        return UNKNOWN
    metadata, status = documents.metadata_of(document), document.get("status")
    status = status if isinstance(status, dict) else {}
    if _pause(document) is not None:
        return "Paused"
    if metadata.get("deletionTimestamp"):
        return "Deleting"
    generation, observed = metadata.get("generation"), status.get("observedGeneration")
    if isinstance(generation, int) and isinstance(observed, int) and observed < generation:
        return "Pending"
    if isinstance(status.get("ready"), bool):
        return str(status["ready"])
    condition = _ready_condition(document)
    return UNKNOWN if condition is None else str(condition.get("status"))


def reason(document: Document | None) -> str:
    """Return the reason of the pause or of the ready condition; empty if there is none."""
    pause = _pause(document or {})
    if pause is not None:
        return pause.reason
    condition = _ready_condition(document or {})
    text = None if condition is None else condition.get("reason")
    return text if isinstance(text, str) else ""


def conditions(document: Document) -> list[str]:
    """Return the conditions of the status as text, such as `Ready=False Creating: no disk left`."""
    texts = []
    for each in _conditions(document):
        state = f"{each.get('type')}={each.get('status')} {each.get('reason') or ''}".rstrip()
        texts.append(f"{state}: {each['message']}" if each.get("message") else state)
    return texts


def _pause(document: Document) -> Pause | None:
    return active_pause(documents.annotation(document, PAUSED), datetime.now(UTC))


def _ready_condition(document: Document) -> Document | None:
    valid = _conditions(document)
    for ready_type in _READY_TYPES:
        for condition in valid:
            if condition.get("type") == ready_type:
                return condition
    # a resource that fails before its readiness is known, such as an adopted one, isn't ready
    unsynced = (each for each in valid if (each.get("type"), each.get("status")) == _UNSYNCED)
    return next(unsynced, None)


def _conditions(document: Document) -> list[Document]:
    status = document.get("status")
    found = status.get("conditions") if isinstance(status, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def has_condition(document: Document, name: str, status: str) -> bool:
    """Return whether a condition has that status, for the newest generation of the object.

    `Ready` is also what `ready` tells of an object without such a condition.
    """
    metadata, state = documents.metadata_of(document), document.get("status")
    observed = state.get("observedGeneration") if isinstance(state, dict) else None
    for each in _conditions(document):
        if str(each.get("type")).lower() == name.lower():
            seen, newest = each.get("observedGeneration", observed), metadata.get("generation")
            old = isinstance(seen, int) and isinstance(newest, int) and seen < newest
            return not old and str(each.get("status")).lower() == status.lower()
    return name.lower() == "ready" and ready(document).lower() == status.lower()
