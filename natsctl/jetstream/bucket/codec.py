"""How keys, delivery positions and delete markers are written in NATS subjects and headers."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec

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
    """What became of a key."""

    DELETED = "deleted"
    PURGED = "purged"


class Position(msgspec.Struct, frozen=True, gc=False):
    """Where a delivered message stands, as its reply subject says."""

    stream: int
    consumer: int
    pending: int


def stream_of(bucket: str) -> str:
    """Return the name of the bucket's stream; raises `UsageError` for an illegal bucket name."""
    if not _BUCKET.match(bucket):
        raise UsageError(
            f"bucket {bucket!r}: a bucket's name has letters, digits, '_' and '-' only"
        )
    return f"KV_{bucket}"


def prefix_of(bucket: str) -> str:
    """Return what stands before the key in the bucket's subjects."""
    return f"$KV.{bucket}."


def position(reply: bytes) -> Position:
    """Return what *reply* says of the delivery: 9 tokens, or 11 and 12 with a domain.

    Source: the JetStream acknowledgement subject, ADR-15 of nats-architecture-and-design.
    """
    tokens = reply.split(b".")
    at = 5 if len(tokens) == _TOKENS_PLAIN else 7
    return Position(int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 3]))


def written_ns(reply: bytes) -> int:
    """Return when the delivered message was stored, in nanoseconds since the epoch; see above."""
    tokens = reply.split(b".")
    return int(tokens[7 if len(tokens) == _TOKENS_PLAIN else 9])


def marker(headers: Mapping[str, str] | None) -> Marker | None:
    """Return what a message with these headers marks, None where it is a value.

    A client wrote `KV-Operation: DEL` or `PURGE`, or the server put a marker where a limit, or
    somebody's purge, took the last value away.
    """
    if not headers:
        return None
    if headers.get(OPERATION) == "PURGE" or headers.get(MARKER_REASON) == "Purge":
        return Marker.PURGED
    deleted = headers.get(OPERATION) == "DEL" or MARKER_REASON in headers
    return Marker.DELETED if deleted else None


def header_size(headers: Mapping[str, str]) -> int:
    """Return how many bytes these headers take in a message; a server's limits count them too."""
    lines = (f"{name}: {value}\r\n" for name, value in headers.items())
    return len("NATS/1.0\r\n") + sum(map(len, lines)) + len("\r\n")
