"""`natsctl plan`: shows what a controller would do, and changes nothing."""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from typing import Annotated

import typer
from msgspec import UNSET

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.controllers import load_controller
from natsctl.cli.framework.exit_codes import FAILED
from natsctl.cli.framework.options import with_cluster
from natsctl.cli.operate.local import with_owner_names
from natsctl.cli.output.differences import described, write_differences, write_signed, write_unified
from natsctl.cli.output.printing import write_json
from natsctl.cli.output.terminal import Progress as Bar
from natsctl.cli.output.terminal import progress_bar, write_line, write_notice, write_text
from natsctl.controller.slots.owners import OwnerNames
from natsctl.daemon.cluster import cluster_for
from natsctl.daemon.plan import MadePlan, Progress, make_plan
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.stores import connect
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.model.keys import check_key
from natsctl.model.plan import KeyPlan, Plan

CHANGES = 10
"""The exit status with `--exit-code` if the plan has changes."""


class PlanOutput(Enum):
    """An output format of a plan."""

    TREE = "tree"
    JSON = "json"
    DIFF = "diff"


app = App()


@app.add(
    "natsctl plan -c controllers.webapps:WebApps",
    "natsctl plan -c controllers.greetings:Greetings shop -o diff",
    "natsctl plan -c controllers.greetings:Greetings -o json | jq .summary",
    "natsctl plan -c fleet.sites:Sites --exit-code",
)
@connected
@with_cluster
@with_owner_names
async def plan(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    owner_names: OwnerNames,
    controller: Annotated[
        str,
        typer.Option(
            "--controller", "-c", metavar="M:C", help="Controller class as package.module:Name"
        ),
    ],
    keys: Annotated[
        list[str] | None,
        typer.Argument(help="Keys of primaries; without a key, all primaries", metavar="KEY"),
    ] = None,
    output: Annotated[
        PlanOutput, typer.Option("--output", "-o", help="Output format")
    ] = PlanOutput.TREE,
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

    The exit status is 1 if a key fails.
    """
    selected = list(dict.fromkeys(check_key(key) for key in keys or ()))
    if not verbose:
        logging.getLogger("natsctl").setLevel(logging.CRITICAL)
    planned_controller = load_controller(controller)
    async with (
        cluster_for([planned_controller], cluster) as kube,
        connect(options) as nats,
    ):
        with planning_bar() as progress:
            made = await make_plan(
                planned_controller,
                nats=nats,
                kube=kube,
                keys=selected,
                owner_names=owner_names,
                progress=progress,
            )
    write_plan(made, output)
    exit_with_plan(made.plan, exit_code=exit_code)


@contextmanager
def planning_bar() -> Iterator[Progress]:
    """Yield a function that shows the progress of a plan on a terminal."""
    with ExitStack() as stack:
        bars: list[Bar] = []

        def show(done: int, total: int) -> None:
            if not total:
                return
            if not bars:
                bars.append(stack.enter_context(progress_bar("planning", total)))
            while bars[0].done < min(done, total):
                bars[0].step()

        yield show


def write_plan(made: MadePlan, output: PlanOutput) -> None:
    """Write a plan."""
    match output:
        case PlanOutput.JSON:
            write_json(made.plan)
        case PlanOutput.DIFF:
            for change in made.changes:
                write_unified(f"{change.kind}/{change.key}", change.before, change.after)
            _write_errors(made.plan)
            write_notice(str(made.plan.summary))
        case PlanOutput.TREE:
            for key, key_plan in made.plan.keys.items():
                _write_key(key, key_plan)
            _write_garbage(made.plan)
            write_line(str(made.plan.summary))


def exit_with_plan(plan: Plan, *, exit_code: bool) -> None:
    """Exit with the status of a plan; return if it is 0."""
    if plan.summary.failed:
        raise typer.Exit(FAILED)
    if exit_code and plan.summary.changes:
        raise typer.Exit(CHANGES)


def _write_key(key: str, key_plan: KeyPlan) -> None:
    write_line(key or "(outside of a sync)")
    for action in key_plan.actions:
        write_signed(described(action), indent="  ")
        write_differences(action.diff, indent="      ")
    if key_plan.error:
        write_signed(f"! {key_plan.error}", indent="  ")
    if key_plan.after_s is not None:
        write_text(f"    again after {key_plan.after_s:g} s")


def _write_errors(plan: Plan) -> None:
    for key, key_plan in plan.keys.items():
        if key_plan.error:
            write_notice(f"{key}: {key_plan.error}")


def _write_garbage(plan: Plan) -> None:
    """Write the orphans that garbage collection keeps."""
    if plan.garbage is UNSET:
        return
    for orphan in plan.garbage.orphans:
        reason = orphan.held or plan.garbage.refused or orphan.reason
        write_notice(f"kept: {orphan.kind}/{orphan.key}: {reason}")
