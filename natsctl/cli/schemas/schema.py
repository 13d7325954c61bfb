"""`natsctl schema`: prints the JSON Schemas of kinds."""

from typing import Annotated, Literal

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.controller_options import controller_option
from natsctl.cli.output.printing import OUTPUT_OPTION, write_json, write_table, write_yaml
from natsctl.cli.output.terminal import write_notice
from natsctl.cli.schemas.published import known_schemas, split_path
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.model.schemas.kind_schema import KindSchema

HEADINGS = ("KIND", "KEYS", "VERSION", "CONTROLLER", "CONTROLLER-VERSION", "ROLE")

app = App()

SchemaControllersOption = Annotated[
    list[str] | None,
    controller_option(
        "Controller class whose kinds are read instead of the published ones; repeatable"
    ),
]


@app.add(
    "natsctl schema",
    "natsctl schema --controller controllers.greetings:Greetings",
    "natsctl schema greetings -o yaml",
)
@connected
async def schema(
    options: NatsOptions,
    *,
    kind: Annotated[
        str | None,
        typer.Argument(help="Name of a kind, of its type or of its bucket", metavar="KIND"),
    ] = None,
    controller: SchemaControllersOption = None,
    output: Annotated[Literal["table", "json", "yaml"] | None, OUTPUT_OPTION] = None,
) -> None:
    """Print the JSON Schemas of kinds.

    The dialect is 2020-12. Without --controller, the schemas are those that daemons have published;
    the daemon with the newest version of a type decides. Without KIND and --controller, a table
    lists the kinds. The JSON of several kinds is a mapping by kind; with KIND, it is the schema.
    """
    schemas = await known_schemas(options, controller or ())
    selected: KindSchema | None = None
    if kind is not None:
        selected, fields = split_path(schemas, kind)
        if fields:
            raise UsageError(f"{kind} names a field: natsctl explain-kind {kind} explains it")
    if output == "table" or (output is None and kind is None and not controller):
        _write_table(schemas if selected is None else [selected])
        return
    if selected is not None:
        write_notice(f"{selected.kind} is declared by {selected.source}")
    printed = (
        selected.schema if selected else {published.kind: published.schema for published in schemas}
    )
    if output == "yaml":
        write_yaml([printed])
    else:
        write_json(printed)


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
