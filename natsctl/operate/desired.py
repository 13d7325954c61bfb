"""Separates the desired state of an object from its status and natsctl's bookkeeping."""

from collections.abc import Iterator

from natsctl.jetstream.bucket import Message
from natsctl.model import documents
from natsctl.model.documents import Document, annotations_of
from natsctl.model.objects import PAUSED, STORED_VERSION, is_bookkeeping, is_reserved
from natsctl.model.plans import differences
from natsctl.operate.entries import object_in

_BOOKKEEPING = ("generation", "finalizers", "uid", "resourceVersion", "managedFields")


def desired(document: Document, *, restorable: bool = False) -> Document:
    """Return the object without its status and natsctl's bookkeeping.

    A *restorable* one is also without deletion timestamp and reserved annotations.
    """
    left_out, deleted = (is_reserved, "deletionTimestamp") if restorable else (is_bookkeeping, "")
    kept = documents.without(documents.metadata_of(document), *_BOOKKEEPING, deleted)
    kept["annotations"] = {
        name: text for name, text in annotations_of(document).items() if not left_out(name)
    }
    other_fields = documents.without(document, "metadata", "status")
    return {**other_fields, "metadata": {name: field for name, field in kept.items() if field}}


def restored_document(earlier: Document, current: Document | None) -> Document:
    """Return an earlier revision with the reserved annotations of *current*.

    It states the version that it was stored as; null if it stated none.
    """
    new = desired(earlier, restorable=True)
    version = annotations_of(earlier).get(STORED_VERSION)
    stated = {**annotations_of(new), STORED_VERSION: version}
    return with_reserved(documents.with_annotations(new, stated), current)


def with_reserved(new: Document, current: Document | None) -> Document:
    """Return *new* with the reserved annotations of *current* that *new* does not set.

    A reserved annotation that *new* sets to null is removed.
    """
    current_annotations = annotations_of(current or {})
    reserved = {name: text for name, text in current_annotations.items() if is_reserved(name)}
    new_annotations = annotations_of(new)
    removed = {name for name, text in new_annotations.items() if text is None and is_reserved(name)}
    if not reserved and not removed:
        return new
    combined = {**reserved, **new_annotations}
    return documents.with_annotations(new, documents.without(combined, *removed))


def desires_the_same(first_value: bytes, second_value: bytes) -> bool:
    """Return whether two values differ only in status and bookkeeping."""
    return _desired_in(first_value) == _desired_in(second_value)


def desired_changes(messages: list[Message]) -> list[tuple[Message, str]]:
    """Return the first message and those that changed the desired state, with what they changed.

    The text names the fields that changed, such as `spec.text` or `labels.tier`, or `paused` and
    `resumed`. It is empty for a message that created or deleted the object.
    """
    changes: list[tuple[Message, str]] = []
    previous: object = None
    for message in messages:
        current = None if message.marker else _desired_in(message.value)
        if not changes or current != previous:
            created_or_deleted = previous is None or current is None
            changed = "" if created_or_deleted else ", ".join(_changed(previous, current))
            changes.append((message, changed))
        previous = current
    return changes


def _changed(before: object, after: object) -> Iterator[str]:
    for difference in differences(before, after):
        path = difference.path.removeprefix("metadata.")
        if path == f'annotations["{PAUSED}"]':
            yield "resumed" if difference.after is None else "paused"
        elif path == "deletionTimestamp":
            yield "marked deleted"
        else:
            yield path or "value"


def _desired_in(value: bytes) -> object:
    document = object_in(value)
    return value if document is None else desired(document)
