"""Whether an object is as it should be, as its status says."""

from natsctl.model import documents
from natsctl.model.documents import Document

UNKNOWN = "-"

_TELLING = ("Ready", "Available")  # types of conditions


def ready(document: Document | None) -> str:
    """Return how an object is, in a word.

    `Deleting`; `Pending`, where its controller has not seen it as it is; `True`, `False` or what
    else its status says of being ready; `-` where it says nothing.
    """
    if document is None:
        return UNKNOWN
    metadata, status = documents.metadata_of(document), document.get("status")
    status = status if isinstance(status, dict) else {}
    if metadata.get("deletionTimestamp"):
        return "Deleting"
    generation, observed = metadata.get("generation"), status.get("observedGeneration")
    if isinstance(generation, int) and isinstance(observed, int) and observed < generation:
        return "Pending"
    if isinstance(status.get("ready"), bool):
        return str(status["ready"])
    condition = _condition(document)
    return UNKNOWN if condition is None else str(condition.get("status"))


def reason(document: Document | None) -> str:
    """Return why it is so, as its status says; empty where it does not."""
    condition = _condition(document or {})
    found = None if condition is None else condition.get("reason")
    return found if isinstance(found, str) else ""


def _condition(document: Document) -> Document | None:
    """Return the condition that tells whether the object is ready."""
    status = document.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    listed = conditions if isinstance(conditions, list) else []
    found = [each for each in listed if isinstance(each, dict)]
    for wanted in _TELLING:
        for condition in found:
            if condition.get("type") == wanted:
                return condition
    return None
