"""`natsctl doctor`: checks the set-up of NATS, the cluster and the controllers."""

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.controller_options import controller_option
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.exit_codes import FAILED
from natsctl.cli.framework.options import with_cluster, with_options
from natsctl.cli.output.printing import OUTPUT_OPTION, write_json
from natsctl.cli.output.terminal import coloured, write_line
from natsctl.daemon.doctor.doctor import examine
from natsctl.daemon.doctor.finding import CheckFinding, Result
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.jetstream.options import NatsOptions
from natsctl.kubernetes.options import KubeOptions

WIDTH = 8
"""Characters of the first column: the longest result and a space."""

_COLOURS = {
    Result.OK: typer.colors.GREEN,
    Result.WARNING: typer.colors.YELLOW,
    Result.FAILED: typer.colors.RED,
}

app = App()


@app.add(
    "natsctl doctor --controller controllers.webapps:WebApps",
    "natsctl doctor -s hub:4222 --creds hub.creds",
    "natsctl doctor -c fleet.sites:Sites --leader-elect",
    "natsctl doctor -c fleet.sites:Sites -o json | jq '.[] | select(.result != \"ok\")'",
)
@connected
@with_cluster
@with_options(
    "settings",
    *("controllers.leader_elect", "controllers.shard"),
    "controllers.lease_ttl_s",
    value=lambda effective: effective.settings.controllers,
)
async def doctor(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    settings: ControllerSettings,
    controller: Annotated[
        list[str] | None,
        controller_option("Controller class whose needs are checked; repeatable"),
    ] = None,
    output: Annotated[Literal["table", "json"], OUTPUT_OPTION] = "table",
) -> None:
    """Check everything that controllers need.

    The checks cover NATS and JetStream with their limits, buckets, permissions and clock, and the
    requests of this user to running daemons. They cover leases if --leader-elect, --shard or
    a setting uses them. They cover a Kubernetes cluster with its kinds and
    permissions if a controller has Kubernetes kinds. Each problem comes with advice. Nothing is
    changed.

    The exit code is 1 if a check failed. A warning does not change the exit code.
    """
    controllers = [load_runnable_controller(path) for path in controller or ()]
    findings: list[CheckFinding] = []
    async for finding in examine(controllers, options, cluster, settings=settings):
        findings.append(finding)
        if output == "table":
            _write(finding)
    if output == "json":
        write_json(findings)
    else:
        write_line(_summary(findings))
    if any(finding.result is Result.FAILED for finding in findings):
        raise typer.Exit(FAILED)


def _write(finding: CheckFinding) -> None:
    label = finding.result.value.ljust(WIDTH)
    result = coloured(label, _COLOURS[finding.result], sys.stdout)
    write_line(f"{result}{finding.check}: {finding.found}")
    if finding.advice:
        write_line(f"{' ' * WIDTH}→ {finding.advice}")


def _summary(findings: Sequence[CheckFinding]) -> str:
    counts = {result: sum(finding.result is result for finding in findings) for result in Result}
    return ", ".join(f"{count} {result.value}" for result, count in counts.items())
