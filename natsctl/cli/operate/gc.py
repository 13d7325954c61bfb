"""`natsctl gc`: finds and removes secondaries whose owner does not exist."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated

import msgspec
import typer

from natsctl.cli.documents.parsing import parsed_or_none
from natsctl.cli.documents.values import read_bytes
from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.exit_codes import CONFLICT
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.operate.find_daemon import (
    NamedOption,
    choose_by_garbage,
    find_controller,
)
from natsctl.cli.operate.local import LOCAL_HINT, LocalOption, local_controller, open_local
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.cli.output.terminal import YesOption, confirm, write_line, write_notice
from natsctl.controller.garbage import collector as garbage_collector
from natsctl.daemon.api.messages import ControllerPlan
from natsctl.errors import NatsctlError, UsageError
from natsctl.model.garbage import GarbagePlan, Orphan, Removed
from natsctl.operate.entries import NONE
from natsctl.operate.fleet import NoGarbageError

HEADINGS = ("KIND", "KEY", "REVISION", "OWNER", "REASON")

app = App()


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
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the secondaries whose owner does not exist.

    Nothing is removed. The existence of each owner is checked at the leader of its bucket. If
    garbage collection is held, the plan shows the reason. Objects that name no owner, because they
    lost their labels, are listed too; natsctl never removes them.
    """
    try:
        async with _collector(stores, controller, local=local) as collector:
            plan = await collector.plan()
    except NoGarbageError as clean:
        plan = ControllerPlan((), controller="")
        write_notice(str(clean))
        if output is Output.TABLE:
            return
    write_result(
        plan,
        output,
        names=[orphan.name for orphan in plan.orphans],
        table=lambda: _write_plan(plan),
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

    Without --plan, the command plans first. An object is removed only if it still has the planned
    revision and its owner still does not exist. A notice shows why an object was kept. The exit
    code is 4 if an object was kept, or if the plan does not contain all suspects.
    """
    logging.getLogger(garbage_collector.__name__).setLevel(logging.ERROR)
    async with _collector(stores, controller, local=local) as collector:
        chosen = await collector.plan() if plan is None else _read_plan(plan, collector.controller)
    if plan is None or not chosen.orphans:
        _write_plan(chosen)
    owned = tuple(orphan for orphan in chosen.orphans if orphan.owner)
    chosen = msgspec.structs.replace(chosen, orphans=owned)
    if not chosen.orphans:
        return
    if plan is None and chosen.refused and yes and not force:
        raise NatsctlError(f"nothing is removed: {chosen.refused}; remove it anyway with --force")
    count = len(chosen.orphans)
    confirm(f"Remove {f'these {count} objects' if count > 1 else 'this object'}?", yes=yes)
    async with _collector(stores, controller, local=local) as collector:
        removed = await collector.apply(chosen)
    _write_removed(chosen, removed)
    if len(removed.orphans) < count or chosen.more:
        raise typer.Exit(CONFLICT)


@app.add(
    "natsctl gc accept --controller greetings",
    "natsctl gc accept --local -c controllers.greetings:Greetings --yes",
)
@connected_to_stores
async def accept(
    stores: StoreOptions,
    *,
    controller: NamedOption = None,
    local: LocalOption = False,
    yes: YesOption = False,
) -> None:
    """Accept the bucket of primaries as it is, so that garbage collection continues.

    Garbage collection is held if the bucket was recreated, was restored from an older copy, or
    suddenly lost many keys. After this command, every secondary whose owner does not exist is
    garbage.
    """
    async with _collector(stores, controller, local=local) as collector:
        plan = await collector.plan()
        if not plan.refused:
            write_notice("nothing is held: there is nothing to accept")
            return
        _write_plan(plan)
        confirm("Accept the bucket as it is, and collect these objects?", yes=yes)
        after = await collector.accept(plan)
    if after.refused:
        write_notice(f"still held, until natsctl gc apply removes the objects: {after.refused}")
        raise typer.Exit(CONFLICT)
    write_line("accepted")


class _Collector(msgspec.Struct, frozen=True):
    """Collects the garbage of a controller: in this process, or in the daemon that leads it."""

    controller: str
    plan: Callable[[], Awaitable[ControllerPlan]]
    apply: Callable[[ControllerPlan], Awaitable[Removed]]
    accept: Callable[[ControllerPlan], Awaitable[GarbagePlan]]


@asynccontextmanager
async def _collector(
    stores: StoreOptions, named: str | None, *, local: bool
) -> AsyncIterator[_Collector]:
    if not local:
        search = find_controller(stores.nats, named, hint=LOCAL_HINT, choose=choose_by_garbage)
        async with search as (daemons, name):
            yield _Collector(name, partial(daemons.plan, name), daemons.apply, daemons.accept)
        return
    async with open_local(local_controller(named), stores) as runtime:

        async def plan() -> ControllerPlan:
            return ControllerPlan.of(await runtime.garbage_plan(), runtime.name)

        yield _Collector(
            runtime.name, plan, runtime.garbage_apply, lambda _: runtime.garbage_accept()
        )


def _write_removed(plan: GarbagePlan, removed: Removed) -> None:
    deleted = set(removed.orphans)
    reasons = {kept.orphan: kept.reason for kept in removed.kept}
    for orphan in plan.orphans:
        if orphan in deleted:
            write_line(f"{orphan.name} deleted")
        else:
            write_notice(f"{orphan.name} kept: {reasons[orphan]}")


def _write_plan(plan: GarbagePlan) -> None:
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


def _read_plan(file: str, controller: str) -> ControllerPlan:
    """Return the plan in a file; raises `UsageError` if it is not a plan of the controller."""
    try:
        plan = msgspec.convert(parsed_or_none(read_bytes(file)), ControllerPlan)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file} is not a plan of natsctl gc plan -o json: {error}") from error
    if plan.controller != controller:
        raise UsageError(f"{file} is a plan of {plan.controller}, not of {controller}")
    return plan
