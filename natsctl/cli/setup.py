"""`natsctl config`, `doctor`, `health`, `rbac` and `hook-schema`."""

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer

from natsctl.cli.arguments import (
    CLASS_HELP,
    ControllersOption,
    controller_option,
    load_runnable_controller,
    with_hook,
)
from natsctl.cli.command import FAILED, App, complete, connected, settings
from natsctl.cli.output import (
    JSON,
    TABLE,
    WIDE,
    YAML,
    OutputOption,
    output_option,
    write_json,
    write_result,
    write_table,
    write_yaml,
)
from natsctl.cli.terminal import coloured, write_line, write_notice, write_text
from natsctl.controller.controller import Controller
from natsctl.controller.hook import hook_schemas
from natsctl.daemon.doctor.doctor import examine
from natsctl.daemon.doctor.finding import CheckFinding, Result
from natsctl.daemon.http import probe
from natsctl.daemon.nats_permissions import nats_configuration
from natsctl.daemon.operator import Guest
from natsctl.daemon.rbac import ServiceAccount, manifests, names_of, needs, roles
from natsctl.daemon.settings.address import Address
from natsctl.daemon.settings.load import Effective
from natsctl.daemon.settings.settings import BY_NAME, FIELDS, Setting, text_of_value
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions, redacted
from natsctl.kubernetes.names import ResourceName
from natsctl.kubernetes.options import KubeOptions
from natsctl.telemetry.escaping import escaped
from natsctl.telemetry.hiding import MASK, hidden

app = App()


class SettingInEffect(msgspec.Struct, frozen=True):
    """A setting with its value in effect; a secret is masked."""

    setting: str
    value: Any
    source: str
    default: str


@app.add(
    "natsctl config --config production.toml",
    "natsctl config --context hub",
    "natsctl config -o json | jq '.[] | select(.source != \"default\")'",
    settings=("controllers", "logs", "http", "traces"),
    quiet=True,
)
def config(*, output: OutputOption = TABLE) -> None:
    """Print the settings in effect and the source of each.

    The source is a flag, a variable, a file, a NATS context, or the default. Flags
    override variables, variables override the file, and the file overrides the context that nats
    context select selected. Secrets are masked.
    """
    effective = settings().with_context()
    shown = list(_in_effect(effective))
    names = (setting.setting for setting in shown)
    write_result(shown, output, names=names, table=lambda: _print(shown))
    effective.settings.check()


def _print(shown: Sequence[SettingInEffect]) -> None:
    headings = ["SETTING", "VALUE", "SOURCE"]
    rows = [[setting.setting, _cell(setting), setting.source] for setting in shown]
    write_table(headings, rows)


def _cell(setting: SettingInEffect) -> str:
    unset = setting.value is None or setting.value == []
    return setting.default if unset else text_of_value(setting.value)


def _in_effect(effective: Effective) -> Iterator[SettingInEffect]:
    for field in FIELDS:
        setting = BY_NAME[field]
        value = _masked(setting, effective.value(field))
        yield SettingInEffect(field, value, effective.source(field), setting.default)


def _masked(setting: Setting, value: object) -> object:
    match value:
        case None:
            return None
        case _ if setting.secret:
            return MASK
        case tuple():
            return [redacted(url) for url in NatsOptions(servers=value).urls] if value else []
        case str():
            return hidden(value)
        case _:
            return value


WIDTH = 8
"""Characters of the first column: the longest result and a space."""

_COLOURS = {
    Result.OK: typer.colors.GREEN,
    Result.WARNING: typer.colors.YELLOW,
    Result.FAILED: typer.colors.RED,
}


@app.add(
    "natsctl doctor --controller controllers.webapps:WebApps",
    "natsctl doctor -s hub:4222 --creds hub.creds",
    "natsctl doctor -c fleet.sites:Sites --leader-elect",
    settings=("controllers.leader_elect", "controllers.shard", "controllers.lease_ttl_s"),
)
@connected
async def doctor(
    options: NatsOptions,
    *,
    controller: Annotated[
        list[str] | None,
        controller_option("Controller class whose needs are checked; repeatable"),
    ] = None,
    output: OutputOption = TABLE,
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
        if output in (TABLE, WIDE):
            _write(finding)
    names = [finding.check for finding in findings]
    write_result(findings, output, names=names, table=lambda: write_line(_summary(findings)))
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


@app.add(
    "natsctl health --listen :8080",
    "natsctl health --ready",
    "NATSCTL_LISTEN=127.0.0.1:9090 natsctl health",
    settings=("http",),
)
def health(
    *,
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
    http = settings().settings.http
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


@app.add(
    "natsctl rbac -c controllers.webapps:WebApps --service-account natsctl | kubectl apply -f -",
    "natsctl rbac --nats -c controllers.greetings:Greetings > natsctl-users.conf",
)
def rbac(
    *,
    controller: ControllersOption,
    output: Annotated[str, output_option(without=(TABLE, WIDE))] = YAML,
    nats: Annotated[
        bool,
        typer.Option(
            "--nats", help="Print the users of a nats-server: one that runs them, operator, viewer"
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the roles; else natsctl and the controllers'"),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Service account to create and to bind to the roles"),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Namespace of the service account; else default"),
    ] = None,
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
    complete(_write_roles(controllers, settings().settings.cluster, name, account, output))


async def _write_roles(
    controllers: list[Controller | Guest],
    cluster: KubeOptions | None,
    name: str | None,
    account: ServiceAccount | None,
    output: str,
) -> None:
    needed = needs(controllers)
    names = await names_of((need.kind for need in needed), cluster)
    role_name = name or "-".join(["natsctl", *(controller.name for controller in controllers)])
    items = manifests(roles(needed, names, identity=True), role_name, account)
    if not items:
        write_notice("the controllers have no Kubernetes kinds: no permissions are needed")
    guesses = [_guess(kind, name) for (_, kind), name in sorted(names.items()) if name.guess]
    for guess in guesses:
        if output == YAML:
            write_line(f"# {guess}")
        else:
            write_notice(guess)
    if output == YAML:
        write_yaml(items)
    else:
        whole = {"apiVersion": "v1", "kind": "List", "items": items} if output == JSON else items
        items_names = [f"{item['kind'].lower()}/{item['metadata']['name']}" for item in items]
        write_result(whole, output, names=items_names)


def _guess(kind: str, name: ResourceName) -> str:
    reason = " ".join(name.guess.split())
    return f"{name.plural} is a guess for the resource name of {kind} in {name.group}: {reason}"


Part = Literal["request", "answer"]


@app.add(
    "natsctl hook-schema",
    "natsctl hook-schema answer > answer.schema.json",
)
def hook_schema(
    *,
    part: Annotated[
        Part | None, typer.Argument(metavar="[request|answer]", help="One of them, instead of both")
    ] = None,
) -> None:
    """Print the JSON Schemas of what a hook is asked and what it answers.

    Generate types for your language from them, or check your service's answers in its tests.
    """
    schemas = hook_schemas()
    write_json(schemas if part is None else schemas[part])


@app.add("natsctl -s hub:4222 status", settings=("controllers", "logs", "http", "traces"))
@with_hook
def options(
    *, controller: Annotated[list[str], controller_option(CLASS_HELP, hidden=True)]
) -> None:
    """Show the options of every command, such as the connection.

    Those of the connection, of Kubernetes and --config stand before or after any command. The
    others are those of natsctl run; a hook is for simulate and plan too. Each is also a variable,
    and a line of the settings file: natsctl config shows the source of each.
    """
