"""The JSON answers of the console, and the status of each error."""

import time
from collections.abc import Mapping

import msgspec

from natsctl.operate.problems import Partial, Reason
from natsctl.telemetry.escaping import escaped

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


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, with its time in Unix seconds; `partial` is None if every daemon answered."""

    as_of: float = msgspec.field(default_factory=time.time)
    partial: Partial | None = None


def encoded(answer: msgspec.Struct) -> bytes:
    """Return an answer as JSON.

    Every text shows the characters that are invisible or reorder a line as escapes, because the
    content of a bucket is not trusted.
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
