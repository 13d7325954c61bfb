"""`natsctl gc` and `natsctl repair gc`, and what --local does in this process."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import typer

from natsctl.cli.command import (
    CONFLICT,
    LOCAL_HINT,
    App,
    Local,
    NamedController,
    StoreOptions,
    Yes,
    controller_name,
    exit_status,
    load_controller,
    report_error,
)
from natsctl.cli.output import TABLE, OutputOption, write_result, write_table
from natsctl.cli.terminal import confirm, progress_bar, write_line, write_notice
from natsctl.cli.values import parsed, read_bytes
from natsctl.controller import garbage, opened
from natsctl.controller.controller import Controller
from natsctl.controller.runtime import ControllerRuntime
from natsctl.core import history, informer
from natsctl.daemon.kinds import cluster_for
from natsctl.daemon.messages import ControllerPlan
from natsctl.daemon.plan import SyncResult, inspecting, primaries, sync_once
from natsctl.errors import NatsctlError, NoDaemonError, UsageError
from natsctl.jetstream.store import connect
from natsctl.model.plans import GarbagePlan, Removed
from natsctl.operate.fleet import NoGarbageError, open_fleet
from natsctl.operate.objects import NONE

app = App()


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


REPORTED_LOGGERS = (opened.__name__, history.__name__, informer.INVALID_LOG)
"""Loggers of failures that a local resync reports itself."""


async def sync_here(
    stores: StoreOptions, controller: Controller, keys: Sequence[str], *, verbose: bool
) -> None:
    """Sync the keys in this process, all primaries if there are none; exit with any failure."""
    for name in () if verbose else REPORTED_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    failures: list[Exception] = []
    async with open_local(controller, stores) as runtime:
        if not keys:
            paused = runtime.status().paused
            keys = [key for key in primaries(runtime) if key not in paused]
            if paused:
                count = "1 paused key is" if len(paused) == 1 else f"{len(paused)} paused keys are"
                write_notice(f"{count} not synced")
        with progress_bar("syncing", len(keys)) as progress:

            def finished(sync: SyncResult) -> None:
                if sync.error is not None:
                    failures.append(sync.error)
                    known = isinstance(sync.error, NatsctlError)
                    kind = "" if known else f"{type(sync.error).__name__}: "
                    report_error(f"{sync.key}: {kind}{sync.error}")
                progress(advance=1)

            await sync_once(runtime, keys, finished)
    write_line(f"{len(keys) - len(failures)} of {len(keys)} synced")
    if failures:
        raise typer.Exit(min(map(exit_status, failures)))


@app.callback()
def gc() -> None:
    """Find and remove secondaries whose owner does not exist."""


@app.add(
    "natsctl gc plan --controller greetings",
    "natsctl gc plan -c greetings -o json > plan.json",
    "natsctl gc plan --local -c controllers.greetings:Greetings",
    called="plan",
)
async def plan_(
    stores: StoreOptions,
    *,
    controller: NamedController = None,
    local: Local = False,
    output: OutputOption = TABLE,
) -> None:
    """Show the secondaries whose owner does not exist.

    Nothing is removed. Each owner is looked for at the leader of its bucket. Objects that lost
    their labels are listed too, and never removed. If collection is held, the reason is shown.
    """
    try:
        async with _collecting(stores, controller, local=local) as collector:
            plan = await collector.plan()
    except NoGarbageError as clean:
        plan = ControllerPlan((), controller="")
        write_notice(str(clean))
        if output == TABLE:
            return
    names = [orphan.name for orphan in plan.orphans]
    write_result(plan, output, names=names, table=lambda: _write_garbage(plan))


@app.add(
    "natsctl gc apply --controller greetings",
    "natsctl gc apply -c greetings --plan plan.json --yes",
    "natsctl gc apply --local -c controllers.greetings:Greetings",
    plan="FILE | File of gc plan -o json; - reads standard input [default: a new plan]",
    force="With --yes, remove even while garbage collection is held",
)
async def apply(  # noqa: C901 - one straight line
    stores: StoreOptions,
    *,
    controller: NamedController = None,
    local: Local = False,
    plan: str | None = None,
    yes: Yes = False,
    force: bool = False,
) -> None:
    """Remove the objects of a plan.

    An object is removed only if it still has the planned revision and its owner still does not
    exist. The exit code is 4 if an object was kept, or if the plan lacks suspects.
    """
    logging.getLogger(garbage.__name__).setLevel(logging.ERROR)
    async with _collecting(stores, controller, local=local) as collector:
        if plan is None:
            chosen = await collector.plan()
        else:
            try:
                chosen = msgspec.convert(parsed(read_bytes(plan))[0], ControllerPlan)
            except msgspec.ValidationError as error:
                raise UsageError(
                    f"{plan} is not a plan of natsctl gc plan -o json: {error}"
                ) from error
            if controller is not None:
                own = (await collector.plan()).controller
                if chosen.controller != own:
                    raise UsageError(f"{plan} is a plan of {chosen.controller}, not of {own}")
    if plan is None or not chosen.orphans:
        _write_garbage(chosen)
    owned = tuple(orphan for orphan in chosen.orphans if orphan.owner)
    chosen = msgspec.structs.replace(chosen, orphans=owned)
    if not owned:
        return
    if plan is None and chosen.refused and yes and not force:
        raise NatsctlError(f"nothing is removed: {chosen.refused}; remove it anyway with --force")
    question = f"these {len(owned)} objects" if len(owned) > 1 else "this object"
    confirm(f"Remove {question}?", yes=yes)
    async with _collecting(stores, controller, local=local) as collector:
        removed = await collector.apply(chosen)
    reasons = {kept.orphan: kept.reason for kept in removed.kept}
    for orphan in owned:
        if orphan in removed.orphans:
            write_line(f"{orphan.name} deleted")
        else:
            write_notice(f"{orphan.name} kept: {reasons[orphan]}")
    if len(removed.orphans) < len(owned) or chosen.more:
        raise typer.Exit(CONFLICT)


async def accept(
    stores: StoreOptions,
    *,
    controller: NamedController = None,
    local: Local = False,
    yes: Yes = False,
) -> None:
    """Accept the bucket of primaries as it is, so that garbage collection continues.

    Collection is held if the bucket was recreated, restored from an older copy, or suddenly lost
    many keys. After this command, every secondary whose owner does not exist is garbage.
    """
    async with _collecting(stores, controller, local=local) as collector:
        plan = await collector.plan()
        if not plan.refused:
            write_notice("nothing is held: there is nothing to accept")
            return
        _write_garbage(plan)
        confirm("Accept the bucket as it is, and collect these objects?", yes=yes)
        after = await collector.accept(plan)
    if after.refused:
        write_notice(f"still held, until natsctl gc apply removes the objects: {after.refused}")
        raise typer.Exit(CONFLICT)
    write_line("accepted")


class _Collector(msgspec.Struct, frozen=True):
    """Collects the garbage of a controller: in this process, or in the daemon that leads it."""

    plan: Callable[[], Awaitable[ControllerPlan]]
    apply: Callable[[ControllerPlan], Awaitable[Removed]]
    accept: Callable[[ControllerPlan], Awaitable[GarbagePlan]]


@asynccontextmanager
async def _collecting(
    stores: StoreOptions, named: str | None, *, local: bool
) -> AsyncIterator[_Collector]:
    if not local:
        async with open_fleet(stores.nats) as fleet:
            try:
                daemons = await fleet.daemons()
            except NoDaemonError as error:
                raise NoDaemonError(f"{error}{LOCAL_HINT}") from None
            garbage_of = partial(fleet.garbage, controller_name(named))
            yield _Collector(garbage_of, daemons.apply, daemons.accept)
        return
    async with open_local(local_controller(named), stores) as runtime:

        async def plan() -> ControllerPlan:
            return ControllerPlan.of(await runtime.garbage_plan(), runtime.name)

        yield _Collector(plan, runtime.garbage_apply, lambda _: runtime.garbage_accept())


def _write_garbage(plan: GarbagePlan) -> None:
    if plan.orphans:
        rows = [
            [*(one.kind, one.key, str(one.revision), one.owner or NONE), one.held or one.reason]
            for one in plan.orphans
        ]
        write_table(("KIND", "KEY", "REVISION", "OWNER", "REASON"), rows)
    elif plan.more:
        write_notice("none of the checked objects is an orphan")
    else:
        write_notice("there are no orphans")
    if plan.more:
        write_notice(f"{plan.more} more suspects were not checked: plan again after gc apply")
    if plan.refused:
        write_notice(f"the daemon removes nothing: {plan.refused}")
