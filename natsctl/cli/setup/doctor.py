"""`natsctl doctor`: what is wrong with the set-up."""

import sys
from collections.abc import Sequence
from enum import Enum
from typing import Annotated

import typer

from natsctl.cli.framework.cluster_options import clustered
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.controllers import runnable_of
from natsctl.cli.framework.exit_codes import FAILED
from natsctl.cli.framework.options import handed
from natsctl.cli.output.printing import line, write_json
from natsctl.cli.output.terminal import coloured
from natsctl.daemon.doctor.doctor import examine
from natsctl.daemon.doctor.finding import Finding, Result
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.kubernetes.access.options import KubeOptions

WIDTH = 8  # of the longest result, and a space

_COLOURS = {
    Result.OK: typer.colors.GREEN,
    Result.WARNING: typer.colors.YELLOW,
    Result.FAILED: typer.colors.RED,
}

app = commands()


class Format(Enum):
    """How findings are written."""

    TABLE = "table"
    JSON = "json"


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl doctor --controller controllers.webapps:WebApps",
        "natsctl doctor -s hub:4222 --creds hub.creds",
        "natsctl doctor -c fleet.sites:Sites --leader-elect",
        "natsctl doctor -c fleet.sites:Sites -o json | jq '.[] | select(.result != \"ok\")'",
    ),
)
@connected
@clustered
@handed(
    "settings",
    *("controllers.leader_elect", "controllers.shard", "controllers.lease_ttl_s"),
    of=lambda effective: effective.settings.controllers,
)
async def doctor(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    settings: ControllerSettings,
    controller: Annotated[
        list[str] | None,
        typer.Option(
            "--controller", "-c", metavar="M:C", help="whose needs to check; may be repeated"
        ),
    ] = None,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="how it is written")
    ] = Format.TABLE,
) -> None:
    """Check everything that controllers need, and say what to do.

    NATS, JetStream, its limits, buckets, permissions and clock; whether a daemon can be asked, and
    by this user; leases, where --leader-elect, --shard or a setting wants them; a cluster, its
    kinds and permissions, where controllers have kinds of one. Nothing is changed anywhere. The
    exit code is 1 where something failed; what is a warning works.
    """
    controllers = [runnable_of(path) for path in controller or ()]
    found: list[Finding] = []
    async for finding in examine(controllers, options, cluster, settings=settings):
        found.append(finding)
        if output is Format.TABLE:
            _show(finding)
    if output is Format.JSON:
        write_json(found)
    else:
        line(_summary(found))
    if any(finding.result is Result.FAILED for finding in found):
        raise typer.Exit(FAILED)


def _show(finding: Finding) -> None:
    result = finding.result.value.ljust(WIDTH)
    line(
        f"{coloured(result, _COLOURS[finding.result], sys.stdout)}{finding.check}: {finding.found}"
    )
    if finding.advice:
        line(f"{' ' * WIDTH}→ {finding.advice}")


def _summary(found: Sequence[Finding]) -> str:
    count = {result: sum(each.result is result for each in found) for result in Result}
    return ", ".join(f"{count[result]} {result.value}" for result in Result)
