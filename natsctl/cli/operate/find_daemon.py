"""Finds the running daemons, and the controller that a command is about."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated

import typer

from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.usage import only
from natsctl.core.explain import PrimarySource
from natsctl.daemon.api.client import Daemons
from natsctl.errors import NoDaemonError, NotFoundError
from natsctl.jetstream.connection import connect
from natsctl.jetstream.options import NatsOptions
from natsctl.model.keys import matches
from natsctl.operate.fleet import NoGarbageError
from natsctl.operate.names import Name

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

    If no controller is *named*, *choose* selects one. Raises as `find_daemons`, `choose` and
    `Daemons.controller` do.
    """
    async with find_daemons(options, hint=hint) as daemons:
        if named is None and choose is not None:
            yield daemons, await choose(daemons)
        else:
            yield daemons, daemons.controller(controller_name(named))


async def controller_with(daemons: Daemons, name: Name, named: str | None) -> str:
    """Return the controller that syncs an object: the *named* one, or the only one that does.

    A controller that doesn't say where its primaries are, such as one that starts, is asked for the
    key. Raises `NotFoundError` if no controller has the object, and `UsageError` if several do.
    """
    running = daemons.controllers
    asked = running if named is None else [daemons.controller(controller_name(named))]
    sources = await daemons.sources(asked)
    matching = [one for one in asked if any(holds(source, name) for source in sources[one])]
    unknown = [one for one in asked if not sources[one]]
    if len(asked) > 1 and len(matching) != 1:
        matching = await daemons.controllers_with(name.key, matching or unknown)
    elif not matching:
        matching = unknown
    if not matching:
        places = (f"{one} (of {', '.join(_places(sources[one]))})" for one in asked)
        raise NotFoundError(f"no controller has {name}: there are {', '.join(places)}")
    return only(matching, f"several controllers have {name}", "--controller")


def holds(source: PrimarySource, name: Name) -> bool:
    """Return whether the place may have the object."""
    return name.within(source.bucket, source.kind) and matches(source.keys, name.key)


def _places(sources: Sequence[PrimarySource]) -> list[str]:
    return [source.bucket or source.kind for source in sources] or ["unknown"]


async def choose_by_garbage(daemons: Daemons) -> str:
    """Choose the only controller with secondaries, or else the only controller with garbage.

    If none has garbage, any of them is chosen. Raises `NoGarbageError` if none makes secondaries.
    """
    collecting = daemons.collecting
    if not collecting:
        raise NoGarbageError("no running controller makes secondaries: there is no garbage")
    if len(collecting) == 1:
        return collecting[0]
    plans = await asyncio.gather(*map(daemons.plan, collecting))
    names = [plan.controller for plan in plans if plan.orphans or plan.more or plan.refused]
    return only(names or collecting[:1], "several controllers have garbage", "--controller")


def controller_name(named: str | None) -> str | None:
    """Return the name of a controller that is given by its name or its class, if it is given."""
    return load_runnable_controller(named).name if named is not None and ":" in named else named
