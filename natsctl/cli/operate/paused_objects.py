"""Finds the objects that `natsctl pause` and `natsctl resume` are about."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
import typer

from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.exit_codes import exit_status, exit_with, report_error
from natsctl.cli.operate.find_daemon import choose_by_key, controller_name
from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import only_primary
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.operator import Guest
from natsctl.daemon.pauses import in_cluster
from natsctl.errors import NatsctlError, NoDaemonError, UsageError
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.keys import check_keys
from natsctl.model.kinds import Kind, KvKind

AllOption = Annotated[bool, typer.Option("--all", help="The whole controller, with all its keys")]
BucketOption = Annotated[
    str | None,
    typer.Option(
        "--bucket", help="The bucket of the keys; needed if no daemon runs", metavar="BUCKET"
    ),
]


class Target(msgspec.Struct, frozen=True):
    """A key in a bucket, and the controllers that sync it, as far as they are known."""

    bucket: str
    key: str
    controllers: tuple[str, ...] = ()


def check_selection(keys: Sequence[str] | None, *, whole: bool) -> list[str]:
    """Return the selected keys; raises `UsageError` unless there are keys or *whole*."""
    selected = check_keys(keys or ())
    if bool(selected) == whole:
        raise UsageError("give keys, or --all for the whole controller")
    return selected


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


async def for_each_target(
    connection: Connection,
    keys: Sequence[str],
    act: Callable[[Target], Awaitable[None]],
    *,
    controller: str | None,
    bucket: str | None,
) -> None:
    """Act on the object of each key; report failures, and exit with the first one at the end.

    Raises `NoDaemonError` if daemons are needed to find an object.
    """
    statuses = [0]
    for key in keys:
        try:
            await act(await _target_of(connection, key, controller=controller, bucket=bucket))
        except NoDaemonError:
            raise
        except NatsctlError as error:
            report_error(f"{key}: {error}")
            statuses.append(exit_status(error))
    exit_with(statuses)


async def _target_of(
    connection: Connection, key: str, *, controller: str | None, bucket: str | None
) -> Target:
    """Return where the key's object is.

    Raises `UsageError` if it is in a cluster, and as `choose_by_key` and `Daemons.find` do.
    """
    names: tuple[str, ...] = ()
    if controller is not None and ":" in controller:
        loaded = load_runnable_controller(controller)
        names, bucket = (loaded.name,), bucket or _bucket_of(loaded, key)
        return Target(bucket, key, names)
    if bucket is not None:
        names = () if controller is None else (controller,)
        return Target(bucket, key, names)
    try:
        daemons = await Daemons.find(connection)
    except NoDaemonError as error:
        raise NoDaemonError(f"{error}, or name the bucket with --bucket") from None
    if controller is None and len(daemons.controllers) > 1:
        controller = await choose_by_key(key)(daemons)
    name = daemons.controller(controller)
    tree = await daemons.tree(name, key)
    if not tree.bucket:
        raise in_cluster(tree.kind, key)
    return Target(tree.bucket, key, (name,))


def _bucket_of(controller: Controller | Guest, key: str) -> str:
    kinds: Sequence[Kind[object]] = (
        [only_primary(type(controller)).kind]
        if isinstance(controller, Controller)
        else controller.kinds
    )
    buckets = {kind.bucket for kind in kinds if isinstance(kind, KvKind) and kind.holds(key)}
    if len(buckets) == 1:
        return buckets.pop()
    if not buckets and kinds:
        raise in_cluster(kinds[0].name, key)
    raise UsageError(f"{key} may be in {', '.join(sorted(buckets))}: choose one with --bucket")
