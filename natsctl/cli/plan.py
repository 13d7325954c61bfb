"""`natsctl plan`: shows what a controller would do, and changes nothing."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated

import typer
from msgspec import UNSET, UnsetType
from msgspec.structs import replace as structs_replace

from natsctl.cli.command import FAILED, App, SomeObjects, StoreOptions, load_runnable_controller
from natsctl.cli.output import (
    TABLE,
    WIDE,
    action_line,
    duration,
    output_option,
    write_differences,
    write_result,
    write_signed,
    write_unified,
)
from natsctl.cli.terminal import progress_bar, write_line, write_notice, write_text
from natsctl.controller.controller import Controller
from natsctl.controller.slots import only_primary
from natsctl.core.plan.stores import Planned, planned
from natsctl.daemon.kinds import cluster_for
from natsctl.daemon.operator import CONTROLLER_NAME, Guest
from natsctl.daemon.plan import MadePlan, make_plan
from natsctl.errors import UsageError
from natsctl.jetstream.store import connect
from natsctl.model.plans import Action, KeyPlan, Plan
from natsctl.operate.fleet import Fleet, open_fleet
from natsctl.operate.objects import own_keys, parse_names

app = App()

DIFF = "diff"  # the format of a plan as a unified diff of each object
CHANGES, NEWLY_FAILING = 10, 11  # exit statuses with --exit-code
GROUP_MIN = 4  # keys with equal changes that are shown as one group
EXAMPLES_MAX = 3

_NUMBER = re.compile(r"\d+")


def write_plan(made_plan: MadePlan, output: str, *, each: bool = False) -> None:
    """Write a plan; *each* key by itself, or groups of keys that change alike."""
    made = made_plan.plan
    alike: dict[object, list[str]] = {}
    for key, key_plan in made.keys.items():
        alike.setdefault(key if each or output == WIDE else _shape(key, key_plan), []).append(key)
    groups = [
        group
        for keys in alike.values()
        for group in ([keys] if len(keys) >= GROUP_MIN else [[key] for key in keys])
    ]
    groups.sort(key=lambda keys: (-len(keys), keys[0]))
    if output == DIFF:
        for change in made_plan.changes:
            write_unified(f"{change.kind}/{change.key}", change.before, change.after)
        for keys in groups:
            if reason := made.keys[keys[0]].error or made.keys[keys[0]].held_back:
                name = keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1:,} more keys"
                write_notice(f"{name}: {reason}")
        write_notice(str(made.summary))
        return

    def table() -> None:
        for keys in groups:
            _write_keys(keys, made)
        if made.garbage is not UNSET:
            for orphan in made.garbage.orphans:
                reason = orphan.held or made.garbage.refused or orphan.reason
                write_notice(f"kept: {orphan.name}: {reason}")
        write_line(str(made.summary))

    write_result(made, output, names=made.keys, table=table)


def _write_keys(keys: Sequence[str], plan: Plan) -> None:
    first = plan.keys[keys[0]]
    if len(keys) == 1:
        write_line(keys[0] or "(outside of a sync)")
        for action in first.actions:
            write_signed(action_line(action), indent="  ")
            write_differences(action.diff, indent="      ")
    else:
        examples = ", ".join(keys[:EXAMPLES_MAX])
        write_line(f"{len(keys):,} keys: {examples}{', …' if len(keys) > EXAMPLES_MAX else ''}")
        shapes: dict[tuple[str, ...], list[Action]] = {}
        for key in keys:
            for action in plan.keys[key].actions:
                shapes.setdefault(_shape_of(action, key), []).append(action)
        for action, *more in shapes.values():
            write_signed(action_line(action, more), indent="  ")
    if first.error:
        before = "as before: " if first.failed_before else ""
        write_signed(f"! {before}{first.error}", indent="  ")
    if first.held_back:
        write_text(f"    {first.held_back}")
    if first.after_s is not None:
        write_text(f"    again after {duration(first.after_s)}")


def exit_with_plan(plan: Plan, *, exit_code: bool) -> None:
    """Exit with the status of a plan; return if it is 0."""
    if plan.summary.newly_failed:
        raise typer.Exit(NEWLY_FAILING if exit_code else FAILED)
    if exit_code and plan.summary.changes:
        raise typer.Exit(CHANGES)


def _shape(key: str, plan: KeyPlan) -> object:
    """Return what the plans of keys that change alike have in common."""

    def general(text: str | UnsetType) -> str:
        return _NUMBER.sub("N", text.replace(key, "KEY")) if text and key else ""

    actions = Counter(_shape_of(action, key) for action in plan.actions)
    texts = (general(plan.error), general(plan.held_back))
    return (frozenset(actions.items()), *texts, plan.after_s, plan.failed_before)


def _shape_of(action: Action, key: str) -> tuple[str, ...]:
    changed = action.action in ("update", "status")
    paths = (diff.path.replace(key, "KEY") if key else diff.path for diff in action.diff)
    call = "" if action.call is UNSET else action.call
    return (action.action, action.kind, call, *(paths if changed else ()))


@app.add(
    "natsctl plan -c controllers.webapps:WebApps",
    "natsctl plan greetings/shop -c controllers.greetings:Greetings -o diff",
    "natsctl plan -c fleet.sites:Sites --exit-code",
    "natsctl plan greetings shop -c greetings",
    hooks=True,
    controller="-c M:C | Controller class, or the name of one that runs",
    all_="Show each key, also if many change alike",
    exit_code="Exit with 10 for changes, 11 if a key newly fails",
    verbose="-v | Log as a daemon would, with tracebacks",
)
async def plan(
    stores: StoreOptions,
    *,
    controller: str,
    objects: SomeObjects = None,
    output: Annotated[str, output_option(DIFF)] = TABLE,
    all_: bool = False,
    exit_code: bool = False,
    verbose: bool = False,
) -> None:
    """Show what a controller would do.

    The real handler runs for each key over the present objects; nothing is stored. The signs are
    + created, ~ changed, - deleted and ! error. With a name as natsctl status shows it, a daemon
    that runs the controller makes the plan, for a few keys. Exit code 1: a key newly fails.
    """
    all_keys = "; without a name, the plan is of all keys"
    names = parse_names(objects, otherwise=all_keys) if objects else []
    if CONTROLLER_NAME.fullmatch(controller):
        if output == DIFF:
            raise UsageError("-o diff needs the controller's class: give --controller M:C")
        async with open_fleet(stores.nats) as fleet:
            in_daemon = await fleet.plan(controller, names)
        if in_daemon.more:
            write_notice(f"the plan of the daemon has {in_daemon.more} more actions")
        made = MadePlan(in_daemon, ())
    else:
        if not verbose:
            logging.getLogger("natsctl").setLevel(logging.CRITICAL)
        loaded = load_runnable_controller(controller)
        primary = isinstance(loaded, Controller) and [only_primary(type(loaded)).kind]
        made = await plan_here(stores, loaded, own_keys(primary or loaded.kinds, names))
    for bucket in made.without_bucket:
        write_notice(f"bucket {bucket} does not exist: the plan takes it as empty")
    for key in made.plan.missing or ():
        write_notice(f"{key} does not exist")
    write_plan(made, output, each=all_)
    exit_with_plan(made.plan, exit_code=exit_code)


async def plan_here(
    stores: StoreOptions,
    controller: Controller | Guest,
    keys: Collection[str],
    *,
    after: Planned | None = None,
) -> MadePlan:
    """Plan in this process, over what is stored, or over the writes that *after* has planned."""
    async with cluster_for([controller], stores.cluster) as kube, connect(stores.nats) as nats:
        over = planned(nats=nats, kube=kube) if after is None else after.of_another(cluster=kube)
        with progress_bar("planning", 0) as bar:
            made = await make_plan(
                controller,
                stores=over,
                keys=keys,
                owner_names=stores.owner_names,
                progress=lambda done, total: bar(completed=min(done, total), total=total),
            )
        if not made.plan.summary.newly_failed:
            return made
        fleet = Fleet(nats.connection)
        try:
            failing = await fleet.failing_among(made.plan)
        finally:
            await fleet.close()
        return structs_replace(made, plan=made.plan.compared(failing))
