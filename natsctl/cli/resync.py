"""`natsctl resync`: keys, once, here and now."""

import logging
from typing import Annotated

import typer

from natsctl.cli.cluster import clustered
from natsctl.cli.command import Command, commands, connected, examples
from natsctl.cli.controllers import ControllerOption, WorkersOption, controller_of
from natsctl.cli.failures import say_error, status
from natsctl.cli.printing import line
from natsctl.cli.terminal import Progress
from natsctl.cli.upkeep import connected_to
from natsctl.daemon.once import Visited, primaries, sync_once
from natsctl.errors import NatsctlError
from natsctl.kube.options import KubeOptions
from natsctl.kv.codec import check_key
from natsctl.kv.options import NatsOptions

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl resync --controller controllers.greetings:Greetings",
        "natsctl resync -c controllers.greetings:Greetings shop market --verbose",
    ),
)
@connected
@clustered
async def resync(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    controller: ControllerOption,
    keys: Annotated[
        list[str] | None, typer.Argument(help="primaries; all by default", metavar="[KEY]...")
    ] = None,
    workers: WorkersOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="show where each failure comes from")
    ] = False,
) -> None:
    """Sync keys once, here and now.

    Calls the controller's sync handler in this process, whether or not a daemon runs beside it.
    Failures are told at the end of their line, and nothing is retried.
    """
    if not verbose:
        for name in ("reports", "informer"):  # what they tell is told below, in a line each
            logging.getLogger(f"natsctl.core.{name}").setLevel(logging.CRITICAL)
    work = controller_of(controller)
    work.workers = work.workers if workers is None else workers
    named = [check_key(key) for key in keys or ()]
    failures: list[Exception] = []
    async with connected_to(work, options, cluster) as runtime:
        wanted = list(dict.fromkeys(named)) or primaries(runtime)
        with Progress("syncing", len(wanted)) as progress:

            def tell(visited: Visited) -> None:
                if visited.error is not None:
                    progress.clear()
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
