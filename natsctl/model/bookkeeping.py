"""The records of controllers in the bucket `natsctl`: their names and forms."""

from typing import Annotated

import msgspec

from natsctl.errors import DECODE_ERRORS
from natsctl.model.kinds import KvKind, kv

DEATHS_MAX = 3  # in a row, after which a key is quarantined

PAUSES: KvKind[bytes] = kv(bytes, bucket="natsctl", history=1, replicas=None)
"""The records of controllers."""


def controller_record(controller: str) -> str:
    """Return the key of the record that pauses a whole controller."""
    return f"controllers.{controller}.paused"


def deaths_record(controller: str, place: str, key: str) -> str:
    """Return the key of the record of the processes that died while they synced a key."""
    return f"controllers.{controller}.deaths.{place}.{key}"


def claim_record(controller: str, loop: int, process: str) -> str:
    """Return the key of the record of a sync loop of a process without a disk."""
    return f"controllers.{controller}.held.{loop}.{process}"


class Deaths(msgspec.Struct, frozen=True, kw_only=True):
    """The deaths of processes that held a key, since a sync of the key last ended."""

    count: int
    last: str  # the time at which the last one was found (RFC 3339)
    state: str  # a digest of the desired state of the object
    processes: tuple[str, ...] = ()  # the last processes that died, so that no death counts twice

    def __str__(self) -> str:
        processes = "1 process" if self.count == 1 else f"{self.count} processes"
        return f"{processes} died during its sync, the last before {self.last}"


def deaths_in(value: bytes) -> Deaths | None:
    """Return the deaths in a record, None if the record does not decode."""
    try:
        return msgspec.json.decode(value, type=Deaths)
    except DECODE_ERRORS:
        return None


class LastingFailure(msgspec.Struct, frozen=True, gc=False):
    """A key that fails: since when, in seconds since 1970, and the last error."""

    since_s: Annotated[float, msgspec.Meta(ge=0.0, lt=253_402_300_800.0)]  # to the year 9999
    error: str


def failing_prefix(controller: str) -> str:
    """Return what the keys of the records of a controller begin with."""
    return f"controllers.{controller}.failing."


def failure_in(value: bytes) -> LastingFailure | None:
    """Return the failure in a record, None if the record does not decode."""
    try:
        return msgspec.json.decode(value, type=LastingFailure)
    except DECODE_ERRORS:
        return None
