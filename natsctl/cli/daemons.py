"""How a command finds the daemon that it asks, or is told that there is none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.controllers import controller_of
from natsctl.daemon.asking import Daemons
from natsctl.errors import NoDaemonError, UsageError
from natsctl.kv.connection import connect
from natsctl.kv.options import NatsOptions
from natsctl.runtime import Controller

NamedOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        "-c",
        help="a controller's name, as natsctl status shows it, or its class, package.module:Name; "
        "not needed where only one runs",
        metavar="NAME",
    ),
]
LocalOption = Annotated[
    bool,
    typer.Option("--local", help="do it in this process, without a daemon; takes the class"),
]


LOCALLY = ", or do it here with --local"
"""What else can be done where no daemon answers."""


@asynccontextmanager
async def asked(
    options: NatsOptions, named: str | None, *, advice: str = ""
) -> AsyncIterator[tuple[Daemons, str]]:
    """Connect, find the daemons, and give them with the name of the controller that is meant.

    Raises as `Daemons.find` and `Daemons.controller` do, with *advice* where nobody answers.
    """
    name = None if named is None else name_of(named)
    async with connect(options) as connection:
        try:
            daemons = await Daemons.find(connection)
        except NoDaemonError as error:
            raise NoDaemonError(f"{error}{advice}") from None
        yield daemons, daemons.controller(name)


def name_of(named: str) -> str:
    """Return the controller's name, be it the name or the class that was given."""
    return controller_of(named).name if ":" in named else named


def local(named: str | None) -> Controller:
    """Return the controller to be run here; raises `UsageError` where no class was given."""
    if named is None:
        raise UsageError("--local needs the controller's class: say --controller M:C")
    return controller_of(named)
