"""Finds the objects that `natsctl pause` and `natsctl resume` are about."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import typer

from natsctl.cli.framework.exit_codes import exit_status, exit_with, report_error
from natsctl.cli.framework.names import Name, parse_names
from natsctl.cli.objects.buckets import existing_bucket
from natsctl.cli.operate.find_daemon import controller_name
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.pauses import in_cluster
from natsctl.errors import NatsctlError, NoDaemonError, StoreMissingError, UsageError
from natsctl.jetstream.connection.connection import Connection

AllOption = Annotated[
    bool, typer.Option("--all", help="The whole controller of --controller, with all its keys")
]


def selected_names(words: Sequence[str] | None, command: str, *, whole: bool) -> list[Name]:
    """Return the objects that are named, none with *whole*; raises `UsageError` for any other."""
    all_keys = f"; natsctl {command} --all -c CONTROLLER is for a whole controller"
    if not whole:
        return parse_names(words or (), otherwise=all_keys)
    if words:
        raise UsageError("--all is for the whole controller: name no object, or leave --all out")
    return []


async def controller_of(connection: Connection, named: str | None) -> tuple[str, bool]:
    """Return the name of the controller, and whether a daemon runs it.

    Without a name, the only controller of the daemons is meant.
    """
    named = controller_name(named)
    try:
        daemons = await Daemons.find(connection)
    except NoDaemonError:
        if named is None:
            raise
        return named, False
    if named is None:
        return daemons.controller(None), True
    return named, named in daemons.controllers


async def for_each_object(
    connection: Connection, names: Sequence[Name], act: Callable[[Name], Awaitable[None]]
) -> None:
    """Act on each object; report failures, and exit with the first one at the end."""
    statuses = [0]
    for name in names:
        try:
            await act(await _in_nats(connection, name))
        except NatsctlError as error:
            report_error(f"{name}: {error}")
            statuses.append(exit_status(error))
    exit_with(statuses)


async def _in_nats(connection: Connection, name: Name) -> Name:
    """Return the object with its bucket; raises `UsageError` if it is in a cluster."""
    try:
        bucket = await existing_bucket(connection, name.bucket)
    except StoreMissingError:
        if await _is_in_cluster(connection, name):
            raise in_cluster(name.bucket.partition(".")[0], name.key) from None
        raise
    return Name(bucket.name, name.key)


async def _is_in_cluster(connection: Connection, name: Name) -> bool:
    """Return whether a running controller has its primaries in a cluster, of this kind."""
    try:
        daemons = await Daemons.find(connection)
        sources = await daemons.sources(daemons.controllers)
    except NatsctlError:
        return False
    return any(
        not source.bucket and name.within("", source.kind)
        for places in sources.values()
        for source in places
    )
