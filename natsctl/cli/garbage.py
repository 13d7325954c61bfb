"""`natsctl gc`: secondaries whose owner is gone."""

import logging
from typing import Annotated

import msgspec
import typer

from natsctl.cli.cluster import clustered
from natsctl.cli.command import Command, commands, connected, examples
from natsctl.cli.controllers import ControllerOption, controller_of
from natsctl.cli.failures import CONFLICT
from natsctl.cli.printing import (
    Output,
    OutputOption,
    line,
    write_json,
    write_table,
    write_yaml,
)
from natsctl.cli.terminal import confirm, say
from natsctl.cli.upkeep import connected_to
from natsctl.cli.values import parsed_or_none, read_bytes
from natsctl.core.garbage import GarbagePlan, Orphan
from natsctl.errors import NatsctlError, UsageError
from natsctl.kube.options import KubeOptions
from natsctl.kv.options import NatsOptions
from natsctl.runtime import Controller

app = commands()


class PlanFile(GarbagePlan, frozen=True, kw_only=True):
    """A plan as it is written down: for which controller."""

    controller: str


@app.callback()
def gc() -> None:
    """See and remove secondaries whose owner is gone."""


@app.command(
    "plan",
    cls=Command,
    epilog=examples(
        "natsctl gc plan --controller controllers.greetings:Greetings",
        "natsctl gc plan -c controllers.greetings:Greetings -o json > plan.json",
    ),
)
@connected
@clustered
async def show(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    controller: ControllerOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every secondary whose owner does not exist, and why nothing would be removed, if so.

    Each owner was looked for at its bucket's leader. Nothing is removed.
    """
    work = controller_of(controller)
    plan = await _plan(options, cluster, work)
    match output:
        case Output.JSON:
            write_json(_file(work, plan))
        case Output.YAML:
            write_yaml([msgspec.to_builtins(_file(work, plan))])
        case Output.NAME | Output.VALUE:
            for orphan in plan.orphans:
                line(_name(orphan))
        case _:
            _show(plan)


@app.command(
    "apply",
    cls=Command,
    epilog=examples(
        "natsctl gc apply --controller controllers.greetings:Greetings",
        "natsctl gc apply -c controllers.greetings:Greetings --plan plan.json --yes",
    ),
)
@connected
@clustered
async def apply(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    controller: ControllerOption,
    plan: Annotated[str | None, typer.Option(help="what gc plan -o json wrote; - reads it")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --yes: even what a daemon refuses to remove")
    ] = False,
) -> None:
    """Remove what a plan says, and nothing else.

    Without --plan, what gc plan shows now. Each object goes only at its planned revision, and
    only while its owner does not exist. Exits with 4 where something was left alone.
    """
    logging.getLogger("natsctl.core.garbage").setLevel(logging.ERROR)
    work = controller_of(controller)
    wanted = await _plan(options, cluster, work) if plan is None else _read(plan, work)
    if not wanted.orphans:
        return _show(wanted)
    if plan is None:
        _show(wanted)
        if wanted.refused and yes and not force:
            raise NatsctlError(
                f"nothing is removed: {wanted.refused}; --force does it all the same"
            )
    these = f"these {len(wanted.orphans)} objects" if len(wanted.orphans) > 1 else "this object"
    confirm(f"Remove {these}?", yes=yes)
    if await _apply(options, cluster, work, wanted) < len(wanted.orphans):
        raise typer.Exit(CONFLICT)
    return None


async def _plan(
    options: NatsOptions, cluster: KubeOptions | None, controller: Controller
) -> GarbagePlan:
    async with connected_to(controller, options, cluster) as runtime:
        return await runtime.garbage_plan()


async def _apply(
    options: NatsOptions, cluster: KubeOptions | None, controller: Controller, plan: GarbagePlan
) -> int:
    """Remove what the plan says; return how many objects went."""
    async with connected_to(controller, options, cluster) as runtime:
        removed = set(await runtime.garbage_apply(plan))
    for orphan in plan.orphans:
        if orphan in removed:
            line(f"{_name(orphan)} deleted")
        else:
            say(f"{_name(orphan)} left alone: it changed, is gone, or its owner exists again")
    return len(removed)


def _show(plan: GarbagePlan) -> None:
    if plan.orphans:
        headings = ["KIND", "KEY", "REVISION", "OWNER", "REASON"]
        write_table(
            headings, [[o.kind, o.key, str(o.revision), o.owner, o.reason] for o in plan.orphans]
        )
    else:
        say("there are no orphans")
    if plan.refused:
        say(f"a daemon removes nothing: {plan.refused}")


def _name(orphan: Orphan) -> str:
    return f"{orphan.kind}/{orphan.key}"


def _file(controller: Controller, plan: GarbagePlan) -> PlanFile:
    return PlanFile(plan.orphans, plan.refused, plan.stores, controller=controller.name)


def _read(file: str, controller: Controller) -> PlanFile:
    try:
        plan = msgspec.convert(parsed_or_none(read_bytes(file)), PlanFile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file} is no plan of natsctl gc plan -o json: {error}") from error
    if plan.controller != controller.name:
        raise UsageError(f"{file} is a plan of {plan.controller}, not of {controller.name}")
    return plan
