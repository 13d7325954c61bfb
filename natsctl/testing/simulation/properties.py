"""Finds the objects that a controller made, and decides which property a run violates."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import msgspec

from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.telemetry.hiding import abbreviated
from natsctl.testing.memory import MemoryStores
from natsctl.testing.simulation.objects import StoredObjects, store_of
from natsctl.testing.simulation.subject import Subject
from natsctl.testing.simulation.world.network import OWN_BUCKETS, ExternalState, Network
from natsctl.testing.simulation.world.stores import place_of

Result: TypeAlias = Mapping[str, object]
"""The objects that a controller made, by bucket and key, without fields of servers."""

SHOWN_MAX = 60  # characters of a value in a difference
_OWN_DOMAIN = "natsctl.io/"
_UNNAMED = "/unnamed "  # between an external system, and the fields of a resource without a name


class Property(Enum):
    """A promise that every controller should keep."""

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


def result_of(
    objects: StoredObjects, kinds: Sequence[Kind[Any]], ignored: Sequence[str]
) -> dict[str, object]:
    """Return the objects of these kinds, without the *ignored* fields such as `ports.spec.port`."""
    result: dict[str, object] = {}
    for kind in kinds:
        place = place_of(kind)
        for key, value in objects.values(kind).items():
            shown = _comparable(kind, value)
            for path in ignored:
                owner, _, field = path.partition(".")
                if owner == place and field:
                    shown = _without(shown, field.split("."))
            if place not in ignored:
                result[f"{place}/{key}"] = shown
    return result


def result_of_external(name: str, state: ExternalState) -> dict[str, object]:
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


def compare(result: Result, expected: Result) -> Violation | None:
    """Return a violation unless the result is that of the run without faults."""
    missing = [name for name in expected if name not in result]
    extra = [name for name in result if name not in expected]
    differing = [name for name in expected if name in result and result[name] != expected[name]]
    if not (missing or extra or differing):
        return None
    detail = "; ".join(
        [
            *(f"{name} is missing" for name in missing[:2]),
            *(f"{name} should not exist" for name in extra[:2]),
            *(f"{name}: {_difference(result[name], expected[name])}" for name in differing[:2]),
        ]
    )
    return Violation(Property.SAME_RESULT, detail, _kind_of_difference(missing, extra))


def _kind_of_difference(missing: Sequence[str], extra: Sequence[str]) -> StateDifference:
    if len(extra) > len(missing):
        return StateDifference.EXTRA
    if len(missing) > len(extra):
        return StateDifference.MISSING
    # a resource without a given name is named by its fields
    fields = all(_UNNAMED in name for name in (*missing, *extra))
    return StateDifference.FIELD if fields else StateDifference.NAMES


def _difference(actual: object, expected: object, path: str = "") -> str:
    if isinstance(actual, dict) and isinstance(expected, dict):
        for name in sorted(actual.keys() | expected.keys()):
            if actual.get(name) != expected.get(name):
                return _difference(
                    actual.get(name), expected.get(name), f"{path}.{name}" if path else str(name)
                )
    return f"{path or 'the value'} is {_text(actual)}, without faults it is {_text(expected)}"


def _text(value: object) -> str:
    return abbreviated(documents.render(value).decode(), SHOWN_MAX)


def _comparable(kind: Kind[Any], value: bytes) -> object:
    if kind.plain:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return repr(value)
    document = documents.parse(value)
    metadata = documents.metadata_of(document)
    shown = documents.without(document, "metadata", "status")
    for name in ("labels", "annotations"):
        texts = metadata.get(name)
        kept = {
            key: text
            for key, text in (texts.items() if isinstance(texts, dict) else ())
            if not key.startswith(_OWN_DOMAIN)
        }
        if kept:
            shown[name] = kept
    return shown


def _without(document: object, path: Sequence[str]) -> object:
    if not isinstance(document, dict):
        return document
    name, *inner_path = path
    if not inner_path:
        return documents.without(document, name)
    return (
        {**document, name: _without(document[name], inner_path)} if name in document else document
    )


JETSTREAM = "jetstream"  # the place of streams and consumers


@dataclass(frozen=True)
class Made:
    """The objects that the controller of a run made.

    `result` leaves out the *ignored* buckets and fields. `left` leaves out the *kept* buckets, and
    objects such as `trail/pier`.
    """

    subject: Subject
    network: Network
    stores: MemoryStores
    ignored: Sequence[str]
    kept: Collection[str]
    given: Collection[str] = ()  # the places of objects that users wrote

    def result(self) -> dict[str, object]:
        """Return the objects to compare with those of another run."""
        result = result_of(StoredObjects(self.stores), self._kinds, self.ignored)
        for name, state in self.network.externals.items():
            if name not in self.ignored:
                result |= result_of_external(name, state)
        if JETSTREAM not in self.ignored:
            assets = self.stores.jetstream.configurations()
            result |= {f"{JETSTREAM}/{name}": config for name, config in assets.items()}
        return result

    def left(self) -> list[str]:
        """Return the names of all primaries, and of the objects that go with them."""
        named = ((place, f"{place}/{name}") for place, name in self._names())
        return [name for place, name in named if place not in self.kept and name not in self.kept]

    def _names(self) -> Iterator[tuple[str, str]]:
        for kind in (*self.subject.primaries, *self._kinds):
            for key in store_of(self.stores, kind).keys():  # noqa: SIM118 - a store is no dict
                yield place_of(kind), key
        for name, state in self.network.externals.items():
            for resource in state.resources:
                yield name, resource
        for asset in self.stores.jetstream.configurations():
            yield JETSTREAM, asset

    @property
    def _kinds(self) -> list[Kind[Any]]:
        if self.subject.made is not None:
            return list(self.subject.made)
        places = {*map(place_of, self.subject.kinds), *OWN_BUCKETS, *self.given}
        return [kind for place, kind in sorted(self.network.opened.items()) if place not in places]
