"""The result of a replay, and its comparison with the recorded sync."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from types import TracebackType
from typing import Any

import msgspec

from natsctl.core.record.document import RecordedOutcome, Recording
from natsctl.core.tape import EXTERNAL, OutsideStep, StoreStep
from natsctl.errors import DECODE_ERRORS
from natsctl.model import exact_json


class Verdict(Enum):
    """The end of a replay."""

    SUCCEEDED = "the sync succeeds"
    AS_RECORDED = "the sync fails as recorded"
    OTHERWISE = "the sync fails in another way"
    NOT_RECORDED = "the sync makes a read that was not recorded"


class ReplayedSync(msgspec.Struct, frozen=True, kw_only=True):
    """The replay of a recorded sync.

    Attributes:
        verdict: how the replay ended.
        missing: what the handler read that wasn't recorded.
        variables: the environment variables that it read; their values are those of this process.
        assumed: objects that were written, and aren't in the recording; they counted as missing.
        writes: the writes of the replay, such as `create kv/routes shop`.
        other_writes: the differences between its writes and the recorded ones.
        error: the exception that the handler raised in the replay.
    """

    controller: str
    key: str
    verdict: Verdict
    recorded: RecordedOutcome
    replayed: RecordedOutcome
    missing: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    other_writes: tuple[str, ...] = ()
    error: BaseException | None = None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    @property
    def traceback(self) -> TracebackType | None:
        """The traceback of the exception in the replay."""
        return None if self.error is None else self.error.__traceback__

    def _lines(self) -> Iterable[str]:
        yield f"{self.key} of {self.controller}: {self.verdict.value}"
        yield f"  recorded  {self.recorded}"
        yield f"  replayed  {self.replayed}"
        yield from _field("missing", self.missing)
        yield from _field("variables", self.variables)
        yield from _field("assumed", [f"{name} does not exist" for name in self.assumed])
        yield from _field("writes", self.writes)
        yield from _field("differs", self.other_writes)


def verdict_of(
    recorded: RecordedOutcome, replayed: RecordedOutcome, *, missing: Sequence[str]
) -> Verdict:
    """Return how a replay ended."""
    if missing:
        return Verdict.NOT_RECORDED
    if replayed.error is None:
        return Verdict.SUCCEEDED
    same_error = recorded.error is not None and (
        (recorded.error.type, recorded.error.message)
        == (replayed.error.type, replayed.error.message)
    )
    return Verdict.AS_RECORDED if same_error else Verdict.OTHERWISE


def writes_of(calls: Iterable[StoreStep]) -> tuple[str, ...]:
    """Return the writes among the calls of a replay, as text."""
    return tuple(f"{call.verb} {call.place} {call.key}" for call in calls if call.writes)


def other_writes(recording: Recording, calls: Iterable[StoreStep]) -> tuple[str, ...]:
    """Return the differences between the writes of a replay and those of the recording."""
    recorded = Counter(_recorded_writes(recording))
    replayed = Counter(
        (call.verb, call.place, call.key, _text(call.value)) for call in calls if call.writes
    )
    lost = [f"only recorded: {' '.join(write[:3])}" for write in recorded - replayed]
    new = [f"only replayed: {' '.join(write[:3])}" for write in replayed - recorded]
    return (*lost, *new)


def _recorded_writes(recording: Recording) -> Iterable[tuple[str, str, str, bytes]]:
    """Yield the writes of stores and of external systems."""
    for step in recording.steps:
        match step:
            case StoreStep(writes=True):
                yield step.verb, step.place, step.key, _text(step.value)
            case OutsideStep(name=name) if name.startswith(f"{EXTERNAL} "):
                verb = name.removeprefix(f"{EXTERNAL} ")
                if verb in _EXTERNAL_WRITES:
                    yield verb, EXTERNAL, recording.key, b""


_EXTERNAL_WRITES = {"create", "update", "delete"}
_TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")  # RFC 3339


def _text(value: msgspec.Raw) -> bytes:
    """Return a value so that equal JSON values are equal texts, but for times and its uid."""
    if not bytes(value):
        return b""
    try:
        document = _without_uid(exact_json.decode(value))
        return _TIME.sub(b"", exact_json.encode_sorted(document))
    except DECODE_ERRORS:
        return b""  # a recording has no other values


def _without_uid(document: Any) -> Any:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return {**document, "metadata": {**metadata, "uid": ""}} if metadata else document


def _field(name: str, texts: Sequence[str]) -> Iterable[str]:
    for number, text in enumerate(texts):
        yield f"  {'' if number else name:<10}{text}"
