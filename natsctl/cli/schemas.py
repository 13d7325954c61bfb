"""Compares objects with the schemas that daemons publish or controllers declare."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final

import msgspec
import typer

from natsctl.cli.arguments import load_runnable_controller
from natsctl.cli.terminal import write_notice
from natsctl.cli.values import DesiredObject, NewValue, RawValue
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import DECODE_ERRORS, InvalidObjectError, NotFoundError, StoreError, UsageError
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.model import documents, exact_json
from natsctl.model.schemas.kind_schema import KindSchema
from natsctl.operate.buckets import published_schemas
from natsctl.operate.entries import preview
from natsctl.operate.faults import InvalidField, faults, first_field, schema_for

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""

_NOTES: Final = {
    "default": "default",
    "enum": "enum",
    "const": "constant",
    "minimum": "minimum",
    "maximum": "maximum",
    "exclusiveMinimum": "greater than",
    "exclusiveMaximum": "less than",
    "multipleOf": "multiple of",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "pattern": "pattern",
    "format": "format",
    "minItems": "minimum items",
    "maxItems": "maximum items",
    "examples": "examples",
}
"""The keywords of a schema that are notes, with their titles."""


class UnknownField(msgspec.Struct, frozen=True):
    """A field that the schema does not have.

    Attributes:
        path: the path of the field, such as `spec.txt`.
        name: the last part of the path.
        known: the fields that the schema has in its place.
    """

    path: str
    name: str
    known: tuple[str, ...]

    @property
    def first(self) -> str:
        """The first field of the path."""
        return first_field(self.path)


class Fields:
    """The fields that a JSON Schema describes."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def resolved(self, schema: Schema) -> Schema:
        """Return the schema with its reference followed; its own keywords have precedence."""
        reference = schema.get("$ref")
        if reference is None:
            return schema
        name = reference.rpartition("/")[2]
        definition = self._root.get("$defs", {}).get(name, {})
        return {**self.resolved(definition), **documents.without(schema, "$ref")}

    def variants(self, schema: Schema) -> list[Schema]:
        """Return the alternatives of a union, or the schema itself."""
        resolved = self.resolved(schema)
        if "anyOf" not in resolved:
            return [resolved]
        return [variant for part in resolved["anyOf"] for variant in self.variants(part)]

    def structs(self, schema: Schema) -> list[Schema]:
        """Return the alternatives with fields: of the schema, its items or its values."""
        structs: list[Schema] = []
        for variant in self.variants(schema):
            if "properties" in variant:
                structs.append(variant)
            for part in (*variant.get("prefixItems", ()), *_inner_schemas(variant)):
                structs += self.structs(part)
        return structs

    def of(self, schema: Schema) -> dict[str, Schema]:
        """Return the fields of the schema by name; a union has those of all its alternatives."""
        return {
            name: field
            for struct in self.structs(schema)
            for name, field in struct.get("properties", {}).items()
        }

    def free(self, schema: Schema) -> Schema | None:
        """Return the schema of the values of a mapping with any names; None for another type."""
        for variant in self.variants(schema):
            if variant.get("type") == "object" and "properties" not in variant:
                extra = variant.get("additionalProperties")
                return extra if isinstance(extra, dict) else {}
        return None

    def type_of(self, schema: Schema) -> str:
        """Return the name of the type, as `kubectl explain` prints it."""
        return " | ".join(dict.fromkeys(map(self._type_name, self.variants(schema))))

    def notes(self, schema: Schema) -> list[str]:
        """Return the default and the limits of a value."""
        notes = []
        for variant in [self.resolved(schema), *self.variants(schema)]:
            notes += [
                f"{title}: {', '.join(map(_json, value if keyword == 'enum' else [value]))}"
                for keyword, title in _NOTES.items()
                for value in [variant.get(keyword, msgspec.UNSET)]
                if value is not msgspec.UNSET
            ]
        return list(dict.fromkeys(notes))

    def description(self, schema: Schema) -> str:
        """Return the meaning of a value: of the field, or else of its type."""
        resolved = self.resolved(schema)
        texts = [resolved.get("description", "")]
        if not texts[0]:
            texts = [variant.get("description", "") for variant in self.variants(schema)]
        return "\n\n".join(filter(None, dict.fromkeys(texts)))

    def _type_name(self, schema: Schema) -> str:
        kind = schema.get("type")
        if kind == "array":
            parts = [*schema.get("prefixItems", ()), *_inner_schemas(schema)]
            inner = ", ".join(map(self.type_of, parts)) or "any"
            return f"[]({inner})" if len(parts) > 1 or " | " in inner else f"[]{inner}"
        if kind == "object" and "properties" not in schema:
            values = _inner_schemas(schema)
            return f"map[string]{self.type_of(values[0]) if values else 'any'}"
        if kind == "object":
            return str(schema.get("title", "object"))
        if kind is None and "enum" in schema:
            return (
                "string" if all(isinstance(value, str) for value in schema["enum"]) else "integer"
            )
        return str(kind or "any")

    def unknown(self, document: object) -> Iterator[UnknownField]:
        """Yield the unknown fields of a document."""
        yield from self._unknown(self._root, document, "")

    def _unknown(self, schema: Schema, value: object, path: str) -> Iterator[UnknownField]:
        variants = self._matching(schema, value)
        if isinstance(value, list):
            for number, item in enumerate(value):
                for variant in variants:
                    part = _item(variant, number)
                    yield from self._unknown(part, item, f"{path}[{number}]")
        elif isinstance(value, dict):
            yield from self._unknown_names(variants, value, path)

    def _unknown_names(
        self, variants: list[Schema], value: dict[str, object], path: str
    ) -> Iterator[UnknownField]:
        known: dict[str, Schema] = {}
        free: Schema | None = None
        for variant in variants:
            known.update(variant.get("properties", {}))
            if "properties" not in variant:
                extra = variant.get("additionalProperties", {})
                free = extra if isinstance(extra, dict) else {}
        for name, item in value.items():
            inner = f"{path}.{name}" if path else name
            if name in known:
                yield from self._unknown(known[name], item, inner)
            elif free is not None:
                yield from self._unknown(free, item, inner)
            elif variants:
                yield UnknownField(inner, name, tuple(known))

    def _matching(self, schema: Schema, value: object) -> list[Schema]:
        """Return the alternatives for a list or a mapping; a tag selects one of them."""
        wanted = "array" if isinstance(value, list) else "object"
        tags = self.resolved(schema).get("discriminator")
        if tags is not None and isinstance(value, dict):
            reference = tags["mapping"].get(value.get(tags["propertyName"]))
            return [] if reference is None else [self.resolved({"$ref": reference})]
        return [part for part in self.variants(schema) if part.get("type", wanted) == wanted]


