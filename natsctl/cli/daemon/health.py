"""`natsctl health`: whether the daemon of this machine, or this container, is well."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, complete, examples
from natsctl.cli.framework.exit_codes import FAILED
from natsctl.cli.framework.options import handed
from natsctl.cli.output.terminal import emit
from natsctl.daemon.http.client import probe
from natsctl.daemon.settings.address import Address
from natsctl.daemon.settings.settings import HttpSettings
from natsctl.errors import UsageError
from natsctl.telemetry.escaping import escaped

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl health --listen :8080",
        "natsctl health --ready",
        "NATSCTL_LISTEN=127.0.0.1:9090 natsctl health",
    ),
)
@handed("http", "http", of=lambda effective: effective.settings.http)
def health(
    *,
    http: HttpSettings,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="ask whether it can work now: /readyz instead of /livez"),
    ] = False,
) -> None:
    """Ask the daemon that listens on this machine how it is.

    The address is what `natsctl run` was told, by a flag, a variable or the file. The exit code is
    1 where something is wrong with the daemon, or nobody answers; what is wrong is shown.
    """
    if http.listen is None:
        raise UsageError(
            "where does the daemon listen? Say --listen HOST:PORT, or set NATSCTL_LISTEN, to both"
        )
    complete(_tell(Address.parse(http.listen), "/readyz" if ready else "/livez"))


async def _tell(address: Address, path: str) -> None:
    answer = await probe(address, f"{path}?verbose")
    emit(escaped(answer.text.rstrip(), keep="\n"))  # `printing` would load what talks to NATS
    if not answer.passed:
        raise typer.Exit(FAILED)
