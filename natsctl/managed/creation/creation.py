"""The state of a creation, in the annotations of its object.

The reconciler stores an intent before a creation and a result after it. A result names the revision
upon which its intent was written, so matching results with intents needs no clock. If an intent has
no result, the creation's outcome is unknown.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from natsctl.errors import ConflictError
from natsctl.managed.names import AnnotationNames
from natsctl.model.times import time_in, time_text

_BEFORE_ALL = datetime.min.replace(tzinfo=UTC)


class OtherCreationError(ConflictError):
    """Another object has the key now, or another creation has begun for the object."""


class Mark(msgspec.Struct, frozen=True):
    """An intent or a result: its time, and the revision upon which the intent was written.

    `intent` is None for annotations of krateo's provider-runtime, which have only times. A success
    and an adoption have the `name` of the resource. An intent and a failure have it only if the
    user didn't write it on the object.
    """

    time: datetime
    intent: int | None = None
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> "Mark":
        """Return the mark in an annotation; an unreadable time counts as the earliest time."""
        marked, _, name = text.partition(" name ")
        written, _, revision = marked.partition(" revision ")
        intent = int(revision) if revision.isdecimal() else None
        return cls(time_in(written) or _BEFORE_ALL, intent, name)

    def __str__(self) -> str:
        revision = "" if self.intent is None else f" revision {self.intent}"
        return f"{time_text(self.time)}{revision}{self.name and f' name {self.name}'}"


class Creation(msgspec.Struct, frozen=True):
    """The intent and the results of an object's last creation, or its adoption."""

    pending: Mark | None = None
    succeeded: Mark | None = None
    failed: Mark | None = None
    adopted: Mark | None = None

    @classmethod
    def of(cls, annotations: Mapping[str, str], names: AnnotationNames) -> "Creation":
        """Return the creation in the annotations, under these names or equivalent ones."""
        link = names.link(annotations)
        results = (names.create_succeeded, names.create_failed, names.adopted)
        keys = (names.create_pending, *results)
        texts = (link.get(key) for key in keys)
        return cls(*(None if text is None else Mark.parse(text) for text in texts))

    @property
    def unknown(self) -> bool:
        """True if a creation has begun and its result is not stored."""
        if self.pending is None:
            return False
        return not any(_answers(self.pending, mark) for mark in (self.succeeded, self.failed))

    def owns(self, name: str) -> bool:
        """Return whether natsctl created this resource, may have created it, or adopted it.

        A mark without a name holds for every name.
        """
        marks = (self.succeeded, self.adopted)
        return self.unknown or any(mark and mark.name in ("", name) for mark in marks)

    def gave(self, name: str) -> bool:
        """Return whether the name comes from natsctl or the client, and not from the user."""
        return any(mark and mark.name == name != "" for mark in (self.pending, self.failed))

    def age_s(self, now: datetime) -> float | None:
        """Return the seconds since a creation succeeded or may have succeeded, or None."""
        mark = self.pending if self.unknown else self.succeeded
        return None if mark is None else abs((now - mark.time).total_seconds())


def begun(
    annotations: Mapping[str, str],
    names: AnnotationNames,
    *,
    now: datetime,
    revision: int,
    given: str = "",
) -> dict[str, str]:
    """Return the annotations with an intent upon *revision*, without earlier results.

    *given* is the name of the resource unless the user wrote it.
    """
    results = {names.create_succeeded, names.create_failed, names.adopted}
    kept = {key: value for key, value in annotations.items() if key not in results}
    return {**kept, names.create_pending: str(Mark(now, revision, given))}


def ended(
    annotations: Mapping[str, str],
    names: AnnotationNames,
    *,
    now: datetime,
    created: bool,
    name: str = "",
) -> dict[str, str]:
    """Return the annotations with the result of their intent; for *name* see `Mark`."""
    pending = Creation.of(annotations, names).pending
    result = Mark(now, None if pending is None else pending.intent, name)
    key = names.create_succeeded if created else names.create_failed
    return {**annotations, key: str(result)}


def _answers(intent: Mark, result: Mark | None) -> bool:
    if result is None:
        return False
    return result.time >= intent.time if intent.intent is None else result.intent == intent.intent
