"""`natsctl dev`: controllers that follow their source."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.cluster import clustered, words
from natsctl.cli.command import Command, commands, complete, examples
from natsctl.cli.connection import ENVIRONMENT
from natsctl.cli.controllers import (
    ControllersOption,
    LogLevel,
    LogLevelOption,
    PortOption,
    ResyncOption,
    WorkersOption,
)
from natsctl.daemon.logs import log_to_stderr
from natsctl.daemon.private import private_server, while_it_runs
from natsctl.daemon.reload import reloading
from natsctl.daemon.signals import until_signalled
from natsctl.kube.options import KubeOptions

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl dev --controller controllers.greetings:Greetings",
        "natsctl dev -c fleet.sites:Sites --log-level debug",
    ),
)
@clustered
def dev(
    *,
    cluster: KubeOptions | None,
    controller: ControllersOption,
    store_dir: Annotated[
        Path, typer.Option(help="where the private nats-server keeps its data")
    ] = Path(".natsctl"),
    port: PortOption = None,
    workers: WorkersOption = None,
    resync: ResyncOption = None,
    log_level: LogLevelOption = LogLevel.INFO,
) -> None:
    """Run controllers beside a private nats-server, anew at every change.

    Every change of a Python file in the current folder starts the controllers again; one with a
    mistake in it is shown, and the next good one is taken. What the server keeps stays from one
    time to the next.
    """
    log_to_stderr("text", log_level.value)
    command = ["run", "--end-with-parent", "--log-level", log_level.value, *words(cluster)]
    for path in controller:
        command += ["--controller", path]
    if workers is not None:
        command += ["--workers", str(workers)]
    if resync is not None:
        command += ["--resync", str(resync)]
    complete(until_signalled(_dev(command, store_dir, port)))


async def _dev(command: list[str], store_dir: Path, port: int | None) -> None:
    environ = {name: text for name, text in os.environ.items() if name not in ENVIRONMENT}
    environ["PYTHONDONTWRITEBYTECODE"] = "1"  # that of a file saved twice in a second is stale
    async with private_server(store_dir, port) as server:
        program = [sys.executable, "-m", "natsctl.cli", *command, "--server", server.url]
        await while_it_runs(server, reloading(program, Path.cwd(), environ))
