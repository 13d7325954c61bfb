"""Describes an entry of a bucket: as cells of a table, and as fields of JSON and YAML."""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType

import msgspec

from natsctl.jetstream.bucket import Message
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document
from natsctl.model.readiness import ready
from natsctl.model.schemas.field_paths import Columns
from natsctl.model.schemas.versions import version_of
from natsctl.telemetry.hiding import abbreviated

ENVELOPE = ("bucket", "key", "revision", "event")
"""The fields of a described entry that are not part of the stored value."""

VALUE, BASE64 = "value", "base64"
PREVIEW_MAX = 60
NONE = "-"
"""A table cell without a value."""

NO_COLUMNS: Columns = MappingProxyType({})
_WIDE = ("LABELS", "FINALIZERS", "UID")


def object_in(value: bytes) -> Document | None:
    """Return the object in a value: JSON with a spec or metadata. Return None for other values.

    JSON that is nested too deeply to be parsed is not an object.
    """
    try:
        document = exact_json.decode_object(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return document if is_object(document) else None


def is_object(document: Mapping[str, object]) -> bool:
    """Return whether a JSON object has a spec or metadata, as natsctl's objects have."""
    return "spec" in document or isinstance(document.get("metadata"), dict)


def labels_of(document: Document | None) -> dict[str, str]:
    """Return the labels of an object; empty if *document* is None."""
    labels = documents.metadata_of(document or {}).get("labels")
    if not isinstance(labels, dict):
        return {}
    return {name: text for name, text in labels.items() if isinstance(text, str)}


def described(bucket: str, message: Message, event: str = "") -> dict[str, object]:
    """Return an entry as fields that `natsctl apply` reads.

    The fields of an object are added to `bucket`, `key` and `revision`. Another value is in the
    field `value`: a JSON object or array as it is, and other text as a string. Bytes that are not
    text are in the field `base64`. A delete marker has no value. No number is rounded.
    """
    fields: dict[str, object] = {"bucket": bucket, "key": message.key, "revision": message.revision}
    if not message.marker:
        document = object_in(message.value)
        if document is None or document.keys() & {*ENVELOPE, VALUE, BASE64}:
            document = _value_field(message.value)
        fields |= document
    return {**fields, "event": event} if event else fields


def _value_field(value: bytes) -> dict[str, object]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(value).decode()}
    try:
        parsed = exact_json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return {VALUE: text}
    return {VALUE: parsed if isinstance(parsed, dict | list) else text}


def headings_of(
    messages: Sequence[Message], *, wide: bool = False, declared: Columns = NO_COLUMNS
) -> list[str]:
    """Return the headings of a table of entries, with the *declared* columns of their kinds.

    VERSION is shown if an object states the version that it is stored as.
    """
    objects = [object_in(message.value) for message in messages]
    headings = ["KEY", "REVISION"]
    if any(objects) or not objects:
        headings += ["GENERATION", "READY"]
    if any(version_of(document or {}) > 1 for document in objects):
        headings += ["VERSION"]
    headings = [*(name for name in headings if name not in declared), *declared]
    headings += [name for name in ["AGE", *(_WIDE if wide else ())] if name not in declared]
    return headings if all(document is not None for document in objects) else [*headings, "VALUE"]


def cells_of(
    message: Message, headings: Sequence[str], now: datetime, *, declared: Columns = NO_COLUMNS
) -> list[str]:
    """Return the cells of an entry under the headings, of which some are *declared*."""
    document = object_in(message.value)
    metadata = documents.metadata_of(document or {})
    cells = {
        "KEY": message.key,
        "REVISION": str(message.revision),
        "GENERATION": _cell(metadata.get("generation")),
        "READY": abbreviated(ready(document), PREVIEW_MAX),
        "AGE": age(message.created, now),
        "LABELS": _cell(",".join(f"{k}={v}" for k, v in labels_of(document).items())),
        "FINALIZERS": _cell(",".join(map(str, documents.finalizers_of(document or {})))),
        "UID": _cell(metadata.get("uid")),
        "VALUE": NONE if document is not None else preview(message.value),
        "VERSION": NONE if document is None else str(version_of(document)),
    }
    cells |= {heading: path.text_in(document) for heading, path in declared.items()}
    return [cells[heading] for heading in headings]


def age(created: str, now: datetime) -> str:
    """Return the time since *created* (RFC 3339), as `short_time` returns it.

    Return `-` if *created* is not a time.
    """
    try:
        elapsed = now - datetime.fromisoformat(created).astimezone(UTC)
    except (ValueError, OverflowError):
        return NONE
    return short_time(elapsed.total_seconds())


def short_time(elapsed_s: float) -> str:
    """Return a time such as 45s, 3m20s, 2h5m, 3d4h or 80d; a negative one as 0s."""
    minutes, seconds = divmod(int(max(0.0, elapsed_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    largest, *smaller = parts
    one_digit = largest[0] < 10  # noqa: PLR2004 - two digits are precise enough without a second unit
    second = [part for part in smaller[:1] if one_digit and part[0]]
    return "".join(f"{number}{unit}" for number, unit in (largest, *second))


def preview(value: bytes) -> str:
    """Return the beginning of a value on one line."""
    try:
        text = " ".join(value.decode().split())
    except UnicodeDecodeError:
        return f"({len(value)} bytes)"
    return abbreviated(text, PREVIEW_MAX)


def _cell(value: object) -> str:
    return NONE if value is None or value == "" else str(value)
