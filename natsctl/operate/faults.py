"""Says what a schema that daemons publish has against an object: one answer for all surfaces."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from natsctl.model import exact_json
from natsctl.model.schemas.kind_schema import KindSchema
from natsctl.operate.entries import preview
from natsctl.telemetry.hiding import abbreviated

FORMATS: Final[dict[str, type]] = {
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "uuid": UUID,
}

REASON_MAX = 200  # characters: the library quotes the value

_NAMES: Final = {"object": "a mapping", "array": "a list", "integer": "an integer"}


class InvalidField(msgspec.Struct, frozen=True):
    """A field with an invalid value; `path` is empty for the whole document."""

    path: str
    reason: str

    @property
    def first(self) -> str:
        """The first field of the path."""
        return first_field(self.path)

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


def faults(schema: Mapping[str, Any], document: object) -> list[InvalidField]:
    """Return the faults of a document, in the order of its fields."""
    import jsonschema  # noqa: PLC0415 - takes 0.06 s
    from jsonschema.validators import extend  # noqa: PLC0415 - likewise

    formats = jsonschema.FormatChecker(formats=())
    for name, format_type in FORMATS.items():
        formats.checks(name, raises=msgspec.ValidationError)(_checker(format_type))
    encoding = {"contentEncoding": _check_encoding}
    validator: Any = extend(jsonschema.Draft202012Validator, encoding)  # type: ignore[no-untyped-call]
    errors = validator(schema, format_checker=formats).iter_errors(document)
    return list(dict.fromkeys(fault for error in errors for fault in _faults(error)))


def _checker(format_type: type) -> Any:
    def check(value: object) -> bool:
        if isinstance(value, str):
            msgspec.convert(value, format_type)
        return True

    return check


def _check_encoding(
    _validator: object, encoding: str, value: object, _schema: object
) -> Iterator[Exception]:
    from jsonschema import ValidationError  # noqa: PLC0415 - takes 0.06 s

    try:
        if isinstance(value, str) and encoding == "base64":
            base64.b64decode(value, validate=True)
    except ValueError:
        yield ValidationError("is not valid base64")


def _faults(error: Any) -> Iterator[InvalidField]:
    value, path = error.instance, _path(error.absolute_path)
    match error.validator:
        case "anyOf":
            yield from _of_union(error, path)
        case "required":
            yield from (
                InvalidField(_inner_path(path, name), "is required")
                for name in set(error.validator_value) - set(value)
            )
        case "additionalProperties":
            for name in value.keys() - error.schema.get("properties", {}).keys():
                yield InvalidField(_inner_path(path, name), "is unknown, and not permitted")
        case _:
            yield InvalidField(path, abbreviated(error.message, REASON_MAX))


def _of_union(error: Any, path: str) -> Iterator[InvalidField]:
    """Yield the faults of the alternative that a tag names, or whose type fits."""
    branches: dict[int, list[Any]] = {}
    for inner in error.context:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    tags = error.schema.get("discriminator")
    if tags is not None and isinstance(error.instance, dict):
        name, mapping = tags["propertyName"], tags["mapping"]
        tag = error.instance.get(name)
        references = [reference for one, reference in mapping.items() if one == tag]
        if not references:
            known = ", ".join(map(_shown, mapping))
            yield InvalidField(_inner_path(path, name), f"must be one of {known}")
            return
        chosen = error.validator_value.index({"$ref": references[0]})
        fitting = [branches[chosen]]
        expected = ""
    else:
        depth = len(error.absolute_path)
        wrong = {
            number: [
                _name(one.validator_value)
                for one in inner
                if one.validator == "type" and len(one.absolute_path) == depth
            ]
            for number, inner in branches.items()
        }
        fitting = [branches[number] for number, types in wrong.items() if not types]
        expected = " or ".join(dict.fromkeys(name for types in wrong.values() for name in types))
    if fitting:
        for inner in min(fitting, key=len):
            yield from _faults(inner)
    else:
        shown = _shown(error.instance)
        yield InvalidField(path, f"expected {expected or 'another value'}, not {shown}")


def _path(parts: Any) -> str:
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def _inner_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _name(types: object) -> str:
    if isinstance(types, list):
        return " or ".join(map(_name, types))
    return _NAMES.get(str(types), f"a {types}" if types != "null" else "null")


def first_field(path: str) -> str:
    """Return the first field of a path such as `spec.ports[0]`."""
    return path.partition(".")[0].partition("[")[0]


def schema_for(schemas: Iterable[KindSchema], key: str) -> KindSchema | None:
    """Return the schema of the object *key*; if several match, the one that outranks the others."""
    chosen: KindSchema | None = None
    for schema in schemas:
        if schema.describes(key) and (chosen is None or schema.outranks(chosen)):
            chosen = schema
    return chosen


def _shown(value: object) -> str:
    return preview(exact_json.encode(value))
