"""Finds what a user desires of an object, without natsctl's bookkeeping."""

from natsctl.cli.output.entries import object_in
from natsctl.jetstream.bucket.bucket import Message
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.objects import is_bookkeeping, is_reserved

_BOOKKEEPING = ("generation", "finalizers", "uid", "resourceVersion", "managedFields")


def desired(document: Document) -> Document:
    """Return the object without its status and natsctl's bookkeeping."""
    metadata = documents.metadata_of(document)
    kept = {name: field for name, field in metadata.items() if name not in _BOOKKEEPING}
    kept["annotations"] = {
        name: text for name, text in annotations_in(document).items() if not is_bookkeeping(name)
    }
    rest = {name: field for name, field in document.items() if name not in {"metadata", "status"}}
    return {**rest, "metadata": {name: field for name, field in kept.items() if field}}


def restorable(document: Document) -> Document:
    """Return the part of an earlier revision that a rollback puts back.

    Status, bookkeeping, the deletion mark and reserved annotations are left out.
    """
    wanted = desired(document)
    metadata = dict(documents.metadata_of(wanted))
    metadata.pop("deletionTimestamp", None)
    metadata["annotations"] = {
        name: text for name, text in annotations_in(document).items() if not is_reserved(name)
    }
    return {**wanted, "metadata": {name: field for name, field in metadata.items() if field}}


def with_reserved(wanted: Document, current: Document | None) -> Document:
    """Return *wanted* with the reserved annotations of *current* that it does not give itself.

    Null, given for a reserved annotation, removes it.
    """
    before = annotations_in(current or {})
    kept = {name: text for name, text in before.items() if is_reserved(name)}
    given = annotations_in(wanted)
    texts = {**kept, **given}
    dropped = {name for name, text in given.items() if text is None and is_reserved(name)}
    annotations = {name: text for name, text in texts.items() if name not in dropped}
    if not kept and not dropped:
        return wanted
    metadata = {**documents.metadata_of(wanted), "annotations": annotations}
    return {**wanted, "metadata": metadata}


def desires_the_same(one: bytes, other: bytes) -> bool:
    """Return whether two values differ in nothing but status and bookkeeping."""
    return _wanted(one) == _wanted(other)


def changes(messages: list[Message]) -> list[Message]:
    """Return the messages that changed the desired state, and the first one."""
    found: list[Message] = []
    before: object = None
    for message in messages:
        wanted = None if message.marker else _wanted(message.value)
        if not found or wanted != before:
            found.append(message)
        before = wanted
    return found


def annotations_in(document: Document) -> dict[str, object]:
    """Return the annotations as they are in the document, none if it has no mapping of them."""
    annotations = documents.metadata_of(document).get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def _wanted(value: bytes) -> object:
    document = object_in(value)
    return value if document is None else desired(document)
