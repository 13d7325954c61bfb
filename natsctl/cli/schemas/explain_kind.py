"""`natsctl explain-kind`: explains the fields of a kind."""

import textwrap
from collections.abc import Iterator
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.output.terminal import write_line
from natsctl.cli.schemas.fields import Fields, Schema
from natsctl.cli.schemas.published import known_schemas, split_path
from natsctl.cli.schemas.schema import SchemaControllersOption
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError
from natsctl.jetstream.options import NatsOptions
from natsctl.model.schemas.kind_schema import KindSchema

WIDTH = 80
INDENT = "    "

app = App()


@app.add(
    "natsctl explain-kind greetings",
    "natsctl explain-kind Greeting.spec",
    "natsctl explain-kind Greeting.spec.text --controller controllers.greetings:Greetings",
    "natsctl explain-kind greetings --recursive",
    name="explain-kind",
)
@connected
async def explain_kind(
    options: NatsOptions,
    *,
    path: Annotated[
        str,
        typer.Argument(
            help="Name of a kind, of its type or of its bucket, and a field",
            metavar="KIND[.FIELD]",
        ),
    ],
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Show the names of all nested fields")
    ] = False,
    controller: SchemaControllersOption = None,
) -> None:
    """Explain the fields of a kind.

    The output has the type, the default, the limits and the meaning of each field. Without
    --controller, the schema is the one that a daemon has published.
    """
    schemas = await known_schemas(options, controller or ())
    schema, names = split_path(schemas, path)
    fields = Fields(schema.schema)
    part = _part(fields, schema, names)
    for line in (*_head(schema), *_field(fields, part, names)):
        write_line(line)
    for line in _tree(fields, part) if recursive else _details(fields, part):
        write_line(line)


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
