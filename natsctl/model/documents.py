"""Changes stored values as JSON documents, so that fields that a type doesn't know aren't lost.

A write changes the document that was read; it never encodes the whole object again. All functions
return new documents, and never change their arguments.
"""

import uuid
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from natsctl.errors import DECODE_ERRORS, InvalidObjectError
from natsctl.model import exact_json
from natsctl.model.exact_json import rounds_to
from natsctl.model.objects import PAUSED, STORED_VERSION

Document = dict[str, object]
T = TypeVar("T")

_UNDESIRED = frozenset((PAUSED, STORED_VERSION))
VOLATILE = ("generation", "resourceVersion", "managedFields")
"""Fields of the metadata that a write in a cluster changes."""

SERVERS_OWN = ("uid", "creationTimestamp", *VOLATILE)
"""Fields of the metadata that only a kube-apiserver sets."""

BOOKKEEPING = ("generation", "finalizers", "uid", "deletionTimestamp")
"""Fields of the metadata that natsctl maintains."""


def parse(value: bytes) -> Document:
    """Return the document in *value*; raises `InvalidObjectError` if it isn't a JSON object."""
    try:
        return exact_json.decode_object(value)
    except DECODE_ERRORS as error:
        raise InvalidObjectError(f"not a JSON object: {error}") from error


def render(document: object) -> bytes:
    """Return *document* as UTF-8 JSON; raises `InvalidObjectError` if it's nested too deeply."""
    try:
        return exact_json.encode(document)
    except RecursionError as error:
        raise InvalidObjectError("the document is nested too deeply for JSON") from error


def same(first: object, second: object) -> bool:
    """Return whether two JSON values are equal: `1` equals `1.0`, but not `true`."""
    return first == second and _same_booleans(first, second)


def metadata_of(document: Document) -> Document:
    """Return the document's metadata; it's empty if the document has none."""
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def without(document: Mapping[str, T], *names: str) -> dict[str, T]:
    """Return the document without these fields."""
    return {name: value for name, value in document.items() if name not in names}


def without_metadata(document: Document, names: Collection[str]) -> Document:
    """Return the document without these fields of its metadata."""
    return {**document, "metadata": without(metadata_of(document), *names)}


def annotations_of(document: Document) -> Document:
    """Return the document's annotations; they are empty if the document has none."""
    annotations = metadata_of(document).get("annotations")
    return annotations if isinstance(annotations, dict) else {}


def annotation(document: Document, name: str) -> str | None:
    """Return the text of an annotation; None if the document has no such annotation."""
    text = annotations_of(document).get(name)
    return text if isinstance(text, str) else None


def with_annotations(document: Document, annotations: Document) -> Document:
    """Return the document with exactly these annotations."""
    return {**document, "metadata": {**metadata_of(document), "annotations": annotations}}


def overlay(document: Document, value: msgspec.Struct) -> Document:
    """Return *document* with every field that *value*'s type has; keep its other fields.

    Nested structs and dicts of structs are merged in the same way. Lists are replaced as a whole,
    and so is a variant of a tagged union by another variant.
    """
    config = value.__struct_config__
    if config.tag is None:
        result = dict(document)
    else:
        same_variant = document.get(config.tag_field) == config.tag  # type: ignore[arg-type]  # it has a tag
        result = {**(document if same_variant else {}), config.tag_field: config.tag}  # type: ignore[dict-item]  # as above
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    for attribute, name in names:
        new = getattr(value, attribute)
        if new is msgspec.UNSET:
            result.pop(name, None)
        else:
            result[name] = overlay_value(result.get(name), new)
    return result


def plain(value: object) -> Any:
    """Return *value* as lists, dicts and scalars, as it's read after it was stored."""
    try:
        encoded = exact_json.encode_sorted(value)
    except TypeError:  # a mapping has keys that aren't strings
        simple = msgspec.to_builtins(value, str_keys=True, order="deterministic")
        encoded = exact_json.encode(simple)
    return exact_json.decode(encoded)


def overlay_value(old: object, new: object) -> object:
    """Return the value to store for *new* if *old* is stored; see `overlay`."""
    if new is None or isinstance(new, str | int):
        return new
    if rounds_to(old, new):
        return old  # the type of the field rounded the number
    old_fields = old if isinstance(old, dict) else {}
    if isinstance(new, msgspec.Struct) and not new.__struct_config__.array_like:
        return overlay(old_fields, new)
    if isinstance(new, dict) and all(isinstance(name, str) for name in new):
        return {name: overlay_value(old_fields.get(name), item) for name, item in new.items()}
    return plain(new)


def view(wanted: Any, stored: Any) -> Any:
    """Return the fields of *stored* that *wanted* has; the result equals *wanted* if all agree."""
    if isinstance(wanted, dict) and isinstance(stored, dict):
        return {
            name: view(value, stored[name]) if isinstance(value, dict | list) else stored[name]
            for name, value in wanted.items()
            if name in stored
        }
    if isinstance(wanted, list) and isinstance(stored, list) and len(wanted) == len(stored):
        return [
            view(wanted_item, stored_item)
            for wanted_item, stored_item in zip(wanted, stored, strict=True)
        ]
    return stored


def agrees(wanted: Any, stored: Any) -> bool:
    """Return whether *stored* has every field of *wanted* with the same value, see `view`."""
    if wanted == stored:
        return True
    if isinstance(wanted, dict) and isinstance(stored, dict):
        for name, value in wanted.items():
            if name not in stored:
                return False
            stored_value = stored[name]
            if value != stored_value and not agrees(value, stored_value):
                return False
        return True
    if isinstance(wanted, list) and isinstance(stored, list):
        return len(wanted) == len(stored) and all(map(agrees, wanted, stored))
    return False


