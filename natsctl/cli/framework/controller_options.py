"""Defines the options that name controllers, and other options of commands that run them."""

from typing import Annotated

import typer

_HELP = "Controller class as package.module:Name, searched in the current folder first"

ControllersOption = Annotated[
    list[str], typer.Option("--controller", "-c", help=f"{_HELP}; repeatable", metavar="M:C")
]
KindsOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        "-c",
        metavar="M:C",
        help="Controller class; the object must match its types for the bucket",
    ),
]
PortOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        metavar="PORT",
        help="Port of the private nats-server; 0 selects a free port [default: 4222 if it is free]",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Number of keys that are synced concurrently", metavar="NUMBER"),
]
