"""`natsctl rbac`: the permissions that controllers need in a cluster."""

from enum import Enum
from typing import Annotated

import typer

from natsctl.cli.framework.cluster_options import clustered
from natsctl.cli.framework.command import Command, commands, complete, examples
from natsctl.cli.framework.controllers import ControllersOption, runnable_of
from natsctl.cli.output.printing import line, write_json, write_yaml
from natsctl.cli.output.terminal import say
from natsctl.controller.controller import Controller
from natsctl.daemon.operator import Guest
from natsctl.daemon.rbac import ServiceAccount, manifests, needs, roles
from natsctl.daemon.resource_names import names_of
from natsctl.errors import UsageError
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.kubernetes.resources.names import ResourceName
from natsctl.model.manifests import Manifest

app = commands()


class Format(Enum):
    """How manifests are written."""

    YAML = "yaml"
    JSON = "json"


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl rbac --controller controllers.webapps:WebApps",
        "natsctl rbac -c controllers.webapps:WebApps --service-account natsctl --namespace ops",
        "natsctl rbac -c controllers.webapps:WebApps | kubectl apply -f -",
    ),
)
@clustered
def rbac(
    *,
    cluster: KubeOptions | None,
    controller: ControllersOption,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="how it is written")
    ] = Format.YAML,
    name: Annotated[
        str | None, typer.Option(help="of the roles; by default natsctl and the controllers' names")
    ] = None,
    service_account: Annotated[
        str | None, typer.Option(metavar="NAME", help="whom to give the roles to, as well")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="the service account's; `default` where it is not given")
    ] = None,
) -> None:
    """Show the least permissions that controllers need in a cluster.

    A Role for each namespace that their slots name, a ClusterRole where a slot names none. The
    cluster is asked only what kinds are called that not every cluster has; where it cannot be
    asked, their names are guessed, and a comment says so.
    """
    if namespace is not None and service_account is None:
        raise UsageError("--namespace is the service account's: give --service-account as well")
    account = None
    if service_account is not None:
        account = ServiceAccount(service_account, namespace or "default")
    controllers = [runnable_of(path) for path in controller]
    complete(_show(controllers, cluster, name, account, output))


async def _show(
    controllers: list[Controller | Guest],
    cluster: KubeOptions | None,
    name: str | None,
    account: ServiceAccount | None,
    output: Format,
) -> None:
    needed = needs(controllers)
    names = await names_of((need.kind for need in needed), cluster)
    called = name or "-".join(["natsctl", *(each.name for each in controllers)])
    found = manifests(roles(needed, names), called, account)
    if not found:
        say("nothing of a cluster is made or read: no permissions are needed")
    told = [_told(kind, at) for (_, kind), at in sorted(names.items()) if at.guess]
    _write(found, told, output)


def _write(found: list[Manifest], told: list[str], output: Format) -> None:
    if output is Format.JSON:
        for guess in told:
            say(guess)
        write_json({"apiVersion": "v1", "kind": "List", "items": found})
    else:
        for guess in told:
            line(f"# {guess}")
        write_yaml(found)


def _told(kind: str, name: ResourceName) -> str:
    why = " ".join(name.guess.split())
    return f"{name.plural} is a guess at what {kind} of {name.group} is called: {why}"
