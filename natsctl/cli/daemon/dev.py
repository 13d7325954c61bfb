"""`natsctl dev`: controllers that follow their source."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, complete, examples
from natsctl.cli.framework.controllers import (
    ControllersOption,
    PortOption,
)
from natsctl.cli.framework.options import handed, words
from natsctl.daemon.embedded_server import private_server, while_it_runs
from natsctl.daemon.observe.logs import log_to_stderr
from natsctl.daemon.reload import reloading
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.settings.settings import LogSettings
from natsctl.daemon.signals import until_signalled

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl dev --controller controllers.greetings:Greetings",
        "natsctl dev -c fleet.sites:Sites --log-level debug",
    ),
)
@handed("effective", "kube", "controllers", "logs.level", of=lambda effective: effective)
def dev(
    *,
    effective: Effective,
    controller: ControllersOption,
    store_dir: Annotated[
        Path, typer.Option(help="where the private nats-server keeps its data")
    ] = Path(".natsctl"),
    port: PortOption = None,
) -> None:
    """Run controllers beside a private nats-server, anew at every change.

    Every change of a Python file in the current folder starts the controllers again; one with a
    mistake in it is shown, and the next good one is taken. What the server keeps stays from one
    time to the next.
    """
    log_to_stderr(LogSettings(level=effective.settings.logs.level))
    command = ["run", "--end-with-parent", "--log-format", "text", *words(effective)]
    for path in controller:
        command += ["--controller", path]
    complete(until_signalled(_dev(command, store_dir, port)))


async def _dev(command: list[str], store_dir: Path, port: int | None) -> None:
    # the code of a file that is saved twice in a second would be stale
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    async with private_server(store_dir, port) as server:
        program = [sys.executable, "-m", "natsctl.cli", *command, "--server", server.url]
        await while_it_runs(server, reloading(program, Path.cwd(), environ))
