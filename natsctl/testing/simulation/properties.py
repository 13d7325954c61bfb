"""The properties that a run can violate, and the comparison of what two runs have made."""

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.telemetry.hiding import abbreviated
from natsctl.testing.simulation.external import ExternalState

Result: TypeAlias = Mapping[str, object]
"""The objects that a controller made, by bucket and key, without fields of servers."""

SHOWN_MAX = 60  # characters of a value in a difference
_OWN_DOMAIN = "natsctl.io/"
_UNNAMED = "/unnamed "  # between an external system, and the fields of a resource without a name


class Property(Enum):
    """A promise that every controller should keep, and what a run that breaks it shows."""

    SETTLES = "settles"
    SAME_RESULT = "same result"
    QUIET = "quiet"
    CLEAN = "clean"
    EXCLUSIVE = "exclusive"
    ALWAYS = "always"
    FINALLY = "finally"


class StateDifference(Enum):
    """The difference between the state and the promise."""

    FAILS = "a key fails"
    ENDED = "the controller ended"
    NAMES = "other names"
    EXTRA = "too many objects"
    MISSING = "too few objects"
    FIELD = "another field"
    GROWS = "primaries make primaries"
    LATE = "only the first resync writes"


class Violation(msgspec.Struct, frozen=True):
    """A property that a run violates, with the observation."""

    property: Property
    detail: str
    difference: StateDifference | None = None


class ViolatedError(Exception):
    """Ends a run whose property is violated."""

    def __init__(
        self, property_: Property, detail: str, difference: StateDifference | None = None
    ) -> None:
        super().__init__(detail)
        self.violation = Violation(property_, detail, difference)


def resources_of(name: str, state: ExternalState) -> dict[str, object]:
    """Return the resources of an external system; those without a given name by their fields."""
    result: dict[str, object] = {}
    for resource, fields in sorted(state.resources.items()):
        key = f"{name}/{resource}"
        if resource in state.unnamed:
            shown = _text(fields)
            count = sum(line.startswith(f"{name}{_UNNAMED}{shown} ") for line in result)
            key = f"{name}{_UNNAMED}{shown} {count + 1}"
        result[key] = fields
    return result


def check_same(result: Result, expected: Result) -> None:
    """Raise `ViolatedError` unless the result is that of the run without faults."""
    missing = [name for name in expected if name not in result]
    extra = [name for name in result if name not in expected]
    differing = [name for name in expected if name in result and result[name] != expected[name]]
    if not (missing or extra or differing):
        return
    detail = "; ".join(
        [
            *(f"{name} is missing" for name in missing[:2]),
            *(f"{name} should not exist" for name in extra[:2]),
            *(f"{name}: {_difference(result[name], expected[name])}" for name in differing[:2]),
        ]
    )
    if len(extra) != len(missing):
        more = len(extra) > len(missing)
        difference = StateDifference.EXTRA if more else StateDifference.MISSING
    else:  # a resource without a given name is named by its fields
        fields = all(_UNNAMED in name for name in (*missing, *extra))
        difference = StateDifference.FIELD if fields else StateDifference.NAMES
    raise ViolatedError(Property.SAME_RESULT, detail, difference)


def _difference(actual: object, expected: object, path: str = "") -> str:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for name in sorted(actual.keys() | expected.keys()):
            if actual.get(name) != expected.get(name):
                below = f"{path}.{name}" if path else str(name)
                return _difference(actual.get(name), expected.get(name), below)
    return f"{path or 'the value'} is {_text(actual)}, without faults it is {_text(expected)}"


def _text(value: object) -> str:
    return abbreviated(documents.render(value).decode(), SHOWN_MAX)


def comparable(kind: Kind[Any], value: bytes) -> object:
    """Return what may not differ between runs: no status, nor what servers and natsctl write."""
    if kind.plain:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return repr(value)
    document = documents.parse(value)
    shown = documents.without(document, "metadata", "status")
    for name in ("labels", "annotations"):
        texts = documents.metadata_of(document).get(name)
        pairs = texts.items() if isinstance(texts, dict) else ()
        if kept := {key: text for key, text in pairs if not key.startswith(_OWN_DOMAIN)}:
            shown[name] = kept
    return shown
