"""`natsctl gc`: secondaries whose owner is gone."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Protocol

import msgspec
import typer

from natsctl.cli.documents.parsing import parsed_or_none
from natsctl.cli.documents.values import read_bytes
from natsctl.cli.framework.cluster_options import clustered
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.exit_codes import CONFLICT
from natsctl.cli.operate.find_daemon import LOCALLY, LocalOption, NamedOption, asked, with_garbage
from natsctl.cli.operate.find_daemon import local as local_controller
from natsctl.cli.operate.local_runtime import connected_to, linked
from natsctl.cli.output.printing import Output, OutputOption, line, write_found, write_table
from natsctl.cli.output.terminal import confirm, say
from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.owners import OwnerNames
from natsctl.daemon.api.client import Daemons
from natsctl.daemon.api.messages import ControllerPlan
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.model.garbage import GarbagePlan, Orphan, Removed

app = commands()


@app.callback()
def gc() -> None:
    """See and remove secondaries whose owner is gone."""


@app.command(
    "plan",
    cls=Command,
    epilog=examples(
        "natsctl gc plan --controller greetings",
        "natsctl gc plan -c greetings -o json > plan.json",
        "natsctl gc plan --local -c controllers.greetings:Greetings",
    ),
)
@connected
@clustered
@linked
async def show(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    owner_names: OwnerNames,
    controller: NamedOption = None,
    local: LocalOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show every secondary whose owner does not exist, and why nothing would be removed, if so.

    Each owner was looked for at its bucket's leader. Nothing is removed.
    """
    async with _collector(options, cluster, controller, owner_names, local=local) as collector:
        plan = await collector.plan()
    write_found(plan, output, names=map(_name, plan.orphans), table=lambda: _show(plan))


@app.command(
    "apply",
    cls=Command,
    epilog=examples(
        "natsctl gc apply --controller greetings",
        "natsctl gc apply -c greetings --plan plan.json --yes",
        "natsctl gc apply --local -c controllers.greetings:Greetings",
    ),
)
@connected
@clustered
@linked
async def apply(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    owner_names: OwnerNames,
    controller: NamedOption = None,
    local: LocalOption = False,
    plan: Annotated[str | None, typer.Option(help="what gc plan -o json wrote; - reads it")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="with --yes: even what a daemon refuses to remove")
    ] = False,
) -> None:
    """Remove what a plan says, and nothing else.

    Without --plan, what gc plan shows now. Each object goes only at its planned revision, and
    only while its owner does not exist. Exits with 4 if an object was kept, and says why.
    """
    logging.getLogger("natsctl.controller.garbage.collector").setLevel(logging.ERROR)
    async with _collector(options, cluster, controller, owner_names, local=local) as collector:
        wanted = await collector.plan() if plan is None else _read(plan, collector.controller)
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
    async with _collector(options, cluster, controller, owner_names, local=local) as collector:
        removed = await collector.apply(wanted)
    _tell(wanted, removed)
    if len(removed.orphans) < len(wanted.orphans) or wanted.more:
        raise typer.Exit(CONFLICT)
    return None