def merge_patch(document: Document, patch: Document) -> Document:
    """Apply a JSON merge patch (RFC 7396): a null in *patch* removes the field."""
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


def patch_between(before: Document, after: Document) -> Document:
    """Return the merge patch that makes *before* to *after*."""
    patch: Document = dict.fromkeys(before.keys() - after.keys())
    for name, new in after.items():
        old = before.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = patch_between(old, new)
            if inner:
                patch[name] = inner
        elif not same(new, old):
            patch[name] = new
    return patch


def stamp(current: Document | None, new: Document) -> Document:
    """Return *new* with the fields that aren't the writer's to change.

    uid, finalizers, deletion timestamp and status are those of *current*. The generation grows if
    the desired state differs from *current*.
    """
    before = metadata_of(current or {})
    kept = {name: before[name] for name in BOOKKEEPING if name in before}
    other_metadata = without(metadata_of(new), *BOOKKEEPING)
    generation = _generation(before)
    if current is None or not same(_desired(current), _desired(new)):
        generation += 1
    uid = kept.get("uid") or str(uuid.uuid4())
    result = {**new, "metadata": {**other_metadata, **kept, "uid": uid, "generation": generation}}
    result.pop("status", None)
    if current is not None and "status" in current:
        result["status"] = current["status"]
    return result


def with_labels(
    document: Document, labels: dict[str, str], annotations: dict[str, str]
) -> Document:
    """Return the document with these labels and annotations added."""
    metadata = dict(metadata_of(document))
    for name, added in (("labels", labels), ("annotations", annotations)):
        old = metadata.get(name)
        merged = {**(old if isinstance(old, dict) else {}), **added}
        if merged:
            metadata[name] = merged
    return {**document, "metadata": metadata}


def with_status(document: Document, status: Document) -> Document:
    """Return the document with *status* merged into its status."""
    old = document.get("status")
    return {**document, "status": merge_patch(old if isinstance(old, dict) else {}, status)}


def finalizers_of(document: Document) -> tuple[str, ...]:
    """Return the document's finalizers."""
    finalizers = metadata_of(document).get("finalizers")
    return tuple(finalizers) if isinstance(finalizers, list) else ()


def with_finalizers(document: Document, finalizers: tuple[str, ...]) -> Document:
    """Return the document with exactly these finalizers."""
    return {**document, "metadata": {**metadata_of(document), "finalizers": list(finalizers)}}


def marked_deleted(document: Document) -> Document:
    """Return the document with a deletion timestamp of now and a higher generation."""
    metadata = metadata_of(document)
    marked = {
        **metadata,
        "deletionTimestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "generation": _generation(metadata) + 1,
    }
    return {**document, "metadata": marked}


def desire_differs(old: bytes, new: bytes) -> bool:
    """Return whether two valid values differ in their desired state.

    Status, bookkeeping, the stored version, the annotation that pauses the object, and the
    formatting of the JSON don't count. Finalizers count only if the object is marked as deleted.
    Most pairs have other specs, or differ only in the status, so the bytes of these parts are
    compared first.
    """
    try:
        old_parts, new_parts = _parts.decode(old), _parts.decode(new)
        if old_parts.spec == new_parts.spec:
            if old_parts.metadata == new_parts.metadata:
                return False
        elif not same(exact_json.decode(old_parts.spec), exact_json.decode(new_parts.spec)):
            return True
    except DECODE_ERRORS:
        pass  # no spec, or a field that `_Parts` doesn't have
    return _documents_differ(old, new)


class _Parts(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The fields of an object that has no others, as they are in its JSON."""

    spec: msgspec.Raw
    metadata: msgspec.Raw = msgspec.Raw(b"")
    status: msgspec.Raw = msgspec.Raw(b"")


_parts = msgspec.json.Decoder(_Parts)


def _documents_differ(old: bytes, new: bytes) -> bool:
    try:
        before, after = parse(old), parse(new)
    except InvalidObjectError:
        return old != new  # valid for its type, but nested too deeply for `parse`
    return before.get("spec") != after.get("spec") or not same(
        _significant(before), _significant(after)
    )


def desired_state(value: bytes) -> bytes:
    """Return the desired state in a value as JSON with sorted keys, see `desire_differs`."""
    try:
        document = parse(value)
    except InvalidObjectError:
        return value
    return exact_json.encode_sorted(_significant(document))


def _same_booleans(first: object, second: object) -> bool:
    pairs = [(first, second)]
    while pairs:
        first, second = pairs.pop()
        if isinstance(first, dict) and isinstance(second, dict):
            pairs += [(value, second[name]) for name, value in first.items()]
        elif isinstance(first, list) and isinstance(second, list):
            pairs += zip(first, second, strict=True)
        elif isinstance(first, bool) is not isinstance(second, bool):
            return False
    return True


def _significant(document: Document) -> Document:
    metadata = dict(metadata_of(document))
    for name in VOLATILE:
        metadata.pop(name, None)
    if not metadata.get("deletionTimestamp"):
        metadata.pop("finalizers", None)
    annotations = annotations_of(document)
    if not _UNDESIRED.isdisjoint(annotations):
        metadata["annotations"] = without(annotations, *_UNDESIRED)
    significant = {name: value for name, value in metadata.items() if value}
    return {**_desired(document), "metadata": significant}


def _desired(document: Document) -> Document:
    return without(document, "metadata", "status")


def _generation(metadata: Document) -> int:
    generation = metadata.get("generation")
    return generation if isinstance(generation, int) else 0
