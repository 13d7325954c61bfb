"""`natsctl health`: checks the health of the daemon on this machine, or in this container."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, complete
from natsctl.cli.framework.exit_codes import FAILED
from natsctl.cli.framework.options import with_options
from natsctl.cli.output.terminal import write_text
from natsctl.daemon.http.probe import probe
from natsctl.daemon.settings.address import Address
from natsctl.daemon.settings.settings import HttpSettings
from natsctl.errors import UsageError
from natsctl.telemetry.escaping import escaped

app = App()


@app.add(
    "natsctl health --listen :8080",
    "natsctl health --ready",
    "NATSCTL_LISTEN=127.0.0.1:9090 natsctl health",
)
@with_options("http", "http", value=lambda effective: effective.settings.http)
def health(
    *,
    http: HttpSettings,
    ready: Annotated[
        bool,
        typer.Option("--ready", help="Check readiness (/readyz) instead of liveness (/livez)"),
    ] = False,
) -> None:
    """Check the health of the daemon on this machine.

    The address is the --listen address of natsctl run, from the flag, the environment or the
    settings file. The exit code is 1 if a check fails or no daemon answers. The output lists the
    checks.
    """
    if http.listen is None:
        raise UsageError(
            "the address of the daemon is not set: give --listen HOST:PORT, or set NATSCTL_LISTEN, "
            "for natsctl run and natsctl health"
        )
    complete(_check(Address.parse(http.listen), "/readyz" if ready else "/livez"))


async def _check(address: Address, path: str) -> None:
    answer = await probe(address, f"{path}?verbose")
    write_text(escaped(answer.text.rstrip(), keep="\n"))
    if not answer.passed:
        raise typer.Exit(FAILED)
