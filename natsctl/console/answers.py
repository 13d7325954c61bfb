"""The JSON answers of the console: the status of each error, and stored values without secrets."""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from natsctl.core.plan.record import value_differences
from natsctl.errors import DECODE_ERRORS, InvalidObjectError
from natsctl.jetstream.bucket import Message
from natsctl.jetstream.store import BucketStore
from natsctl.model import exact_json
from natsctl.model.documents import Document
from natsctl.model.masking import masked_value
from natsctl.model.plans import Difference
from natsctl.operate.statuses import Partial, Reason
from natsctl.telemetry.escaping import escaped
from natsctl.telemetry.hiding import hidden

STATUS: Mapping[Reason, int] = {
    "refused": 403,
    "not_found": 404,
    "conflict": 409,
    "invalid": 400,
    "old_daemon": 501,
    "no_daemon": 503,
    "unavailable": 503,
    "timeout": 504,
    "signed_out": 401,
    "failed": 500,
}


Fields: TypeAlias = dict[str, object]
"""JSON that nothing but the page reads."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, with its time in Unix seconds; `partial` is None if every daemon answered."""

    as_of: float = msgspec.field(default_factory=time.time)
    partial: Partial | None = None


def answer(**fields: object) -> Fields:
    """Return an answer of these fields."""
    return {"as_of": time.time(), "partial": None, **fields}


def encoded(answer: object) -> bytes:
    """Return an answer as JSON.

    Every text shows the characters that are invisible or reorder a line as escapes, because the
    content of a bucket isn't trusted.
    """
    return msgspec.json.encode(_visible(msgspec.to_builtins(answer)))


def _visible(value: object) -> object:
    match value:
        case str():
            return escaped(value, keep="\n\t")
        case dict():
            return {_visible(name): _visible(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_visible(inner) for inner in value]
        case _:
            return value


TEXT_MAX = 100_000  # characters of a value


def shown_value(message: Message) -> Fields:
    """Return a stored value without secrets: indented JSON, plain text, or nothing if it's binary.

    `omitted` is the number of characters that the text lacks.
    """
    kind, text = _text_of(message.value)
    return {
        "text": text[:TEXT_MAX],
        "kind": kind,
        "bytes": len(message.value),
        "omitted": max(0, len(text) - TEXT_MAX),
        "revision": message.revision,
        "created": message.created,
    }


def masked_document(document: Document) -> Document:
    """Return a document without secrets."""
    masked: Document = masked_value(document)
    return masked


def masked_message(message: Message) -> Message:
    """Return the message with its value without secrets, JSON or text."""
    _, text = _text_of(message.value)
    return replace(message, value=text.encode()) if text else message


def shown_differences(
    store: BucketStore, before: Message | None, after: Message | None
) -> list[Difference]:
    """Return the fields in which two revisions differ, without secrets; None has no fields.

    Values that differ in a secret stay different. Raises `InvalidObjectError` if a value is nested
    too deeply to be compared.
    """
    values = [
        None if message is None or message.marker else message.value for message in (before, after)
    ]
    try:
        return list(value_differences(store.kind, *values))
    except RecursionError:
        raise InvalidObjectError("the value is nested too deeply to be compared") from None


def _text_of(value: bytes) -> tuple[str, str]:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "binary", ""
    parsed = _parsed(value)
    if isinstance(parsed, dict | list):
        with suppress(RecursionError):
            masked = exact_json.encode(masked_value(parsed))
            return "json", msgspec.json.format(masked, indent=2).decode()
    return "text", hidden(text, limit=len(text))


def _parsed(value: bytes | None) -> object:
    try:
        return None if value is None else exact_json.decode(value)
    except DECODE_ERRORS:
        return None
