"""`natsctl plan`: shows what a controller would do, and changes nothing."""

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.controller_options import controller_option
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.names import Name, SomeNamesArgument, own_keys, parse_names
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.operate.find_daemon import controller_with, find_daemons
from natsctl.cli.output.plans import (
    PlanOutput,
    exit_with_plan,
    planning_bar,
    write_missing,
    write_plan,
)
from natsctl.cli.output.terminal import write_notice
from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import only_primary
from natsctl.core.planning.planning_stores import planned
from natsctl.core.sync.calls import current_key
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.operator import CONTROLLER_NAME, Guest
from natsctl.daemon.plan import MadePlan, make_plan
from natsctl.errors import UsageError
from natsctl.jetstream.stores import connect
from natsctl.model.kinds import Kind

app = App()


@app.add(
    "natsctl plan -c controllers.webapps:WebApps",
    "natsctl plan greetings/shop -c controllers.greetings:Greetings -o diff",
    "natsctl plan -c controllers.greetings:Greetings -o json | jq .summary",
    "natsctl plan -c fleet.sites:Sites --exit-code",
    "natsctl plan greetings shop -c greetings",
)
@connected_to_stores
async def plan(
    stores: StoreOptions,
    *,
    controller: Annotated[
        str,
        controller_option(
            "Controller class as package.module:Name, or the name of a running controller"
        ),
    ],
    objects: SomeNamesArgument = None,
    output: Annotated[PlanOutput, typer.Option("--output", "-o", help="Output format")] = "tree",
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with status 10 if there are changes")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log as a daemon would, with tracebacks")
    ] = False,
) -> None:
    """Show what a controller would do.

    The real handler runs for each key over the present objects, and nothing is stored: not in NATS,
    and not in Kubernetes, whose server checks each write as a dry run. The signs are + for an
    object that is created, ~ for one that changes, - for one that is deleted, and ! for an error.

    If --controller is a name as natsctl status shows it, a daemon that runs the controller makes
    the plan, for a few keys and within a time limit. The command then needs neither the code nor
    access to the stores.

    The exit status is 1 if a key fails.
    """
    all_keys = "; without a name, the plan is of all keys"
    selected = parse_names(objects, otherwise=all_keys) if objects else []
    if CONTROLLER_NAME.fullmatch(controller):
        made_plan = await _plan_in_daemon(stores, controller, selected, output)
    else:
        made_plan = await _plan_here(stores, controller, selected, verbose=verbose)
    write_missing(made_plan)
    write_plan(made_plan, output)
    exit_with_plan(made_plan.plan, exit_code=exit_code)


async def _plan_in_daemon(
    stores: StoreOptions, controller: str, names: Sequence[Name], output: PlanOutput
) -> MadePlan:
    if output == "diff":
        raise UsageError("-o diff needs the controller's class: give --controller M:C")
    async with find_daemons(stores.nats) as daemons:
        for name in names:
            await controller_with(daemons, name, controller)
        keys = [name.key for name in names]
        plan = await daemons.plan_keys(daemons.controller(controller), keys)
    if plan.more:
        write_notice(f"the plan of the daemon has {plan.more} more actions")
    return MadePlan(plan, ())


async def _plan_here(
    stores: StoreOptions, controller: str, names: Sequence[Name], *, verbose: bool
) -> MadePlan:
    if not verbose:
        logging.getLogger("natsctl").setLevel(logging.CRITICAL)
    planned_controller = load_runnable_controller(controller)
    keys = own_keys(_primary_kinds(planned_controller), names)
    async with (
        cluster_for([planned_controller], stores.cluster) as kube,
        connect(stores.nats) as nats,
    ):
        with planning_bar() as progress:
            return await make_plan(
                planned_controller,
                stores=planned(nats=nats, kube=kube, key_of=current_key),
                keys=keys,
                owner_names=stores.owner_names,
                progress=progress,
            )


def _primary_kinds(controller: Controller | Guest) -> Sequence[Kind[Any]]:
    if isinstance(controller, Controller):
        return [only_primary(type(controller)).kind]
    return controller.kinds
