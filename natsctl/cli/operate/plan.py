"""`natsctl plan`: shows what a controller would do, and changes nothing."""

import logging
from collections.abc import Sequence
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.controller_options import controller_option
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.operate.find_daemon import KeysOrAllArgument, find_daemons
from natsctl.cli.output.plans import (
    PlanOutput,
    exit_with_plan,
    planning_bar,
    write_missing,
    write_plan,
)
from natsctl.cli.output.terminal import write_notice
from natsctl.core.planning.planning_stores import planned
from natsctl.core.sync.calls import current_key
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.operator import CONTROLLER_NAME
from natsctl.daemon.plan import MadePlan, make_plan
from natsctl.errors import UsageError
from natsctl.jetstream.stores import connect
from natsctl.model.keys import check_keys

app = App()


@app.add(
    "natsctl plan -c controllers.webapps:WebApps",
    "natsctl plan -c controllers.greetings:Greetings shop -o diff",
    "natsctl plan -c controllers.greetings:Greetings -o json | jq .summary",
    "natsctl plan -c fleet.sites:Sites --exit-code",
    "natsctl plan -c greetings shop",
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
    keys: KeysOrAllArgument = None,
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
    selected = check_keys(keys or ())
    if CONTROLLER_NAME.fullmatch(controller):
        made_plan = await _plan_in_daemon(stores, controller, selected, output)
    else:
        made_plan = await _plan_here(stores, controller, selected, verbose=verbose)
    write_missing(made_plan)
    write_plan(made_plan, output)
    exit_with_plan(made_plan.plan, exit_code=exit_code)


async def _plan_in_daemon(
    stores: StoreOptions, controller: str, keys: Sequence[str], output: PlanOutput
) -> MadePlan:
    if output == "diff":
        raise UsageError("-o diff needs the controller's class: give --controller M:C")
    async with find_daemons(stores.nats) as daemons:
        plan = await daemons.plan_keys(daemons.controller(controller), keys)
    if plan.more:
        write_notice(f"the plan of the daemon has {plan.more} more actions")
    return MadePlan(plan, ())


async def _plan_here(
    stores: StoreOptions, controller: str, keys: Sequence[str], *, verbose: bool
) -> MadePlan:
    if not verbose:
        logging.getLogger("natsctl").setLevel(logging.CRITICAL)
    planned_controller = load_runnable_controller(controller)
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
