"""Finds the running daemons, and the controller that a command is about."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.usage import only
from natsctl.daemon.api.client import Daemons
from natsctl.errors import NoDaemonError, NotFoundError
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

NamedOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        "-c",
        help="Controller's name in natsctl status, or its class as package.module:Name; "
        "required if several controllers match",
        metavar="NAME",
    ),
]

KeysArgument = Annotated[list[str] | None, typer.Argument(help="Keys of primaries", metavar="KEY")]
KeysOrAllArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Keys of primaries; without a key, all primaries", metavar="KEY"),
]
PrimaryKeyArgument = Annotated[str, typer.Argument(help="Key of the primary", metavar="KEY")]

Choose = Callable[[Daemons], Awaitable[str]]
"""Returns the matching controller of several; raises `UsageError` if several match."""


@asynccontextmanager
async def find_daemons(options: NatsOptions, *, hint: str = "") -> AsyncIterator[Daemons]:
    """Connect, and find the daemons; raises as `Daemons.find` does, with *hint* in the error."""
    async with connect(options) as connection:
        try:
            daemons = await Daemons.find(connection)
        except NoDaemonError as error:
            raise NoDaemonError(f"{error}{hint}") from None
        yield daemons


@asynccontextmanager
async def find_controller(
    options: NatsOptions, named: str | None, *, hint: str = "", choose: Choose | None = None
) -> AsyncIterator[tuple[Daemons, str]]:
    """Connect, find the daemons, and return them with the name of the controller.

    If no controller is *named* and several run, *choose* selects one. Raises as `find_daemons` and
    `Daemons.controller` do.
    """
    async with find_daemons(options, hint=hint) as daemons:
        if named is None and choose is not None and len(daemons.controllers) > 1:
            yield daemons, await choose(daemons)
        else:
            yield daemons, daemons.controller(controller_name(named))


def choose_by_key(key: str) -> Choose:
    """Return a function that chooses the only controller that has *key*.

    The function raises `NotFoundError` if no controller has the key, `UsageError` if several do.
    """

    async def choose(daemons: Daemons) -> str:
        names = await daemons.controllers_with(key)
        if not names:
            controllers = ", ".join(daemons.controllers)
            raise NotFoundError(f"no controller has {key}: there are {controllers}")
        return only(names, f"several controllers have {key}", "--controller")

    return choose


async def choose_by_garbage(daemons: Daemons) -> str:
    """Choose the only controller with secondaries, or else the only controller with garbage."""
    collecting = daemons.collecting
    if len(collecting) == 1:
        return collecting[0]
    plans = await asyncio.gather(*map(daemons.plan, collecting))
    names = [plan.controller for plan in plans if plan.orphans or plan.more]
    if not names:
        ambiguity = "none of several controllers has garbage"
        return only(collecting or daemons.controllers, ambiguity, "--controller")
    return only(names, "several controllers have garbage", "--controller")


def controller_name(named: str | None) -> str | None:
    """Return the name of a controller that is given by its name or its class, if it is given."""
    return load_runnable_controller(named).name if named is not None and ":" in named else named
