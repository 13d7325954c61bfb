"""The format of a recording: documented JSON with a version."""

import zlib
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from natsctl.core.tape import NOTHING, ReadStep, RecordedError, Step
from natsctl.errors import DECODE_ERRORS, InvalidInputError

Surface: TypeAlias = Literal["controller", "managed", "watchers"]
"""The kind of a controller: a `Controller`, `ManagedController` or `InformerController`."""

FORMAT = "natsctl.io/recording"
VERSION = 3


class RecordedState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A state of an object; *base64* has a value that is no JSON."""

    place: str
    key: str
    revision: int
    value: Raw = NOTHING
    base64: str = ""


class RecordedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of the controller: its name, its place, and whether the kind existed."""

    kind: str
    place: str
    available: bool = True


class Delivery(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The change that a watcher got: states of the object, or their numbers in a recording.

    Both states are None for an object whose deletion happened before the start.
    """

    resource_kind: str
    watcher: str
    before: Any = None
    after: Any = None
    kind: Any = None  # of the object; None in a recording


class RecordedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a sync: an error with its traceback, or the requested delay."""

    error: RecordedError | None = None
    traceback: str = ""
    after_s: float | None = None

    def __str__(self) -> str:
        if self.error is None:
            return "succeeded" if self.after_s is None else f"succeeded, next in {self.after_s:g} s"
        name = self.error.type.rpartition(":")[2]
        return f"{name}: {self.error.message}" if self.error.message else name


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded sync of one key."""

    format: str = FORMAT
    version: int = VERSION  # of the format
    natsctl: str  # the version that made the recording
    surface: Surface = "controller"  # the kind of the controller
    controller: str
    controller_version: str = ""  # empty if the controller has none
    place: str  # of the controller's primaries
    key: str
    operation: str  # the reason for the sync
    started: datetime
    duration_s: float
    seed: int  # the seed of the randomness in a replay
    planning: bool = False  # whether the sync only planned
    masked: bool = True  # whether secrets are masked
    complete: bool = True  # false if the sync read too much, and the steps are missing
    settings: dict[str, Any] = {}  # those that a replay needs
    outcome: RecordedOutcome
    slots: dict[str, RecordedSlot]  # the kinds of the controller, by the names of their slots
    states: tuple[RecordedState, ...] = ()  # the states of objects; steps refer to them by number
    primary: int | None = None  # the state as the sync began; None if it did not exist
    last: int | None = None  # the last state of a deleted primary
    delivery: Delivery | None = None  # the change, if a watcher got one
    around: tuple[ReadStep, ...] = ()  # of objects near the key, not by the handler
    steps: tuple[Step, ...] = ()  # what the handler read, called and wrote, in order

    @property
    def part(self) -> str:
        """The watcher that got the change; empty for a sync."""
        change = self.delivery
        return "" if change is None else f"{change.watcher} of {change.resource_kind}"

    def to_json(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=_text_of)

    def encoded(self) -> bytes:
        """Return the recording as JSON, for a file."""
        return msgspec.json.format(self.to_json(), indent=1) + b"\n"


def _text_of(value: object) -> str:
    """Return a key of a type that is derived from `str`, such as the key of an event."""
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"{type(value).__qualname__} cannot be written as JSON")


class _Head(msgspec.Struct, frozen=True):
    format: str = ""
    version: int = 0


def decode_recording(data: bytes) -> Recording:
    """Return the recording in *data*; raises `InvalidInputError` if there is none.

    Recordings of earlier versions of the format are read as the present one.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.format != FORMAT:
            raise InvalidInputError(
                "this isn't a recording: natsctl replay BUCKET/KEY -o FILE writes one"
            )
        if head.version > VERSION:
            raise InvalidInputError(
                f"the recording has version {head.version} of the format, and this natsctl reads "
                f"versions up to {VERSION}: update natsctl"
            )
        return msgspec.json.decode(data, type=Recording)
    except DECODE_ERRORS as error:
        raise InvalidInputError(f"this isn't a recording: {error}") from error


def read_recording(path: Path) -> Recording:
    """Return the recording in a file; raises `InvalidInputError`, with the path, if it has none."""
    try:
        return decode_recording(path.read_bytes())
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from error.__cause__


def seed_of(key: str, started: datetime) -> int:
    """Return the seed of a recorded sync."""
    return zlib.crc32(f"{key} {started.isoformat()}".encode())
