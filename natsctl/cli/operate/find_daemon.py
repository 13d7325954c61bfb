"""Finds the daemons, and the controller, that a command asks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.framework.controllers import controller_of
from natsctl.controller.controller import Controller
from natsctl.daemon.api.client import Daemons
from natsctl.errors import NoDaemonError, NotFoundError, UsageError
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions

NamedOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        "-c",
        help="a controller's name, as natsctl status shows it, or its class, package.module:Name; "
        "only needed if several have what is asked for",
        metavar="NAME",
    ),
]
LocalOption = Annotated[
    bool,
    typer.Option("--local", help="do it in this process, without a daemon; takes the class"),
]


LOCALLY = ", or do it here with --local"
"""What else can be done where no daemon answers."""


Choose = Callable[[Daemons], Awaitable[str]]
"""Finds the controller that is meant, of several; raises `UsageError` if only a person can say."""


@asynccontextmanager
async def asked(
    options: NatsOptions, named: str | None, *, advice: str = "", choose: Choose | None = None
) -> AsyncIterator[tuple[Daemons, str]]:
    """Connect, find the daemons, and give them with the name of the controller that is meant.

    If none is named and there are several, *choose* finds it. Raises as `Daemons.find` and
    `Daemons.controller` do, with *advice* if no daemon answers.
    """
    async with searched(options, advice=advice) as daemons:
        if named is None and choose is not None and len(daemons.controllers) > 1:
            yield daemons, await choose(daemons)
        else:
            yield daemons, daemons.controller(None if named is None else name_of(named))


@asynccontextmanager
async def searched(options: NatsOptions, *, advice: str = "") -> AsyncIterator[Daemons]:
    """Connect, and give the daemons; see `asked`."""
    async with connect(options) as connection:
        try:
            daemons = await Daemons.find(connection)
        except NoDaemonError as error:
            raise NoDaemonError(f"{error}{advice}") from None
        yield daemons


def with_key(key: str) -> Choose:
    """Find the only controller that has *key*.

    Raises `NotFoundError` if none has it, `UsageError` if several do.
    """

    async def choose(daemons: Daemons) -> str:
        found = await daemons.controllers_with(key)
        if not found:
            there = ", ".join(daemons.controllers)
            raise NotFoundError(f"no controller has {key}: there are {there}")
        return _only(found, f"several controllers have {key}")

    return choose


async def with_garbage(daemons: Daemons) -> str:
    """Return the only controller that makes secondaries, or else the only one that has garbage."""
    collecting = daemons.collecting
    if len(collecting) == 1:
        return collecting[0]
    plans = await asyncio.gather(*map(daemons.plan, collecting))
    found = [plan.controller for plan in plans if plan.orphans or plan.more]
    if not found:
        return _only(collecting or daemons.controllers, "none of several controllers has garbage")
    return _only(found, "several controllers have garbage")


def _only(names: Sequence[str], why: str) -> str:
    if len(names) > 1:
        raise UsageError(f"{why}: say --controller, one of {', '.join(names)}")
    return names[0]


def name_of(named: str) -> str:
    """Return the name of a controller that is given by its name or by its class."""
    return controller_of(named).name if ":" in named else named


def local(named: str | None) -> Controller:
    """Return the controller to be run here; raises `UsageError` where no class was given."""
    if named is None:
        raise UsageError("--local needs the controller's class: say --controller M:C")
    return controller_of(named)
