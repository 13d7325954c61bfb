"""Says what a schema that daemons publish has against an object: one answer for all surfaces."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from natsctl.model import exact_json
from natsctl.model.schemas.kind_schema import KindSchema
from natsctl.operate.objects import preview
from natsctl.telemetry.hiding import abbreviated

FORMATS: Final[dict[str, type]] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
}

REASON_MAX = 200  # characters: the library quotes the value

_NAMES: Final = {"object": "a mapping", "array": "a list", "integer": "an integer", "null": "null"}
_COMBINED = {"allOf", "oneOf", "patternProperties", "additionalProperties"}


class InvalidField(msgspec.Struct, frozen=True):
    """A field with an invalid value; `path` is empty for the whole document.

    If the field is unknown, `instead` has the names that are known in its place.
    """

    path: str
    reason: str
    instead: tuple[str, ...] | None = None

    @property
    def first(self) -> str:
        return self.path.partition(".")[0].partition("[")[0]

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


def faults(schema: Mapping[str, Any], document: object) -> list[InvalidField]:
    """Return the faults of a document, in the order of its fields."""
    import jsonschema  # noqa: PLC0415 - takes 0.06 s
    from jsonschema.validators import extend  # noqa: PLC0415 - likewise

    def check_encoding(_validator: object, encoding: str, value: object, _schema: object) -> Any:
        try:
            if isinstance(value, str) and encoding == "base64":
                base64.b64decode(value, validate=True)
        except ValueError:
            yield jsonschema.ValidationError("is not valid base64")

    def check(value: object, form: type) -> bool:
        return not isinstance(value, str) or msgspec.convert(value, form) is not None

    formats = jsonschema.FormatChecker(formats=())
    for name, form in FORMATS.items():
        checked = formats.checks(name, raises=msgspec.ValidationError)
        checked(lambda value, form=form: check(value, form))
    encoding = {"contentEncoding": check_encoding}
    validator: Any = extend(jsonschema.Draft202012Validator, encoding)  # type: ignore[no-untyped-call]
    errors = validator(schema, format_checker=formats).iter_errors(document)
    return list(dict.fromkeys(fault for error in errors for fault in _faults(error)))


def unknown_fields(schema: Mapping[str, Any], document: object) -> list[InvalidField]:
    """Return the fields that a schema permits, as it permits any, but doesn't know."""
    return [fault for fault in faults(_closed(schema), document) if fault.instead is not None]


def _closed(schema: Any) -> Any:
    """Return the schema with no other fields than its properties, unless it says which."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in ("properties", "$defs"):
        if name in schema:
            closed[name] = {key: _closed(inner) for key, inner in schema[name].items()}
    for name in ("anyOf", "prefixItems"):
        if name in schema:
            closed[name] = [_closed(inner) for inner in schema[name]]
    for name in ("items", "additionalProperties"):
        if name in schema:
            closed[name] = _closed(schema[name])
    if "properties" in schema and _COMBINED.isdisjoint(schema):
        closed["additionalProperties"] = False
    return closed


def _faults(error: Any) -> Iterator[InvalidField]:
    value, path = error.instance, ""
    for part in error.absolute_path:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    path = path.removeprefix(".")
    within = f"{path}." if path else ""
    match error.validator:
        case "anyOf":
            yield from _of_union(error, path, within)
        case "required":
            missing = (name for name in error.validator_value if name not in value)
            yield from (InvalidField(f"{within}{name}", "is required") for name in missing)
        case "additionalProperties" if error.validator_value is False:
            known = tuple(error.schema.get("properties", ()))
            for name in value:
                if name not in known:
                    reason = "is unknown, and not permitted"
                    yield InvalidField(f"{within}{name}", reason, known)
        case _:
            yield InvalidField(path, abbreviated(error.message, REASON_MAX))


def _of_union(error: Any, path: str, within: str) -> Iterator[InvalidField]:
    """Yield the faults of the alternative that a tag names, or whose type fits."""
    branches: dict[int, list[Any]] = {}
    for inner in error.context:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    tags, expected = error.schema.get("discriminator"), dict[str, None]()
    if tags is not None and isinstance(error.instance, dict):
        name, mapping = tags["propertyName"], tags["mapping"]
        reference = next((mapping[tag] for tag in mapping if tag == error.instance.get(name)), None)
        if reference is None:
            known = ", ".join(preview(exact_json.encode(tag)) for tag in mapping)
            yield InvalidField(f"{within}{name}", f"must be one of {known}")
            return
        fitting = [branches[error.validator_value.index({"$ref": reference})]]
    else:
        fitting = []
        for inner in branches.values():
            types = [
                one.validator_value
                for one in inner
                if one.validator == "type" and len(one.absolute_path) == len(error.absolute_path)
            ]
            for wanted in types:
                every = wanted if isinstance(wanted, list) else [wanted]
                expected[" or ".join(_NAMES.get(one, f"a {one}") for one in every)] = None
            fitting += [] if types else [inner]
    if fitting:
        for inner in min(fitting, key=len):
            yield from _faults(inner)
    else:
        shown = preview(exact_json.encode(error.instance))
        yield InvalidField(
            path, f"expected {' or '.join(expected) or 'another value'}, not {shown}"
        )


def schema_for(schemas: Iterable[KindSchema], key: str) -> KindSchema | None:
    """Return the schema of the object *key*; if several match, the one that outranks the others."""
    described = (schema for schema in schemas if schema.describes(key))
    return max(described, key=lambda schema: schema.rank, default=None)
