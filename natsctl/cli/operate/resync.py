"""`natsctl resync`: keys, now: by the daemon that leads, or once in this process."""

import logging
from collections.abc import Sequence
from typing import Annotated

import typer

from natsctl.cli.framework.cluster_options import clustered
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.controllers import WorkersOption
from natsctl.cli.framework.exit_codes import FAILED, NOT_FOUND, say_error, status
from natsctl.cli.operate.find_daemon import (
    LOCALLY,
    LocalOption,
    NamedOption,
    name_of,
    searched,
    with_key,
)
from natsctl.cli.operate.find_daemon import local as local_controller
from natsctl.cli.operate.local_runtime import connected_to, linked
from natsctl.cli.output.printing import line
from natsctl.cli.output.terminal import Progress
from natsctl.controller.controller import Controller
from natsctl.controller.slots.owners import OwnerNames
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.messages import Queuing
from natsctl.daemon.one_shot import Visited, primaries, sync_once
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.model.keys import check_key

REPORTED_HERE = ("natsctl.controller.sync.events", "natsctl.core.cache.invalid_log")
"""Loggers whose lines this command prints itself, one for each key."""

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl resync",
        "natsctl resync shop market --controller greetings",
        "natsctl resync --local -c controllers.greetings:Greetings shop --verbose",
    ),
)
@connected
@clustered
@linked
async def resync(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    owner_names: OwnerNames,
    keys: Annotated[
        list[str] | None, typer.Argument(help="primaries; all by default", metavar="KEY")
    ] = None,
    controller: NamedOption = None,
    local: LocalOption = False,
    workers: WorkersOption = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="with --local: show where each failure comes from"),
    ] = False,
) -> None:
    """Sync keys now.

    The daemon that leads the controller puts them on its queue: all of them behind whatever is
    urgent, keys that are named before it, even those that failed for good. It does not wait;
    natsctl explain KEY tells what came of it. Of daemons that share the keys, each queues its own.

    With --local the sync handler is called once for each key in this process, whether or not a
    daemon runs. Failures are told at the end of their line, and nothing is retried.
    """
    named = list(dict.fromkeys(check_key(key) for key in keys or ()))
    if not local:
        if verbose or workers is not None:
            raise UsageError("--verbose and --workers are about what --local does")
        return await _ask(options, controller, named)
    work = local_controller(controller)
    work.workers = work.workers if workers is None else workers
    return await _sync_here(options, cluster, owner_names, work, named, verbose=verbose)


async def _ask(options: NatsOptions, controller: str | None, keys: Sequence[str]) -> None:
    failures: list[int] = []
    async with searched(options, advice=LOCALLY) as daemons:
        if controller is not None or not keys or len(daemons.controllers) == 1:
            name = daemons.controller(None if controller is None else name_of(controller))
            failures.append(await _ask_one(daemons, name, keys))
        else:
            for name, its_keys in (await _by_controller(daemons, keys, failures)).items():
                failures.append(await _ask_one(daemons, name, its_keys))
    if any(failures):
        raise typer.Exit(min(code for code in failures if code))


async def _by_controller(
    daemons: Daemons, keys: Sequence[str], failures: list[int]
) -> dict[str, list[str]]:
    """Return the keys of each controller; report a key that none has."""
    found: dict[str, list[str]] = {}
    for key in keys:
        try:
            found.setdefault(await with_key(key)(daemons), []).append(key)
        except NotFoundError as error:
            say_error(str(error))
            failures.append(NOT_FOUND)
    return found


async def _ask_one(daemons: Daemons, name: str, keys: Sequence[str]) -> int:
    """Have the controller's keys queued, and return the exit status that this asks for."""
    found = await daemons.resync(name, keys)
    for each in found:
        if each.queued or not keys:
            line(f"{_counted(each.queued)} of {name} queued in {each.daemon}")
    return _report_others(found)


def _report_others(found: Sequence[Queuing]) -> int:
    """Report keys that no daemon has put on its queue; return the exit status."""
    unknown = set(found[0].unknown).intersection(*(each.unknown for each in found))
    moving = set(found[0].elsewhere).intersection(*(each.elsewhere for each in found))
    invalid = {key: why for each in found for key, why in each.invalid.items()}
    for key in sorted(unknown):
        say_error(f"{key}: it does not exist")
    for key, why in sorted(invalid.items()):
        say_error(f"{key}: {why}")
    for key in sorted(moving):
        say_error(f"{key}: it moves from one daemon to another: ask again")
    if invalid or moving:
        return FAILED
    return NOT_FOUND if unknown else 0


def _counted(keys: int) -> str:
    return "1 key" if keys == 1 else f"{keys} keys"


async def _sync_here(
    options: NatsOptions,
    cluster: KubeOptions | None,
    owner_names: OwnerNames,
    work: Controller,
    named: Sequence[str],
    *,
    verbose: bool,
) -> None:
    if not verbose:
        for name in REPORTED_HERE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    failures: list[Exception] = []
    async with connected_to(work, options, cluster, owner_names) as runtime:
        wanted = list(named) or primaries(runtime)
        with Progress("syncing", len(wanted)) as progress:

            def tell(visited: Visited) -> None:
                if visited.error is not None:
                    failures.append(visited.error)
                    say_error(_told(visited.key, visited.error))
                progress.step()

            await sync_once(runtime, wanted, tell)
    line(f"{len(wanted) - len(failures)} of {len(wanted)} synced")
    if failures:
        raise typer.Exit(min(map(status, failures)))


def _told(key: str, error: Exception) -> str:
    text = str(error) if isinstance(error, NatsctlError) else f"{type(error).__name__}: {error}"
    return f"{key}: {text}"
