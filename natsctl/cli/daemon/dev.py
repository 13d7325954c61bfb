"""`natsctl dev`: runs controllers, and restarts them when their source changes."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, complete
from natsctl.cli.framework.controller_options import ControllersOption, PortOption
from natsctl.cli.framework.options import typed_options, with_options
from natsctl.daemon.embedded_server import private_server, while_it_runs
from natsctl.daemon.observe.logs import log_to_stderr
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.settings.settings import LogSettings
from natsctl.daemon.signals import until_signalled
from natsctl.errors import UsageError

app = App()


@app.add(
    "natsctl dev --controller controllers.greetings:Greetings",
    "natsctl dev -c fleet.sites:Sites --log-level debug",
)
@with_options("effective", "kube", "controllers", "logs.level", value=lambda effective: effective)
def dev(
    *,
    effective: Effective,
    controller: ControllersOption,
    store_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Data folder of the private nats-server")
    ] = Path(".natsctl"),
    port: PortOption = None,
) -> None:
    """Run controllers with a private nats-server, and restart them when their source changes.

    A change of a Python file in the current folder restarts the controllers. If the changed source
    has an error, the error is shown, and the next change restarts the controllers. The data of the
    server stays.
    """
    if find_spec("watchfiles") is None:
        raise UsageError("natsctl dev needs the extra reload: pip install 'natsctl[reload]'")
    log_to_stderr(LogSettings(level=effective.settings.logs.level))
    words = ["run", "--end-with-parent", "--log-format", "text", *typed_options(effective)]
    for path in controller:
        words += ["--controller", path]
    complete(until_signalled(_dev(words, store_dir, port)))


async def _dev(words: list[str], store_dir: Path, port: int | None) -> None:
    from natsctl.daemon.reload import reloading  # noqa: PLC0415 - an extra

    # without this, Python would run stale bytecode of a file that is saved twice in a second
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    async with private_server(store_dir, port) as server:
        program = [sys.executable, "-m", "natsctl", *words, "--server", server.url]
        await while_it_runs(server, reloading(program, Path.cwd(), environ))
