"""Schemas that daemons publish or controllers declare: `natsctl explain`, and checks of objects."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Final

import msgspec

from natsctl.cli.command import App, load_runnable_controller, option
from natsctl.cli.output import TABLES, output_option, write_result, write_table
from natsctl.cli.terminal import write_line, write_notice
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import DECODE_ERRORS, InvalidObjectError, NotFoundError, StoreError, UsageError
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.model import documents, exact_json
from natsctl.model.schemas.kind_schema import KindSchema
from natsctl.operate.buckets import published_schemas
from natsctl.operate.faults import InvalidField, faults, schema_for, unknown_fields
from natsctl.operate.objects import NewValue, parse_name, preview

app = App()

# ---- checks of objects


class Validate(Enum):
    """The treatment of an object that does not match its schema."""

    STRICT = "strict"
    WARN = "warn"
    IGNORE = "ignore"


Checked = Annotated[
    Validate, option("--validate | An object that doesn't match its schema", default=None)
]


class Validator(msgspec.Struct, frozen=True):
    """Checks the objects of one bucket; without published schemas, it accepts every object."""

    bucket: str
    schemas: Sequence[KindSchema]
    validate: Validate

    @classmethod
    async def of(cls, connection: Connection, bucket: str, validate: Validate) -> "Validator":
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
        schema, document = schema_for(self.schemas, key), _document_of(new)
        if schema is None:
            return None
        invalid = [one for one in faults(schema.schema, document) if _is_given(one, document)]
        refused = {one.path for one in invalid}
        for one in unknown_fields(schema.schema, document):
            # a type without a field spec permits any spec, and natsctl does not store the status
            if one.path not in refused and one.path != "spec" and one.first != "status":
                name = one.path.rpartition(".")[2]
                hint = did_you_mean(name, one.instead or ())
                self._warn(key, f"{one.path} is unknown{hint} (schema of {schema.source})")
        self._reject(key, schema, invalid)
        return None if invalid else schema.version

    def check_new(self, key: str, new: NewValue) -> None:
        """Check that a new object has every required field; raises as `check` does."""
        schema, document = schema_for(self.schemas, key), _document_of(new)
        if schema is not None and isinstance(document, dict):
            found = faults(schema.schema, document)
            given = (one for one in found if one.first != "status")
            self._reject(key, schema, [one for one in given if not _is_given(one, document)])

    def _reject(self, key: str, schema: KindSchema, invalid: Sequence[InvalidField]) -> None:
        message = f"not a valid {schema.kind} of {schema.source}:"
        if invalid and self.validate is Validate.STRICT:
            separator = "\n" if len(invalid) > 1 else " "
            raise InvalidObjectError(separator.join([message, *map(str, invalid)]))
        for fault in invalid:
            self._warn(key, f"{message} {fault}")

    def _warn(self, key: str, text: str) -> None:
        write_notice(f"warning: {self.bucket}/{key}: {text}")


def _document_of(new: NewValue) -> object:
    if not isinstance(new, bytes):
        return new
    try:
        return exact_json.decode(new)
    except DECODE_ERRORS:
        return new.decode(errors="backslashreplace")


def _is_given(fault: InvalidField, document: object) -> bool:
    """Return whether the fault is in a field of the document, apart from the status."""
    if not isinstance(document, dict) or not fault.path:
        return True
    return fault.first in document and fault.first != "status"


# ---- explain

Schema = Mapping[str, Any]
"""A JSON Schema, or a part of one."""

WIDTH, INDENT = 80, "    "
KINDS_MAX = 10  # that an error lists
HEADINGS = ("KIND", "KEYS", "VERSION", "CONTROLLER", "CONTROLLER-VERSION", "ROLE")
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


@app.add(
    "natsctl explain greetings",
    "natsctl explain Greeting.spec.text -c controllers.greetings:Greetings",
    "natsctl explain greetings -o jsonschema",
    path="@KIND.FIELD | A kind, its type or its bucket, and a field; without it, all kinds",
    recursive="Show the names of all nested fields",
    controller="-c M:C | Controller class whose kinds are read instead of the published ones; "
    "repeatable",
)
async def explain(
    options: NatsOptions,
    *,
    path: list[str] | None = None,
    recursive: bool = False,
    controller: list[str] | None = None,
    output: Annotated[str, output_option("jsonschema")] = "table",
) -> None:
    """Explain the fields of a kind: types, defaults, limits and meanings.

    Without --controller, the schema is the one that a daemon has published; -o jsonschema prints
    it. natsctl describe explains the state of an object.
    """
    words = path or []
    if len(words) > 1 or "/" in (words or [""])[0]:
        name = parse_name(words)
        raise UsageError(
            f"{name} is an object: natsctl describe {name} shows its state, and natsctl explain "
            f"{name.bucket} the fields of its kind"
        )
    if controller:
        from natsctl.daemon.kinds import schemas_of  # noqa: PLC0415 - half a second

        schemas = schemas_of([load_runnable_controller(named) for named in controller])
    else:
        async with connect(options) as connection:
            schemas = await published_schemas(connection)
    schema, names = _found(schemas, words[0]) if words else (None, [])
    if output not in TABLES:
        whole: Schema = {one.kind: one.schema for one in schemas}
        if names:
            raise UsageError(f"{words[0]} names a field: natsctl explain {words[0]} explains it")
        if schema is not None:
            write_notice(f"{schema.kind} is declared by {schema.source}")
            whole = schema.schema
        chosen = "json" if output == "jsonschema" else output
        write_result(whole, chosen, names=words or list(whole))
    elif schema is not None:
        for line in _explanation(schema, names, recursive=recursive):
            write_line(line)
    elif schemas:
        rows = [
            (
                *(one.kind, one.keys, one.version),
                *(one.controller, one.controller_version, one.role),
            )
            for one in schemas
        ]
        write_table(HEADINGS, rows)
    else:
        write_notice("no daemon has published a schema")


def _found(schemas: Sequence[KindSchema], path: str) -> tuple[KindSchema, list[str]]:
    """Return the schema that *path* begins with, and the names of the fields that follow.

    A path such as `Shop.spec.text` begins with the name of a kind, of its type or of its bucket.
    """
    matching: dict[str, list[KindSchema]] = {}
    for schema in schemas:
        for name in dict.fromkeys((schema.kind, schema.kind.partition(".")[0], schema.bucket)):
            if f"{path}.".startswith(f"{name}."):
                matching.setdefault(name, []).append(schema)
    if not schemas:
        raise NotFoundError(
            f"there is no schema of {path}: no daemon has published one; run a daemon, or name "
            "the controller with --controller"
        )
    if not matching:
        known = [name for one in schemas for name in (one.kind.partition(".")[0], one.bucket)]
        kinds = ", ".join(schema.kind for schema in schemas[:KINDS_MAX])
        hint = did_you_mean(path.partition(".")[0], known) or f": there are {kinds}"
        raise NotFoundError(f"there is no schema of {path}{hint}")
    name = max(matching, key=len)
    if len(matching[name]) > 1:
        kinds = ", ".join(schema.kind for schema in matching[name])
        raise UsageError(f"{name} names several kinds: {kinds}; write the whole name of one")
    return matching[name][0], [field for field in path[len(name) :].split(".") if field]


def _explanation(kind: KindSchema, names: Sequence[str], *, recursive: bool) -> Iterator[str]:
    fields, part = _Fields(kind.schema), kind.schema
    for number, name in enumerate(names):
        structs = fields.structs(part)
        known = {key: inner for one in structs for key, inner in one["properties"].items()}
        mappings = [one for one in fields.variants(part) if one.get("type") == "object"]
        values = [one.get("additionalProperties") for one in mappings if "properties" not in one]
        if name in known:
            part = known[name]
        elif values:  # a mapping has any names
            part = values[0] if isinstance(values[0], dict) else {}
        else:
            place = ".".join([kind.kind, *names[:number]])
            raise NotFoundError(f"{place} has no field {name}{did_you_mean(name, known)}")
    yield f"KIND:       {kind.kind}"
    yield f"BUCKET:     {kind.bucket}"
    yield f"VERSION:    {kind.version}"
    yield f"SCHEMA OF:  {kind.source}"
    yield ""
    if names:
        yield f"FIELD: {names[-1]} <{fields.type_of(part)}>"
        yield from fields.notes(part)
        yield ""
    yield "DESCRIPTION:"
    yield from fields.description(part) or (f"{INDENT}<none>",)
    if recursive:
        yield from ("", "FIELDS:")
        yield from fields.nested(part, "  ", ())
        return
    structs = fields.structs(part)
    for struct in structs:
        yield ""
        yield "FIELDS:" if len(structs) == 1 else f"FIELDS of {struct.get('title', 'object')}:"
        for heading, inner in fields.headings(struct, "  "):
            yield heading
            yield from fields.notes(inner)
            yield from fields.description(inner)


class _Fields(msgspec.Struct, frozen=True):
    root: Schema

    def resolved(self, schema: Schema) -> Schema:
        """Return the schema with its reference followed; its own keywords have precedence."""
        if "$ref" not in schema:
            return schema
        referred = self.root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {})
        return {**self.resolved(referred), **documents.without(schema, "$ref")}

    def variants(self, schema: Schema) -> list[Schema]:
        """Return the alternatives of a union, or the schema itself."""
        resolved = self.resolved(schema)
        parts = resolved.get("anyOf")
        return (
            [resolved] if parts is None else [one for part in parts for one in self.variants(part)]
        )

    def structs(self, schema: Schema) -> list[Schema]:
        """Return the alternatives with fields: of the schema, its items or its values."""
        structs: list[Schema] = []
        for variant in self.variants(schema):
            structs += [variant] if "properties" in variant else []
            for part in _inner_schemas(variant):
                structs += self.structs(part)
        return structs

    def type_of(self, schema: Schema) -> str:
        """Return the name of the type, as `kubectl explain` prints it."""
        return " | ".join(dict.fromkeys(map(self._type_name, self.variants(schema))))

    def _type_name(self, schema: Schema) -> str:
        inner = [self.type_of(part) for part in _inner_schemas(schema)]
        match schema.get("type"):
            case "array":
                text = ", ".join(inner) or "any"
                return f"[]({text})" if len(inner) > 1 or " | " in text else f"[]{text}"
            case "object" if "properties" not in schema:
                return f"map[string]{inner[0] if inner else 'any'}"
            case "object":
                return str(schema.get("title", "object"))
            case None if "enum" in schema:
                texts = all(isinstance(value, str) for value in schema["enum"])
                return "string" if texts else "integer"
            case kind:
                return str(kind or "any")

    def notes(self, schema: Schema) -> Iterator[str]:
        """Yield lines with the default and the limits of a value."""
        notes: dict[str, None] = {}
        for variant in (self.resolved(schema), *self.variants(schema)):
            for keyword in filter(variant.__contains__, _NOTES):
                value = variant[keyword]
                values = value if keyword == "enum" else [value]
                shown = ", ".join(preview(exact_json.encode(one)) for one in values)
                notes[f"{INDENT}{_NOTES[keyword]}: {shown}"] = None
        yield from notes

    def description(self, schema: Schema) -> list[str]:
        """Return lines with the meaning of a value: of the field, or else of its type."""
        schemas = [self.resolved(schema), *self.variants(schema)]
        texts = [one["description"] for one in schemas if one.get("description")]
        own = texts[:1] if schemas[0].get("description") else texts
        lines: list[str] = []
        for paragraph in "\n\n".join(dict.fromkeys(own)).split("\n\n") if own else ():
            lines += [""] if lines else []
            lines += textwrap.wrap(
                paragraph, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT
            )
        return lines

    def headings(self, struct: Schema, indent: str) -> Iterator[tuple[str, Schema]]:
        properties, required = struct["properties"], struct.get("required", ())
        width = max(map(len, properties), default=0)
        for name, inner in properties.items():
            mark = " -required-" if name in required else ""
            yield f"{indent}{name.ljust(width)}  <{self.type_of(inner)}>{mark}", inner

    def nested(self, part: Schema, indent: str, above: tuple[object, ...]) -> Iterator[str]:
        for struct in self.structs(part):
            if (title := struct.get("title")) not in above:
                for heading, inner in self.headings(struct, indent):
                    yield heading
                    yield from self.nested(inner, f"{indent}  ", (*above, title))


def _inner_schemas(schema: Schema) -> list[Schema]:
    rest = (schema.get("items"), schema.get("additionalProperties"))
    return [part for part in (*schema.get("prefixItems", ()), *rest) if isinstance(part, dict)]
