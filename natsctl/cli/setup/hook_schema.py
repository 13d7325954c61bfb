"""`natsctl hook-schema`: prints the JSON Schemas of what a hook is asked and answers."""

from typing import Annotated, Literal

import typer

from natsctl.cli.framework.command import App
from natsctl.cli.output.printing import write_json
from natsctl.controller.hook import hook_schemas

app = App()

Part = Literal["request", "answer"]


@app.add(
    "natsctl hook-schema",
    "natsctl hook-schema answer > answer.schema.json",
)
def hook_schema(
    *,
    part: Annotated[
        Part | None, typer.Argument(metavar="[request|answer]", help="One of them, instead of both")
    ] = None,
) -> None:
    """Print the JSON Schemas of what a hook is asked and what it answers.

    Generate types for your language from them, or check your service's answers in its tests.
    """
    schemas = hook_schemas()
    write_json(schemas if part is None else schemas[part])
