"""Defines the options that name controllers, and other options of commands that run them."""

from typing import Annotated, Any

import typer

from natsctl.core.task_group import WORKERS_MAX

CLASS_HELP = "Controller class as package.module:Name, searched in the current folder first"


def controller_option(text: str) -> Any:
    """Return the option `--controller`, whose value is a class, with this help."""
    return typer.Option("--controller", "-c", metavar="M:C", help=text)


def port_option(text: str, *, default: int) -> Any:
    """Return an option for a port to listen on, which falls back to any port."""
    shown = f"{text}; 0 selects a free port [default: {default} if it is free]"
    return typer.Option(min=0, max=65535, metavar="PORT", help=shown)


ControllerOption = Annotated[str, controller_option(CLASS_HELP)]
ControllersOption = Annotated[list[str], controller_option(f"{CLASS_HELP}; repeatable")]
KindsOption = Annotated[
    str | None,
    controller_option("Controller class; the object must match its types for the bucket"),
]
PortOption = Annotated[int | None, port_option("Port of the private nats-server", default=4222)]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=WORKERS_MAX,
        help="Number of keys that are synced concurrently",
        metavar="NUMBER",
    ),
]
