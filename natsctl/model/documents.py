"""Stored values as JSON documents: every write changes the document read, never a re-encoding.

So no field is lost that the writer's types do not know. All functions return new documents and
leave their arguments as they are.
"""

import copy
import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidObjectError
from natsctl.model import exact_json
from natsctl.model.exact_json import rounds_to

Document = dict[str, object]

_VOLATILE = ("generation", "resourceVersion", "managedFields")
_BOOKKEEPING = ("generation", "finalizers", "uid", "deletionTimestamp")


def parse(value: bytes) -> Document:
    """Return the document in *value*; raises `InvalidObjectError` where there is none."""
    try:
        return exact_json.decode_object(value)
    except DECODE_ERRORS as error:
        raise InvalidObjectError(f"no JSON object: {error}") from error


def render(document: object) -> bytes:
    """Return *document* as UTF-8 JSON; raises `InvalidObjectError` if it is nested too deeply."""
    try:
        return exact_json.encode(document)
    except RecursionError as error:
        raise InvalidObjectError("it is nested too deeply to be written as JSON") from error


def same(one: object, other: object) -> bool:
    """Say whether two documents, or parts of them, say the same: `1` says what `1.0` does.

    Unlike Python's `==`, under which `true` is 1.
    """
    return one == other and _as_true(one, other)


def metadata_of(document: Document) -> Document:
    """Return the document's metadata, empty where it has none."""
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def overlay(document: Document, value: msgspec.Struct) -> Document:
    """Set every field that *value*'s type has, and keep the fields that it does not know.

    So it goes on in structs within, and in dicts of them; lists are replaced as a whole, and so
    is one variant of a tagged union by another.
    """
    config = value.__struct_config__
    if config.tag is None:
        result = dict(document)
    else:
        same = document.get(config.tag_field) == config.tag  # type: ignore[arg-type]  # it has a tag
        result = {**(document if same else {}), config.tag_field: config.tag}  # type: ignore[dict-item]  # as above
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    for attribute, name in names:
        new = getattr(value, attribute)
        if new is msgspec.UNSET:
            result.pop(name, None)
        else:
            result[name] = laid(result.get(name), new)
    return result


def plain(value: object) -> Any:
    """Return *value* as it is read again after it was stored: lists, dicts and scalars."""
    try:
        encoded = exact_json.encode_sorted(value)
    except TypeError:  # a mapping has keys that are not strings
        simple = msgspec.to_builtins(value, str_keys=True, order="deterministic")
        encoded = exact_json.encode(simple)
    return exact_json.decode(encoded)


def laid(old: object, new: object) -> object:
    """Return what to store for *new* where *old* is stored; see `overlay`."""
    if new is None or isinstance(new, str | int):
        return new
    if rounds_to(old, new):
        return old  # the type of the field rounded it
    known = old if isinstance(old, dict) else {}
    if isinstance(new, msgspec.Struct) and not new.__struct_config__.array_like:
        return overlay(known, new)
    if isinstance(new, dict) and all(isinstance(name, str) for name in new):
        return {name: laid(known.get(name), item) for name, item in new.items()}
    return plain(new)


def view(wanted: Any, found: Any) -> Any:
    """Return what *found* says where *wanted* says something; equal to it, it says all of that."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return {name: view(of, found[name]) for name, of in wanted.items() if name in found}
    if isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        return [view(one, other) for one, other in zip(wanted, found, strict=True)]
    return found


def merge_patch(document: Document, patch: Document) -> Document:
    """Return *document* with the JSON merge patch applied (RFC 7396): null removes a field."""
    result = dict(document)
    for name, new in patch.items():
        old = result.get(name)
        if new is None:
            result.pop(name, None)
        elif isinstance(new, dict):
            result[name] = merge_patch(old if isinstance(old, dict) else {}, new)
        else:
            result[name] = new
    return result


def stamp(current: Document | None, new: Document) -> Document:
    """Return *new* with the bookkeeping that the writer does not decide.

    uid, finalizers, the deletion mark and the status stay those of *current*; the generation moves
    when what is desired differs from it.
    """
    before = metadata_of(current or {})
    kept = {name: before[name] for name in _BOOKKEEPING if name in before}
    given = {k: v for k, v in metadata_of(new).items() if k not in _BOOKKEEPING}
    generation = _generation(before)
    if current is None or not same(_wanted(current), _wanted(new)):
        generation += 1
    uid = kept.get("uid") or str(uuid.uuid4())
    result = {**new, "metadata": {**given, **kept, "uid": uid, "generation": generation}}
    result.pop("status", None)
    if current is not None and "status" in current:
        result["status"] = current["status"]
    return result


def with_labels(
    document: Document, labels: dict[str, str], annotations: dict[str, str]
) -> Document:
    """Return the document with these labels and annotations added to those it has."""
    result = copy.copy(document)
    metadata = dict(metadata_of(document))
    for name, added in (("labels", labels), ("annotations", annotations)):
        old = metadata.get(name)
        merged = {**(old if isinstance(old, dict) else {}), **added}
        if merged:
            metadata[name] = merged
    result["metadata"] = metadata
    return result


def with_status(document: Document, status: Document) -> Document:
    """Return the document with *status* merged into its status."""
    old = document.get("status")
    return {**document, "status": merge_patch(old if isinstance(old, dict) else {}, status)}


def finalizers_of(document: Document) -> tuple[str, ...]:
    """Return the finalizers that hold the document."""
    finalizers = metadata_of(document).get("finalizers")
    return tuple(finalizers) if isinstance(finalizers, list) else ()


def with_finalizers(document: Document, finalizers: tuple[str, ...]) -> Document:
    """Return the document held by exactly these finalizers."""
    return {**document, "metadata": {**metadata_of(document), "finalizers": list(finalizers)}}


def marked_deleted(document: Document) -> Document:
    """Return the document with the deletion mark set, now, and its generation moved."""
    metadata = metadata_of(document)
    marked = {
        **metadata,
        "deletionTimestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "generation": _generation(metadata) + 1,
    }
    return {**document, "metadata": marked}


def desire_differs(old: bytes, new: bytes) -> bool:
    """Say whether two valid values differ in more than status and bookkeeping.

    Finalizers count only once deletion is marked; how the JSON is laid out never does.
    """
    try:
        before, after = parse(old), parse(new)
    except InvalidObjectError:
        return old != new  # valid for its kind, though nobody can read all of it
    return before.get("spec") != after.get("spec") or not same(
        _significant(before), _significant(after)
    )


def _as_true(one: object, other: object) -> bool:
    """Say whether two that are equal have their true and false in the same places."""
    pairs = [(one, other)]
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            pairs += [(value, other[name]) for name, value in one.items()]
        elif isinstance(one, list) and isinstance(other, list):
            pairs += zip(one, other, strict=True)
        elif isinstance(one, bool) is not isinstance(other, bool):
            return False
    return True


def _significant(document: Document) -> Document:
    metadata = dict(metadata_of(document))
    for name in _VOLATILE:
        metadata.pop(name, None)
    if not metadata.get("deletionTimestamp"):
        metadata.pop("finalizers", None)
    wanted = {name: value for name, value in metadata.items() if value}
    return {**_wanted(document), "metadata": wanted}


def _wanted(document: Document) -> Document:
    return {k: v for k, v in document.items() if k not in {"metadata", "status"}}


def _generation(metadata: Document) -> int:
    generation = metadata.get("generation")
    return generation if isinstance(generation, int) else 0