def _item(schema: Schema, number: int) -> Schema:
    """Return the schema of an item of a list."""
    first = schema.get("prefixItems", ())
    if number < len(first):
        item: Schema = first[number]
        return item
    item_schema = schema.get("items", {})
    return item_schema if isinstance(item_schema, dict) else {}


def _inner_schemas(schema: Schema) -> list[Schema]:
    """Return the schema of the items of a list, or of the values of a mapping."""
    parts = (schema.get("items"), schema.get("additionalProperties"))
    return [part for part in parts if isinstance(part, dict)]


def _json(value: object) -> str:
    return preview(exact_json.encode(value))


KINDS_MAX = 10
"""Kinds that an error lists."""


async def known_schemas(options: NatsOptions, controllers: Sequence[str]) -> list[KindSchema]:
    """Return the schemas that the controllers at these paths declare; without any, the published.

    Raises as `load_runnable_controller` and `published_schemas` do.
    """
    if controllers:
        from natsctl.daemon.schemas import schemas_of  # noqa: PLC0415 - half a second

        return schemas_of([load_runnable_controller(path) for path in controllers])
    async with connect(options) as connection:
        return await published_schemas(connection)


def split_path(schemas: Sequence[KindSchema], path: str) -> tuple[KindSchema, list[str]]:
    """Return the schema that *path* begins with, and the names of the fields that follow.

    A path such as `Shop.spec.text` begins with the name of a kind, of its type or of its bucket.
    Raises `NotFoundError` if there is no such kind, and `UsageError` if several match.
    """
    matching: dict[str, list[KindSchema]] = {}
    for schema in schemas:
        for name in dict.fromkeys((schema.kind, schema.kind.partition(".")[0], schema.bucket)):
            if f"{path}.".startswith(f"{name}."):
                matching.setdefault(name, []).append(schema)
    if not matching:
        raise NotFoundError(_unknown(schemas, path))
    name = max(matching, key=len)
    chosen, *other_schemas = matching[name]
    if other_schemas:
        kinds = ", ".join(schema.kind for schema in matching[name])
        raise UsageError(f"{name} names several kinds: {kinds}; write the whole name of one")
    return chosen, [field for field in path[len(name) :].split(".") if field]


