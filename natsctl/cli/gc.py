"""`natsctl gc`: finds and removes secondaries whose owner does not exist."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

import msgspec
import typer

from natsctl.cli.arguments import NamedOption, controller_name, load_controller
from natsctl.cli.command import CONFLICT, App, StoreOptions, connected_to_stores
from natsctl.cli.output import TABLE, OutputOption, write_result, write_table
from natsctl.cli.parsing import parsed_or_none
from natsctl.cli.terminal import YesOption, confirm, write_line, write_notice
from natsctl.cli.values import read_bytes
from natsctl.controller import garbage
from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.daemon.kinds import cluster_for
from natsctl.daemon.messages import ControllerPlan
from natsctl.daemon.plan import inspecting
from natsctl.errors import NatsctlError, NoDaemonError, UsageError
from natsctl.jetstream.store import connect
from natsctl.model.plans import GarbagePlan, Orphan, Removed
from natsctl.operate.entries import NONE
from natsctl.operate.fleet import NoGarbageError, open_fleet

app = App()

LOCAL_HINT = ", or do it here with --local"
"""The end of the error if no daemon answers."""

LocalOption = Annotated[
    bool,
    typer.Option(
        "--local",
        help="Work in this process; --controller must be a class",
    ),
]


def local_controller(path: str | None) -> Controller:
    """Return a controller of the class at *path*; raises `UsageError` without a path."""
    if path is None:
        raise UsageError("--local needs the controller's class: give --controller M:C")
    return load_controller(path)


@asynccontextmanager
async def open_local(
    controller: Controller, stores: StoreOptions
) -> AsyncIterator[ControllerRuntime]:
    """Connect to the stores of the controller, and open its runtime; see `inspecting`."""
    async with (
        cluster_for([controller], stores.cluster) as kube,
        connect(stores.nats) as nats,
        inspecting(controller, nats, kube, owner_names=stores.owner_names) as runtime,
    ):
        yield runtime


HEADINGS = ("KIND", "KEY", "REVISION", "OWNER", "REASON")


@app.callback()
def gc() -> None:
    """Find and remove secondaries whose owner does not exist."""


@app.add(
    "natsctl gc plan --controller greetings",
    "natsctl gc plan -c greetings -o json > plan.json",
    "natsctl gc plan --local -c controllers.greetings:Greetings",
    name="plan",
)
@connected_to_stores
async def plan_(
    stores: StoreOptions,
    *,
    controller: NamedOption = None,
    local: LocalOption = False,
    output: OutputOption = TABLE,
) -> None:
    """Show the secondaries whose owner does not exist.

    Nothing is removed. Each owner is looked for at the leader of its bucket. Objects that lost
    their labels are listed too, and never removed. If collection is held, the reason is shown.
    """
    try:
        async with collecting(stores, controller, local=local) as collector:
            plan = await collector.plan()
    except NoGarbageError as clean:
        plan = ControllerPlan((), controller="")
        write_notice(str(clean))
        if output == TABLE:
            return
    write_result(
        plan,
        output,
        names=[orphan.name for orphan in plan.orphans],
        table=lambda: write_garbage(plan),
    )


@app.add(
    "natsctl gc apply --controller greetings",
    "natsctl gc apply -c greetings --plan plan.json --yes",
    "natsctl gc apply --local -c controllers.greetings:Greetings",
)
@connected_to_stores
async def apply(
    stores: StoreOptions,
    *,
    controller: NamedOption = None,
    local: LocalOption = False,
    plan: Annotated[
        str | None,
        typer.Option(
            help="File of gc plan -o json; - reads standard input [default: a new plan]",
            metavar="FILE",
        ),
    ] = None,
    yes: YesOption = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="With --yes, remove even while garbage collection is held"),
    ] = False,
) -> None:
    """Remove the objects of a plan.

    An object is removed only if it still has the planned revision and its owner still does not
    exist. The exit code is 4 if an object was kept, or if the plan lacks suspects.
    """
    logging.getLogger(garbage.__name__).setLevel(logging.ERROR)
    async with collecting(stores, controller, local=local) as collector:
        chosen = await collector.plan() if plan is None else _read_plan(plan)
        if plan is not None and controller is not None:
            _check_controller(plan, chosen, (await collector.plan()).controller)
    if plan is None or not chosen.orphans:
        write_garbage(chosen)
    owned = tuple(orphan for orphan in chosen.orphans if orphan.owner)
    chosen = msgspec.structs.replace(chosen, orphans=owned)
    if not chosen.orphans:
        return
    if plan is None and chosen.refused and yes and not force:
        raise NatsctlError(f"nothing is removed: {chosen.refused}; remove it anyway with --force")
    count = len(chosen.orphans)
    confirm(f"Remove {f'these {count} objects' if count > 1 else 'this object'}?", yes=yes)
    async with collecting(stores, controller, local=local) as collector:
        removed = await collector.apply(chosen)
    _write_removed(chosen, removed)
    if len(removed.orphans) < count or chosen.more:
        raise typer.Exit(CONFLICT)


class _Collector(msgspec.Struct, frozen=True):
    """Collects the garbage of a controller: in this process, or in the daemon that leads it."""

    plan: Callable[[], Awaitable[ControllerPlan]]
    apply: Callable[[ControllerPlan], Awaitable[Removed]]
    accept: Callable[[ControllerPlan], Awaitable[GarbagePlan]]


@asynccontextmanager
async def collecting(
    stores: StoreOptions, named: str | None, *, local: bool
) -> AsyncIterator[_Collector]:
    """Yield who collects the garbage of a controller: its daemons, or with *local* this process."""
    if not local:
        async with open_fleet(stores.nats) as fleet:
            try:
                daemons = await fleet.daemons()
            except NoDaemonError as error:
                raise NoDaemonError(f"{error}{LOCAL_HINT}") from None
            chosen = controller_name(named)
            yield _Collector(partial(fleet.garbage, chosen), daemons.apply, daemons.accept)
        return
    async with open_local(local_controller(named), stores) as runtime:

        async def plan() -> ControllerPlan:
            return ControllerPlan.of(await runtime.garbage_plan(), runtime.name)

        yield _Collector(plan, runtime.garbage_apply, lambda _: runtime.garbage_accept())


def _write_removed(plan: GarbagePlan, removed: Removed) -> None:
    deleted = set(removed.orphans)
    reasons = {kept.orphan: kept.reason for kept in removed.kept}
    for orphan in plan.orphans:
        if orphan in deleted:
            write_line(f"{orphan.name} deleted")
        else:
            write_notice(f"{orphan.name} kept: {reasons[orphan]}")


def write_garbage(plan: GarbagePlan) -> None:
    """Write a plan of garbage collection as a table."""
    if plan.orphans:
        write_table(HEADINGS, [_row(orphan) for orphan in plan.orphans])
    elif plan.more:
        write_notice("none of the checked objects is an orphan")
    else:
        write_notice("there are no orphans")
    if plan.more:
        write_notice(f"{plan.more} more suspects were not checked: plan again after gc apply")
    if plan.refused:
        write_notice(f"the daemon removes nothing: {plan.refused}")


def _row(orphan: Orphan) -> list[str]:
    reason = orphan.held or orphan.reason
    return [orphan.kind, orphan.key, str(orphan.revision), orphan.owner or NONE, reason]


def _read_plan(file: str) -> ControllerPlan:
    """Return the plan in a file; raises `UsageError` if it is not a plan."""
    try:
        return msgspec.convert(parsed_or_none(read_bytes(file)), ControllerPlan)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file} is not a plan of natsctl gc plan -o json: {error}") from error


def _check_controller(file: str, plan: ControllerPlan, controller: str) -> None:
    if plan.controller != controller:
        raise UsageError(f"{file} is a plan of {plan.controller}, not of {controller}")
