"""Whether an external resource was created, as the annotations of its object tell.

A creation is an intent, stored before it, and a result, stored after it. A result names the
revision upon which its intent was written, so that which result answers which intent is no
question of clocks. An intent without its result: nobody knows whether the resource exists.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from natsctl.errors import ConflictError
from natsctl.managed.names import AnnotationNames

_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


class OtherCreationError(ConflictError):
    """Another object has the key now, or another creation was begun for the object."""


class Mark(msgspec.Struct, frozen=True):
    """An intent or a result: when, and upon which revision the intent was written.

    Objects of the seed have times only, then `intent` is None.
    """

    at: datetime
    intent: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Mark":
        """Return what an annotation says; what nobody can read was before everything."""
        time, _, revision = text.partition(" revision ")
        return cls(timestamp(time) or _BEFORE_ALL, int(revision) if revision.isdecimal() else None)

    def __str__(self) -> str:
        time = self.at.isoformat(timespec="seconds").replace("+00:00", "Z")
        return time if self.intent is None else f"{time} revision {self.intent}"


class Creation(msgspec.Struct, frozen=True):
    """What is known of an object's last creation."""

    pending: Mark | None = None
    succeeded: Mark | None = None
    failed: Mark | None = None

    @classmethod
    def of(cls, annotations: Mapping[str, str], names: AnnotationNames) -> "Creation":
        """Return what the annotations hold, under these names or the older ones."""
        found = names.link(annotations)
        keys = (names.create_pending, names.create_succeeded, names.create_failed)
        texts = (found.get(key) for key in keys)
        return cls(*(None if text is None else Mark.parse(text) for text in texts))

    @property
    def unknown(self) -> bool:
        """Whether a creation was begun and nobody knows what came of it."""
        if self.pending is None:
            return False
        return not any(_answers(self.pending, mark) for mark in (self.succeeded, self.failed))

    def age_s(self, now: datetime) -> float | None:
        """Return the seconds since a creation succeeded, or may have; None where none did."""
        mark = self.pending if self.unknown else self.succeeded
        return None if mark is None else abs((now - mark.at).total_seconds())


def begun(
    annotations: Mapping[str, str], names: AnnotationNames, *, now: datetime, revision: int
) -> dict[str, str]:
    """Return the annotations with an intent, to be written upon *revision*; results go."""
    results = {names.create_succeeded, names.create_failed}
    kept = {key: value for key, value in annotations.items() if key not in results}
    return {**kept, names.create_pending: str(Mark(now, revision))}


def ended(
    annotations: Mapping[str, str], names: AnnotationNames, *, now: datetime, created: bool
) -> dict[str, str]:
    """Return the annotations with the result of the intent that they tell."""
    pending = Creation.of(annotations, names).pending
    result = Mark(now, None if pending is None else pending.intent)
    key = names.create_succeeded if created else names.create_failed
    return {**annotations, key: str(result)}


def timestamp(text: str) -> datetime | None:
    """Return the time that an RFC 3339 text means, None where it means none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _answers(intent: Mark, result: Mark | None) -> bool:
    if result is None:
        return False
    return result.at >= intent.at if intent.intent is None else result.intent == intent.intent
