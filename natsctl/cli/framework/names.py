"""The arguments that name objects, in every command."""

from typing import Annotated

import typer

NameArgument = Annotated[
    list[str],
    typer.Argument(help="The object: BUCKET/KEY, or BUCKET KEY", metavar="BUCKET/KEY"),
]
NamesArgument = Annotated[
    list[str],
    typer.Argument(
        help="The objects: BUCKET/KEY each, or BUCKET and its KEYs", metavar="BUCKET/KEY"
    ),
]
SomeNamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="The objects: BUCKET/KEY each, or BUCKET and its KEYs", metavar="BUCKET/KEY"
    ),
]
