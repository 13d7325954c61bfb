"""`natsctl explain`: explains the fields of a kind."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from natsctl.cli.arguments import controller_option
from natsctl.cli.command import App, connected
from natsctl.cli.output import TABLE, WIDE, output_option, write_result, write_table
from natsctl.cli.schemas import Fields, Schema, known_schemas, split_path
from natsctl.cli.terminal import write_line, write_notice
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError, UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.model.schemas.kind_schema import KindSchema
from natsctl.operate.names import parse_name

app = App()

WIDTH = 80

INDENT = "    "


SchemaControllersOption = Annotated[
    list[str] | None,
    controller_option(
        "Controller class whose kinds are read instead of the published ones; repeatable"
    ),
]
HEADINGS = ("KIND", "KEYS", "VERSION", "CONTROLLER", "CONTROLLER-VERSION", "ROLE")


@app.add(
    "natsctl explain greetings",
    "natsctl explain Greeting.spec.text -c controllers.greetings:Greetings",
    "natsctl explain greetings -o jsonschema",
)
@connected
async def explain(
    options: NatsOptions,
    *,
    path: Annotated[
        list[str] | None,
        typer.Argument(
            help="A kind, its type or its bucket, and a field; without it, all kinds",
            metavar="KIND.FIELD",
        ),
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Show the names of all nested fields")
    ] = False,
    controller: SchemaControllersOption = None,
    output: Annotated[str, output_option("jsonschema")] = TABLE,
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
    schemas = await known_schemas(options, controller or ())
    if output not in (TABLE, WIDE):
        _write_schemas(schemas, words[0] if words else None, output)
    elif not words:
        _write_table(schemas)
    else:
        schema, names = split_path(schemas, words[0])
        fields = Fields(schema.schema)
        part = _part(fields, schema, names)
        for line in (*_head(schema), *_field(fields, part, names)):
            write_line(line)
        for line in _tree(fields, part) if recursive else _details(fields, part):
            write_line(line)


def _write_schemas(schemas: Sequence[KindSchema], kind: str | None, output: str) -> None:
    """Write the JSON Schema (2020-12) of a kind, or a mapping of all kinds."""
    printed: Mapping[str, Any] = {schema.kind: schema.schema for schema in schemas}
    if kind is not None:
        schema, fields = split_path(schemas, kind)
        if fields:
            raise UsageError(f"{kind} names a field: natsctl explain {kind} explains it")
        write_notice(f"{schema.kind} is declared by {schema.source}")
        printed = schema.schema
    names = [kind] if kind is not None else list(printed)
    write_result(printed, "json" if output == "jsonschema" else output, names=names)


def _part(fields: Fields, schema: KindSchema, names: list[str]) -> Schema:
    """Return the schema of a field; raises `NotFoundError` that suggests a similar name."""
    part: Schema = schema.schema
    for number, name in enumerate(names):
        inner = fields.of(part)
        if name not in inner and fields.free(part) is None:
            path = ".".join([schema.kind, *names[:number]])
            raise NotFoundError(f"{path} has no field {name}{did_you_mean(name, inner)}")
        part = inner.get(name) or fields.free(part) or {}
    return part


def _head(schema: KindSchema) -> Iterator[str]:
    yield f"KIND:       {schema.kind}"
    yield f"BUCKET:     {schema.bucket}"
    yield f"VERSION:    {schema.version}"
    yield f"SCHEMA OF:  {schema.source}"
    yield ""


def _field(fields: Fields, part: Schema, names: list[str]) -> Iterator[str]:
    if names:
        yield f"FIELD: {names[-1]} <{fields.type_of(part)}>"
        for note in fields.notes(part):
            yield f"{INDENT}{note}"
        yield ""
    description = fields.description(part)
    yield "DESCRIPTION:"
    yield from _wrapped(description or "<none>", INDENT)


def _details(fields: Fields, part: Schema) -> Iterator[str]:
    structs = fields.structs(part)
    for struct in structs:
        yield ""
        yield "FIELDS:" if len(structs) == 1 else f"FIELDS of {struct.get('title', 'object')}:"
        for heading, inner in _headings(fields, struct, "  "):
            yield heading
            for note in fields.notes(inner):
                yield f"{INDENT}{note}"
            yield from _wrapped(fields.description(inner), INDENT)


def _headings(fields: Fields, struct: Schema, indent: str) -> Iterator[tuple[str, Schema]]:
    """Yield a line for each field of a type, with the schema of the field."""
    properties, required = struct.get("properties", {}), struct.get("required", ())
    width = max(map(len, properties), default=0)
    for name, inner in properties.items():
        mark = " -required-" if name in required else ""
        yield f"{indent}{name.ljust(width)}  <{fields.type_of(inner)}>{mark}", inner


def _tree(fields: Fields, part: Schema) -> Iterator[str]:
    yield ""
    yield "FIELDS:"
    yield from _branches(fields, part, "  ", ())


def _branches(
    fields: Fields, part: Schema, indent: str, above: tuple[object, ...]
) -> Iterator[str]:
    """Yield the fields below a part; a type that contains itself is shown once."""
    for struct in fields.structs(part):
        if struct.get("title") in above:
            continue
        for heading, inner in _headings(fields, struct, indent):
            yield heading
            yield from _branches(fields, inner, f"{indent}  ", (*above, struct.get("title")))


def _wrapped(text: str, indent: str) -> Iterator[str]:
    """Yield the lines of a text; each paragraph is wrapped."""
    for number, paragraph in enumerate(text.split("\n\n") if text else ()):
        if number:
            yield ""
        yield from textwrap.wrap(paragraph, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _write_table(schemas: list[KindSchema]) -> None:
    if not schemas:
        write_notice("no daemon has published a schema")
        return
    rows = [
        (
            schema.kind,
            schema.keys,
            str(schema.version),
            schema.controller,
            schema.controller_version or "-",
            schema.role,
        )
        for schema in schemas
    ]
    write_table(HEADINGS, rows)