@app.command(
    "accept",
    cls=Command,
    epilog=examples(
        "natsctl gc accept --controller greetings",
        "natsctl gc accept --local -c controllers.greetings:Greetings --yes",
    ),
)
@connected
@clustered
@linked
async def accept(
    options: NatsOptions,
    *,
    cluster: KubeOptions | None,
    owner_names: OwnerNames,
    controller: NamedOption = None,
    local: LocalOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Accept the bucket of primaries as it is, so that garbage is collected again.

    Garbage collection is held if the bucket is not the one that was seen before: recreated,
    restored from an older copy, or much emptier. After this, every secondary whose owner does not
    exist is garbage. Objects in a cluster that carry no installation count as this
    installation's.
    """
    async with _collector(options, cluster, controller, owner_names, local=local) as collector:
        plan = await collector.plan()
        unmarked = sum(bool(orphan.held) for orphan in plan.orphans)
        if not plan.refused and not unmarked:
            say("nothing is held: there is nothing to accept")
            return
        _show(plan)
        confirm("Accept the bucket as it is, and have these objects collected?", yes=yes)
        left = await collector.accept(plan)
    if left.refused:
        say(f"still refused, which only natsctl gc apply overrides: {left.refused}")
        raise typer.Exit(CONFLICT)
    line("accepted")


class _Collector(Protocol):
    """Who plans, and does what a plan says."""

    controller: str

    async def plan(self) -> ControllerPlan: ...

    async def apply(self, plan: ControllerPlan) -> Removed: ...

    async def accept(self, plan: ControllerPlan) -> GarbagePlan: ...


class _Here:
    """This process."""

    def __init__(self, runtime: ControllerRuntime) -> None:
        self.controller = runtime.name
        self._runtime = runtime

    async def plan(self) -> ControllerPlan:
        return ControllerPlan.of(await self._runtime.garbage_plan(), self.controller)

    async def apply(self, plan: ControllerPlan) -> Removed:
        return await self._runtime.garbage_apply(plan)

    async def accept(self, plan: ControllerPlan) -> GarbagePlan:  # noqa: ARG002 - shown a moment ago
        return await self._runtime.garbage_accept()


class _There:
    """The daemon that leads the controller."""

    def __init__(self, daemons: Daemons, controller: str) -> None:
        self.controller = controller
        self._daemons = daemons

    async def plan(self) -> ControllerPlan:
        return await self._daemons.plan(self.controller)

    async def apply(self, plan: ControllerPlan) -> Removed:
        return await self._daemons.apply(plan)

    async def accept(self, plan: ControllerPlan) -> GarbagePlan:
        return await self._daemons.accept(plan)


@asynccontextmanager
async def _collector(
    options: NatsOptions,
    cluster: KubeOptions | None,
    named: str | None,
    owner_names: OwnerNames,
    *,
    local: bool,
) -> AsyncIterator[_Collector]:
    if local:
        async with connected_to(local_controller(named), options, cluster, owner_names) as runtime:
            yield _Here(runtime)
    else:
        async with asked(options, named, advice=LOCALLY, choose=with_garbage) as (daemons, name):
            yield _There(daemons, name)


def _tell(plan: GarbagePlan, removed: Removed) -> None:
    gone = set(removed.orphans)
    reasons = {kept.orphan: kept.reason for kept in removed.kept}
    for orphan in plan.orphans:
        if orphan in gone:
            line(f"{_name(orphan)} deleted")
        else:
            why = reasons.get(orphan, "no daemon answered for its owner")
            say(f"{_name(orphan)} kept: {why}")


def _show(plan: GarbagePlan) -> None:
    if plan.orphans:
        headings = ["KIND", "KEY", "REVISION", "OWNER", "REASON"]
        write_table(headings, [_row(orphan) for orphan in plan.orphans])
    else:
        say("there are no orphans" if not plan.more else "there are none among the first")
    if plan.more:
        say(f"and {plan.more} more are suspected: remove these, and plan again")
    if plan.refused:
        say(f"a daemon removes nothing: {plan.refused}")


def _row(orphan: Orphan) -> list[str]:
    reason = orphan.held or orphan.reason
    return [orphan.kind, orphan.key, str(orphan.revision), orphan.owner, reason]


def _name(orphan: Orphan) -> str:
    return f"{orphan.kind}/{orphan.key}"


def _read(file: str, controller: str) -> ControllerPlan:
    try:
        plan = msgspec.convert(parsed_or_none(read_bytes(file)), ControllerPlan)
    except msgspec.ValidationError as error:
        raise UsageError(f"{file} is no plan of natsctl gc plan -o json: {error}") from error
    if plan.controller != controller:
        raise UsageError(f"{file} is a plan of {plan.controller}, not of {controller}")
    return plan
