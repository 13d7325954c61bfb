"""`natsctl resync`: syncs keys now, in the daemon that leads or once in this process."""

import logging
from collections.abc import Sequence
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.controller_options import WorkersOption
from natsctl.cli.framework.exit_codes import exit_status, report_error
from natsctl.cli.framework.names import SomeNamesArgument
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.operate.find_daemon import NamedOption, controller_name
from natsctl.cli.operate.local import LOCAL_HINT, LocalOption, local_controller, open_local
from natsctl.cli.operate.paused_objects import show
from natsctl.cli.output.terminal import progress_bar, write_line, write_notice
from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import only_primary
from natsctl.controller.sync import events
from natsctl.core import history, informer
from natsctl.daemon.one_shot import SyncResult, primaries, sync_once
from natsctl.errors import NatsctlError, NoDaemonError, UsageError
from natsctl.operate.fleet import open_fleet
from natsctl.operate.names import Name, own_keys, parse_names

REPORTED_LOGGERS = (events.__name__, history.__name__, informer.INVALID_LOG)
"""Loggers of failures that this command reports itself."""

app = App()


@app.add(
    "natsctl resync",
    "natsctl resync greetings/shop greetings/market",
    "natsctl resync greetings shop --local -c controllers.greetings:Greetings --verbose",
)
@connected_to_stores
async def resync(
    stores: StoreOptions,
    *,
    objects: SomeNamesArgument = None,
    controller: NamedOption = None,
    local: LocalOption = False,
    workers: WorkersOption = None,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="With --local, log the traceback of each failure"),
    ] = False,
) -> None:
    """Sync keys now.

    The daemon that leads the controller enqueues the keys, even those that failed permanently.
    Named keys have priority over other keys; a resync of all keys has low priority. If several
    daemons share the keys, each enqueues its own. The command does not wait: natsctl explain
    shows the result.

    With --local, this process calls the sync handler once for each key, whether or not a daemon
    runs. A failure is reported and not retried.
    """
    all_keys = "; natsctl resync -c CONTROLLER is for all keys of a controller"
    selected = parse_names(objects, otherwise=all_keys) if objects else []
    if local:
        runnable = local_controller(controller)
        runnable.workers = runnable.workers if workers is None else workers
        keys = own_keys([only_primary(type(runnable)).kind], selected)
        await _sync_here(stores, runnable, keys, verbose=verbose)
    elif verbose or workers is not None:
        raise UsageError("--verbose and --workers need --local")
    else:
        await _enqueue(stores, controller, selected)


async def _enqueue(stores: StoreOptions, controller: str | None, names: Sequence[Name]) -> None:
    """Ask daemons to enqueue the keys; exit with a failure if a key was not enqueued."""
    async with open_fleet(stores.nats) as fleet:
        try:
            show(await fleet.resync(names, controller_name(controller)))
        except NoDaemonError as error:
            raise NoDaemonError(f"{error}{LOCAL_HINT}") from None


async def _sync_here(
    stores: StoreOptions, controller: Controller, selected: Sequence[str], *, verbose: bool
) -> None:
    """Sync the keys in this process, all primaries if there are none; exit with any failure."""
    if not verbose:
        for name in REPORTED_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    failures: list[Exception] = []
    async with open_local(controller, stores) as runtime:
        keys = list(selected) or _unpaused(runtime)
        with progress_bar("syncing", len(keys)) as progress:

            def finished(sync: SyncResult) -> None:
                if sync.error is not None:
                    failures.append(sync.error)
                    report_error(f"{sync.key}: {_message(sync.error)}")
                progress.step()

            await sync_once(runtime, keys, finished)
    write_line(f"{len(keys) - len(failures)} of {len(keys)} synced")
    if failures:
        raise typer.Exit(min(map(exit_status, failures)))


def _unpaused(runtime: ControllerRuntime) -> list[str]:
    """Return the keys of all primaries that are not paused, with a notice about the others."""
    keys, paused = primaries(runtime), runtime.status().paused
    if paused:
        count = "1 paused key is" if len(paused) == 1 else f"{len(paused)} paused keys are"
        write_notice(f"{count} not synced")
    return [key for key in keys if key not in paused]


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, NatsctlError) else f"{type(error).__name__}: {error}"
