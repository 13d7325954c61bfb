"""`natsctl plan`: shows what a controller would do, and changes nothing."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.controller_options import controller_option
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.hook_options import with_hook
from natsctl.cli.framework.names import SomeNamesArgument
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
from natsctl.core.sync import current_key
from natsctl.core.task_group import for_each
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.verbs import Verb
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.operator import CONTROLLER_NAME, Guest
from natsctl.daemon.plan import MadePlan, make_plan
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.stores import connect
from natsctl.model.kinds import Kind
from natsctl.model.plans.plan import Plan
from natsctl.operate.names import Name, own_keys, parse_names

ASKED_MAX = 1_000  # newly failing keys that the daemons are asked about
ASKED_AT_ONCE = 20

app = App()


@app.add(
    "natsctl plan -c controllers.webapps:WebApps",
    "natsctl plan greetings/shop -c controllers.greetings:Greetings -o diff",
    "natsctl plan -c controllers.greetings:Greetings -o json | jq .summary",
    "natsctl plan -c fleet.sites:Sites --exit-code",
    "natsctl plan greetings shop -c greetings",
)
@with_hook
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
    all_: Annotated[
        bool, typer.Option("--all", help="Show each key, also if many change alike")
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit with status 10 if there are changes, and with 11 if a key newly fails",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log as a daemon would, with tracebacks")
    ] = False,
) -> None:
    """Show what a controller would do.

    The real handler runs for each key over the present objects, and nothing is stored: not in NATS,
    and not in Kubernetes, whose server checks each write as a dry run. The signs are + for an
    object that is created, ~ for one that changes, - for one that is deleted, and ! for an error.
    Keys that change or fail alike are shown as one group; --all shows each.

    If --controller is a name as natsctl status shows it, a daemon that runs the controller makes
    the plan, for a few keys and within a time limit. The command then needs neither the code nor
    access to the stores.

    The exit status is 1 if a key fails that didn't fail before the plan.
    """
    all_keys = "; without a name, the plan is of all keys"
    selected = parse_names(objects, otherwise=all_keys) if objects else []
    if CONTROLLER_NAME.fullmatch(controller):
        made_plan = await _plan_in_daemon(stores, controller, selected, output)
    else:
        made_plan = await _plan_here(stores, controller, selected, verbose=verbose)
    write_missing(made_plan)
    write_plan(made_plan, output, each=all_)
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
        plan = plan.compared(await _failing_in_daemons(daemons, plan))
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
            made_plan = await make_plan(
                planned_controller,
                stores=planned(nats=nats, kube=kube, key_of=current_key),
                keys=keys,
                owner_names=stores.owner_names,
                progress=progress,
            )
        if not made_plan.plan.summary.newly_failed:
            return made_plan
        try:
            daemons = await Daemons.find(nats.connection)
        except NatsctlError:  # without a daemon, its records say which keys fail
            return made_plan
        failing = await _failing_in_daemons(daemons, made_plan.plan)
        return replace(made_plan, plan=made_plan.plan.compared(failing))


async def _failing_in_daemons(daemons: Daemons, plan: Plan) -> set[str]:
    """Return which keys that newly fail in the plan fail in a daemon, or are invalid there."""
    newly = [key for key, own in plan.keys.items() if key and own.error and not own.failed_before]
    failing: set[str] = set()

    async def ask(key: str) -> None:
        with suppress(NatsctlError):
            for answer in await daemons.explain(plan.controller, key):
                if answer.planned is None and (answer.invalid or answer.failures):
                    failing.add(key)

    if daemons.offers(Verb.EXPLAIN, plan.controller):
        await for_each(newly[:ASKED_MAX], ask, workers=ASKED_AT_ONCE)
    return failing


def _primary_kinds(controller: Controller | Guest) -> Sequence[Kind[Any]]:
    if isinstance(controller, Controller):
        return [only_primary(type(controller)).kind]
    return controller.kinds