def _unknown(schemas: Sequence[KindSchema], path: str) -> str:
    names = [name for schema in schemas for name in (schema.kind.partition(".")[0], schema.bucket)]
    if not names:
        return (
            f"there is no schema of {path}: no daemon has published one; run a daemon, or name "
            "the controller with --controller"
        )
    hint = did_you_mean(path.partition(".")[0], names)
    kinds = ", ".join(schema.kind for schema in schemas[:KINDS_MAX])
    return f"there is no schema of {path}{hint or f': there are {kinds}'}"


SPEC, STATUS = "spec", "status"


class Validate(Enum):
    """The treatment of an object that does not match its schema."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"


ValidateOption = Annotated[
    Validate,
    typer.Option(
        "--validate",
        help="An object that doesn't match its schema",
    ),
]


class Validator:
    """Checks the objects of one bucket.

    Args:
        schemas: the published schemas of the bucket; without any, every object is accepted.
        validate: whether an invalid object is refused.
    """

    def __init__(self, bucket: str, schemas: Sequence[KindSchema], validate: Validate) -> None:
        self._bucket = bucket
        self._schemas = schemas
        self._validate = validate

    @classmethod
    async def of(cls, connection: Connection, bucket: str, validate: Validate) -> "Validator":
        """Return the validator of a bucket.

        A notice names the reason if the schemas cannot be read; nothing is checked then.
        """
        schemas: list[KindSchema] = []
        if validate is not Validate.IGNORE:
            try:
                schemas = await published_schemas(connection, bucket)
            except StoreError as error:
                write_notice(f"warning: {bucket} is not validated: {error}")
        return cls(bucket, schemas, validate)

    def check(self, key: str, new: NewValue) -> int | None:
        """Check the fields that a user gives, and warn of unknown ones.

        Returns the number of the version of the type that the fields match; None if it is unknown.
        Raises `InvalidObjectError` that names the faults, if an invalid object is refused.
        """
        schema, document = schema_for(self._schemas, key), _document_of(new)
        if schema is None:
            return None
        invalid = [fault for fault in faults(schema.schema, document) if _is_given(fault, document)]
        refused = {fault.path for fault in invalid}
        for unknown in Fields(schema.schema).unknown(document):
            if unknown.path not in refused and _is_own(unknown):
                hint = did_you_mean(unknown.name, unknown.known)
                self._warn(key, f"{unknown.path} is unknown{hint} (schema of {schema.source})")
        self._reject(key, schema, invalid)
        return None if invalid else schema.version

    def check_new(self, key: str, new: NewValue) -> None:
        """Check that a new object has every required field; raises as `check` does."""
        schema, document = schema_for(self._schemas, key), _document_of(new)
        if schema is not None:
            missing = faults(schema.schema, document)
            self._reject(key, schema, [fault for fault in missing if _is_missing(fault, document)])

    def _reject(self, key: str, schema: KindSchema, invalid: Sequence[InvalidField]) -> None:
        """Raise `InvalidObjectError` that names the faults, or warn of each."""
        message = f"not a valid {schema.kind} of {schema.source}"
        if invalid and self._validate is Validate.STRICT:
            first_fault, *later_faults = map(str, invalid)
            lines = (
                "\n".join((f"{message}:", first_fault, *later_faults))
                if later_faults
                else f"{message}: {first_fault}"
            )
            raise InvalidObjectError(lines)
        for fault in invalid:
            self._warn(key, f"{message}: {fault}")

    def _warn(self, key: str, text: str) -> None:
        write_notice(f"warning: {self._bucket}/{key}: {text}")


def _document_of(new: NewValue) -> object:
    """Return the JSON that *new* stores; bytes that are no JSON are a text."""
    match new:
        case DesiredObject(document):
            return document
        case RawValue(value):
            try:
                return exact_json.decode(value)
            except DECODE_ERRORS:
                return value.decode(errors="backslashreplace")


def _is_own(unknown: UnknownField) -> bool:
    """Return whether the user may have misspelt the field.

    A type without a field `spec` permits any spec, and natsctl does not store the status.
    """
    return unknown.first != STATUS and unknown.path != SPEC


def _is_given(fault: InvalidField, document: object) -> bool:
    """Return whether the fault is in a field of the document, apart from the status."""
    if not isinstance(document, dict) or not fault.path:
        return True
    return fault.first in document and fault.first != STATUS


def _is_missing(fault: InvalidField, document: object) -> bool:
    """Return whether the fault is a missing field of the whole document, apart from the status."""
    is_given = _is_given(fault, document)
    return not is_given and isinstance(document, dict) and fault.first != STATUS
