"""Parses and formats keys, delivery positions and delete markers of NATS messages."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from natsctl.errors import UsageError

OPERATION: Final = "KV-Operation"
MARKER_REASON: Final = "Nats-Marker-Reason"
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"
LAST_CONSUMER: Final = "Nats-Last-Consumer"
STALLED: Final = "Nats-Consumer-Stalled"

_BUCKET = re.compile(r"[a-zA-Z0-9_-]+\Z")
_TOKENS_PLAIN = 9


class Marker(Enum):
    """The kind of a delete marker."""

    DELETED = "deleted"
    PURGED = "purged"


def stream_of(bucket: str) -> str:
    """Return the name of the bucket's stream; raises `UsageError` for an illegal bucket name."""
    if not _BUCKET.match(bucket):
        raise UsageError(
            f"bucket {bucket!r}: a bucket's name has only letters, digits, '_' and '-'"
        )
    return f"KV_{bucket}"


def prefix_of(bucket: str) -> str:
    """Return the part of the bucket's subjects that precedes the key."""
    return f"$KV.{bucket}."


def position(reply: bytes) -> tuple[int, int, int]:
    """Return a message's sequences in the stream and for the consumer, and when it was stored.

    That is nanoseconds since 1970. All are in the reply subject, which has 9 tokens, or 11 or 12
    with a domain.

    Source: the JetStream acknowledgement subject, ADR-15 of nats-architecture-and-design.
    """
    tokens = reply.split(b".")
    first = 5 if len(tokens) == _TOKENS_PLAIN else 7
    return int(tokens[first]), int(tokens[first + 1]), int(tokens[first + 2])


def marker(headers: Mapping[str, str] | None) -> Marker | None:
    """Return the kind of delete marker that has these headers, or None for a value.

    A client writes `KV-Operation: DEL` or `PURGE`. The server writes a marker if a limit or a purge
    removes the last value of a key.
    """
    if not headers:
        return None
    if headers.get(OPERATION) == "PURGE" or headers.get(MARKER_REASON) == "Purge":
        return Marker.PURGED
    deleted = headers.get(OPERATION) == "DEL" or MARKER_REASON in headers
    return Marker.DELETED if deleted else None


def header_size(headers: Mapping[str, str]) -> int:
    """Return the size of these headers in a message in bytes; server limits include it."""
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    return len("NATS/1.0\r\n") + sum(map(len, lines)) + len("\r\n")
