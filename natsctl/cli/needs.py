"""`natsctl doctor`, `rbac` and `hook-schema`: what controllers need, and whether it's there."""

import sys
from typing import Annotated, Literal

import typer

from natsctl.cli.command import (
    FAILED,
    App,
    ControllerClasses,
    load_runnable_controller,
    settings,
)
from natsctl.cli.output import (
    JSON,
    TABLE,
    TABLES,
    YAML,
    OutputOption,
    output_option,
    write_json,
    write_result,
    write_yaml,
)
from natsctl.cli.terminal import coloured, write_line, write_notice, write_text
from natsctl.controller.hook import hook_schemas
from natsctl.daemon.doctor.doctor import examine
from natsctl.daemon.doctor.finding import CheckFinding, Result
from natsctl.daemon.nats_permissions import nats_configuration
from natsctl.daemon.rbac import ServiceAccount, manifests, names_of, needs, roles
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions

app = App()

WIDTH = 8  # of the first column: the longest result and a space
_COLOURS = {
    Result.OK: typer.colors.GREEN,
    Result.WARNING: typer.colors.YELLOW,
    Result.FAILED: typer.colors.RED,
}


@app.add(
    "natsctl doctor --controller controllers.webapps:WebApps",
    "natsctl doctor -s hub:4222 --creds hub.creds",
    "natsctl doctor -c fleet.sites:Sites --leader-elect",
    sections=("controllers.leader_elect", "controllers.shard", "controllers.lease_ttl_s"),
    controller="-c M:C | Controller class whose needs are checked; repeatable",
)
async def doctor(
    options: NatsOptions, *, controller: list[str] | None = None, output: OutputOption = TABLE
) -> None:
    """Check everything that controllers need.

    That's NATS with its limits, buckets, permissions and clock, running daemons, leases if they are
    used, and the cluster of a controller with Kubernetes kinds. Each problem comes with advice, and
    nothing is changed. The exit code is 1 if a check failed.
    """
    controllers = [load_runnable_controller(path) for path in controller or ()]
    findings: list[CheckFinding] = []
    effective = settings().settings
    cluster, configured = effective.cluster, effective.controllers
    async for finding in examine(controllers, options, cluster, settings=configured):
        findings.append(finding)
        if output in TABLES:
            label = finding.result.value.ljust(WIDTH)
            result = coloured(label, _COLOURS[finding.result], sys.stdout)
            write_line(f"{result}{finding.check}: {finding.found}")
            if finding.advice:
                write_line(f"{' ' * WIDTH}→ {finding.advice}")
    results = [finding.result for finding in findings]
    summary = ", ".join(f"{results.count(one)} {one.value}" for one in Result)
    names = [finding.check for finding in findings]
    write_result(findings, output, names=names, table=lambda: write_line(summary))
    if Result.FAILED in results:
        raise typer.Exit(FAILED)


@app.add(
    "natsctl rbac -c controllers.webapps:WebApps --service-account natsctl | kubectl apply -f -",
    "natsctl rbac --nats -c controllers.greetings:Greetings > natsctl-users.conf",
    nats="Print the users of a nats-server: one that runs them, operator, viewer",
    name="NAME | Name of the roles; else natsctl and the controllers'",
    service_account="NAME | Service account that gets the roles",
    namespace="NAME | Namespace of the service account; else default",
)
async def rbac(  # noqa: C901 - one straight line
    *,
    controller: ControllerClasses,
    output: Annotated[str, output_option(without=TABLES)] = YAML,
    nats: bool = False,
    name: str | None = None,
    service_account: str | None = None,
    namespace: str | None = None,
) -> None:
    """Print the permissions that controllers need, in Kubernetes or in NATS.

    For Kubernetes, it's a Role for each namespace that the slots name, and a ClusterRole if a slot
    names none. The cluster is asked for the resource names of kinds that are not built in; without
    an answer, they're guessed and marked. For NATS, it's a block for the server's configuration.
    """
    if namespace is not None and service_account is None:
        raise UsageError("--namespace needs --service-account")
    controllers = [load_runnable_controller(path) for path in controller]
    if nats:
        if service_account is not None or output != YAML:
            raise UsageError("--nats prints a server's configuration: leave the other options out")
        for line in nats_configuration(controllers, settings().settings):
            write_text(line)
        return
    account = None
    if service_account is not None:
        account = ServiceAccount(service_account, namespace or "default")
    role_name = name or "-".join(["natsctl", *(one.name for one in controllers)])
    needed = needs(controllers)
    names = await names_of((need.kind for need in needed), settings().settings.cluster)
    items = manifests(roles(needed, names, identity=True), role_name, account)
    if not items:
        write_notice("the controllers have no Kubernetes kinds: no permissions are needed")
    for (_, kind), resource in sorted(names.items()):
        if resource.guess:
            guess = (
                f"{resource.plural} is a guess for the resource name of {kind} in "
                f"{resource.group}: {' '.join(resource.guess.split())}"
            )
            write_line(f"# {guess}") if output == YAML else write_notice(guess)
    if output == YAML and items:
        write_yaml(items)
    elif output != YAML:
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        role_names = [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in items]
        write_result(listed if output == JSON else items, output, names=role_names)


@app.add(
    "natsctl hook-schema",
    "natsctl hook-schema answer > answer.schema.json",
    part="@[request|answer] | One of them, instead of both",
)
def hook_schema(*, part: Literal["request", "answer"] | None = None) -> None:
    """Print the JSON Schemas of what a hook is asked and what it answers.

    Generate types for your language from them, or check your service's answers in its tests.
    """
    schemas = hook_schemas()
    write_json(schemas if part is None else schemas[part])
