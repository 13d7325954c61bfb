"""`natsctl rbac`: prints the Kubernetes permissions that controllers need."""

from typing import Annotated, Literal

import typer

from natsctl.cli.framework.command import App, complete
from natsctl.cli.framework.controller_options import ControllersOption
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.options import with_cluster
from natsctl.cli.output.printing import OUTPUT_OPTION, write_json, write_yaml
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.controller.controller import Controller
from natsctl.daemon.operator import Guest
from natsctl.daemon.rbac import ServiceAccount, manifests, needs, roles
from natsctl.daemon.resource_names import names_of
from natsctl.errors import UsageError
from natsctl.kubernetes.names import ResourceName
from natsctl.kubernetes.options import KubeOptions

app = App()

Format = Literal["yaml", "json"]


@app.add(
    "natsctl rbac --controller controllers.webapps:WebApps",
    "natsctl rbac -c controllers.webapps:WebApps --service-account natsctl --namespace ops",
    "natsctl rbac -c controllers.webapps:WebApps | kubectl apply -f -",
)
@with_cluster
def rbac(
    *,
    cluster: KubeOptions | None,
    controller: ControllersOption,
    output: Annotated[Format, OUTPUT_OPTION] = "yaml",
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the roles [default: natsctl and the controllers' names]"
        ),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Service account to create and to bind to the roles"),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Namespace of the service account [default: default]"),
    ] = None,
) -> None:
    """Print the Kubernetes permissions that controllers need.

    The output has a Role for each namespace that the slots name, and a ClusterRole if a slot names
    no namespace. It also permits to read the namespace kube-system, by which daemons tell clusters
    apart. The command asks the cluster for the resource names of kinds that are not built
    in. If the cluster does not answer, the command guesses the names and marks each guess with a
    comment.
    """
    if namespace is not None and service_account is None:
        raise UsageError("--namespace needs --service-account")
    account = None
    if service_account is not None:
        account = ServiceAccount(service_account, namespace or "default")
    controllers = [load_runnable_controller(path) for path in controller]
    complete(_write(controllers, cluster, name, account, output))


async def _write(
    controllers: list[Controller | Guest],
    cluster: KubeOptions | None,
    name: str | None,
    account: ServiceAccount | None,
    output: Format,
) -> None:
    needed = needs(controllers)
    names = await names_of((need.kind for need in needed), cluster)
    role_name = name or "-".join(["natsctl", *(controller.name for controller in controllers)])
    items = manifests(roles(needed, names, identity=True), role_name, account)
    if not items:
        write_notice("the controllers have no Kubernetes kinds: no permissions are needed")
    guesses = [_guess(kind, name) for (_, kind), name in sorted(names.items()) if name.guess]
    if output == "json":
        for guess in guesses:
            write_notice(guess)
        write_json({"apiVersion": "v1", "kind": "List", "items": items})
    else:
        for guess in guesses:
            write_line(f"# {guess}")
        write_yaml(items)


def _guess(kind: str, name: ResourceName) -> str:
    reason = " ".join(name.guess.split())
    return f"{name.plural} is a guess for the resource name of {kind} in {name.group}: {reason}"
