"""What an entry of a bucket looks like, to people and to programs."""

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from natsctl.errors import DECODE_ERRORS
from natsctl.jetstream.bucket.bucket import Message
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document
from natsctl.model.readiness import ready

ENVELOPE = ("bucket", "key", "revision", "event")
"""What is said of an entry beside its object's own fields."""

VALUE, BASE64 = "value", "base64"
PREVIEW_MAX = 60
NONE = "-"
_raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def object_in(value: bytes) -> Document | None:
    """Return the object that a value is: JSON with a spec or with metadata; else None.

    Other values are whole: nothing in them is natsctl's to keep right. JSON that is nested too
    deeply to be read is no object.
    """
    try:
        document = exact_json.decode_object(value)
    except DECODE_ERRORS:
        return None
    return document if is_object(document) else None


def is_object(document: Mapping[str, object]) -> bool:
    """Say whether a JSON object is one that natsctl keeps generation, labels and status of."""
    return "spec" in document or isinstance(document.get("metadata"), dict)


def labels_of(document: Document | None) -> dict[str, str]:
    """Return the labels of an object; other values have none."""
    labels = documents.metadata_of(document or {}).get("labels")
    if not isinstance(labels, dict):
        return {}
    return {name: text for name, text in labels.items() if isinstance(text, str)}


def described(bucket: str, message: Message) -> dict[str, object]:
    """Return the entry as JSON says it, which `natsctl apply` reads.

    An object's fields stand beside `bucket`, `key` and `revision`. What is no object stands under
    `value`: a JSON object or array as it is, else the text; under `base64` what is no text.
    """
    head = _head(bucket, message)
    document = object_in(message.value)
    if document is not None and not document.keys() & {*ENVELOPE, VALUE, BASE64}:
        return {**head, **document}
    return {**head, **_whole(message.value)}


def described_raw(bucket: str, message: Message, **more: str) -> msgspec.Raw:
    """Return the described entry as JSON, with *more* of its fields.

    The fields of an object stand as they are stored: no number is rounded.
    """
    found = described(bucket, message)
    stored = found.keys() - {*ENVELOPE, VALUE, BASE64}
    if stored:
        fields = _raw_fields.decode(message.value)
        found |= {name: fields[name] for name in stored}
    elif isinstance(found.get(VALUE), dict | list):
        found[VALUE] = msgspec.Raw(message.value)
    return msgspec.Raw(exact_json.encode({**found, **more}))


def _head(bucket: str, message: Message) -> dict[str, object]:
    return {"bucket": bucket, "key": message.key, "revision": message.revision}


def _whole(value: bytes) -> dict[str, object]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(value).decode()}
    try:
        parsed = exact_json.decode(value)
    except DECODE_ERRORS:
        return {VALUE: text}
    return {VALUE: parsed if isinstance(parsed, dict | list) else text}


def columns(messages: Sequence[Message], *, wide: bool = False) -> list[str]:
    """Return the headings of a table of these entries."""
    objects = [object_in(message.value) is not None for message in messages]
    of_objects = ["GENERATION", "READY"] if any(objects) or not objects else []
    found = ["KEY", "REVISION", *of_objects, "AGE"]
    if wide:
        found += ["LABELS", "FINALIZERS", "UID"]
    return found if all(objects) else [*found, "VALUE"]


def row(message: Message, headings: Sequence[str], now: datetime) -> list[str]:
    """Return the entry's cells under these headings."""
    document = object_in(message.value)
    metadata = documents.metadata_of(document or {})
    cells = {
        "KEY": message.key,
        "REVISION": str(message.revision),
        "GENERATION": _shown(metadata.get("generation")),
        "READY": _cut(ready(document)),
        "AGE": age(message.created, now),
        "LABELS": _shown(",".join(f"{k}={v}" for k, v in labels_of(document).items())),
        "FINALIZERS": _shown(",".join(map(str, documents.finalizers_of(document or {})))),
        "UID": _shown(metadata.get("uid")),
        "VALUE": NONE if document is not None else preview(message.value),
    }
    return [cells[heading] for heading in headings]


def age(created: str, now: datetime) -> str:
    """Return how long ago that was: 45s, 3m20s, 2h5m, 3d4h, 80d; `-` if it is no time."""
    try:
        gone = max(timedelta(0), now - datetime.fromisoformat(created).astimezone(UTC))
    except (ValueError, OverflowError):
        return NONE
    minutes, seconds = divmod(int(gone.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    precise = parts[0][0] < 10  # noqa: PLR2004 - two digits say enough alone
    shown = parts[:2] if precise else parts[:1]
    return "".join(f"{n}{unit}" for at, (n, unit) in enumerate(shown) if n or not at)


def preview(value: bytes) -> str:
    """Return the beginning of a value, on one line."""
    try:
        text = " ".join(value.decode().split())
    except UnicodeDecodeError:
        return f"({len(value)} bytes)"
    return _cut(text)


def _shown(value: object) -> str:
    return NONE if value is None or value == "" else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= PREVIEW_MAX else f"{text[: PREVIEW_MAX - 1]}…"
