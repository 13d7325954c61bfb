"""`natsctl plan`: shows what a controller would do, and changes nothing."""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from msgspec import UNSET, UnsetType
from msgspec.structs import replace as structs_replace

from natsctl.cli.arguments import (
    SomeNamesArgument,
    controller_option,
    load_runnable_controller,
    with_hook,
)
from natsctl.cli.command import FAILED, App, StoreOptions, connected_to_stores
from natsctl.cli.output import (
    TABLE,
    WIDE,
    action_line,
    actions_line,
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
from natsctl.core.plan.stores import planned
from natsctl.core.sync import current_key
from natsctl.daemon.kinds import cluster_for
from natsctl.daemon.operator import CONTROLLER_NAME, Guest
from natsctl.daemon.plan import MadePlan, make_plan
from natsctl.errors import UsageError
from natsctl.jetstream.store import connect
from natsctl.model.kinds import Kind
from natsctl.model.plans import Action, KeyPlan, Plan
from natsctl.operate.fleet import Fleet, open_fleet
from natsctl.operate.names import Name, own_keys, parse_names

app = App()


DIFF = "diff"
"""The format of a plan as a unified diff of each object."""

CHANGES = 10
"""The exit status with `--exit-code` if the plan has changes."""

NEWLY_FAILING = 11
"""The exit status with `--exit-code` if a key newly fails."""

GROUP_MIN = 4
"""Keys with equal changes that are shown as one group."""

EXAMPLES_MAX = 3

_NUMBER = re.compile(r"\d+")


def write_plan(made_plan: MadePlan, output: str, *, each: bool = False) -> None:
    """Write a plan; *each* key by itself, or groups of keys that change alike."""
    made = made_plan.plan
    groups = _groups(made, at_least=len(made.keys) + 1 if each or output == WIDE else GROUP_MIN)
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
            if len(keys) == 1:
                _write_key(keys[0], made.keys[keys[0]])
            else:
                _write_group(keys, [made.keys[key] for key in keys])
        if made.garbage is not UNSET:
            for orphan in made.garbage.orphans:
                reason = orphan.held or made.garbage.refused or orphan.reason
                write_notice(f"kept: {orphan.name}: {reason}")
        write_line(str(made.summary))

    write_result(made, output, names=made.keys, table=table)


def write_missing(made_plan: MadePlan) -> None:
    """Write a notice of each bucket of primaries, and each requested key, that does not exist."""
    for bucket in made_plan.without_bucket:
        write_notice(f"bucket {bucket} does not exist: the plan takes it as empty")
    for key in made_plan.plan.missing or ():
        write_notice(f"{key} does not exist")


def exit_with_plan(plan: Plan, *, exit_code: bool) -> None:
    """Exit with the status of a plan; return if it is 0."""
    if plan.summary.newly_failed:
        raise typer.Exit(NEWLY_FAILING if exit_code else FAILED)
    if exit_code and plan.summary.changes:
        raise typer.Exit(CHANGES)


def _write_key(key: str, key_plan: KeyPlan) -> None:
    write_line(key or "(outside of a sync)")
    for action in key_plan.actions:
        write_signed(action_line(action), indent="  ")
        write_differences(action.diff, indent="      ")
    _write_rest(key_plan)


def _write_rest(key_plan: KeyPlan) -> None:
    """Write what a key's plan has beside its actions."""
    if key_plan.error:
        before = "as before: " if key_plan.failed_before else ""
        write_signed(f"! {before}{key_plan.error}", indent="  ")
    if key_plan.held_back:
        write_text(f"    {key_plan.held_back}")
    if key_plan.after_s is not None:
        write_text(f"    again after {duration(key_plan.after_s)}")


def _groups(plan: Plan, *, at_least: int) -> list[list[str]]:
    """Return the keys in groups that change alike; smaller groups are split into their keys."""
    alike: dict[object, list[str]] = {}
    for key, key_plan in plan.keys.items():
        alike.setdefault(_shape(key, key_plan), []).append(key)
    groups = [
        group
        for keys in alike.values()
        for group in ([keys] if len(keys) >= at_least else [[key] for key in keys])
    ]
    return sorted(groups, key=lambda keys: (-len(keys), keys[0]))


def _shape(key: str, key_plan: KeyPlan) -> object:
    """Return what the plans of keys that change alike have in common."""

    def general(text: str | UnsetType) -> str:
        return _NUMBER.sub("N", text.replace(key, "KEY")) if text and key else ""

    actions = Counter(_shape_of(action, key) for action in key_plan.actions)
    return (
        frozenset(actions.items()),
        general(key_plan.error),
        general(key_plan.held_back),
        key_plan.after_s,
        key_plan.failed_before,
    )


def _shape_of(action: Action, key: str) -> tuple[str, ...]:
    """Return the effect, the kind, and what else is the same in equal changes."""
    changed = action.action in ("update", "status")
    paths = (diff.path.replace(key, "KEY") if key else diff.path for diff in action.diff)
    call = "" if action.call is UNSET else action.call
    return (action.action, action.kind, call, *(paths if changed else ()))


def _write_group(keys: Sequence[str], key_plans: Sequence[KeyPlan]) -> None:
    examples = ", ".join(keys[:EXAMPLES_MAX])
    write_line(f"{len(keys):,} keys: {examples}{', …' if len(keys) > EXAMPLES_MAX else ''}")
    shapes: dict[tuple[str, ...], list[Action]] = {}
    for key, key_plan in zip(keys, key_plans, strict=True):
        for action in key_plan.actions:
            shapes.setdefault(_shape_of(action, key), []).append(action)
    for actions in shapes.values():
        write_signed(actions_line(actions), indent="  ")
    _write_rest(key_plans[0])


@app.add(
    "natsctl plan -c controllers.webapps:WebApps",
    "natsctl plan greetings/shop -c controllers.greetings:Greetings -o diff",
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
        controller_option("Controller class, or the name of one that runs"),
    ],
    objects: SomeNamesArgument = None,
    output: Annotated[str, output_option(DIFF)] = TABLE,
    all_: Annotated[
        bool, typer.Option("--all", help="Show each key, also if many change alike")
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit with 10 for changes, 11 if a key newly fails",
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log as a daemon would, with tracebacks")
    ] = False,
) -> None:
    """Show what a controller would do.

    The real handler runs for each key over the present objects; nothing is stored. The signs are
    + created, ~ changed, - deleted and ! error. With a name as natsctl status shows it, a daemon
    that runs the controller makes the plan, for a few keys. Exit code 1: a key newly fails.
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
    stores: StoreOptions, controller: str, names: Sequence[Name], output: str
) -> MadePlan:
    if output == DIFF:
        raise UsageError("-o diff needs the controller's class: give --controller M:C")
    async with open_fleet(stores.nats) as fleet:
        plan = await fleet.plan(controller, names)
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
        with progress_bar("planning", 0) as bar:
            made_plan = await make_plan(
                planned_controller,
                stores=planned(nats=nats, kube=kube, key_of=current_key),
                keys=keys,
                owner_names=stores.owner_names,
                progress=lambda done, total: bar(completed=min(done, total), total=total),
            )
        if not made_plan.plan.summary.newly_failed:
            return made_plan
        fleet = Fleet(nats.connection)
        try:
            failing = await fleet.failing_among(made_plan.plan)
        finally:
            await fleet.close()
        return structs_replace(made_plan, plan=made_plan.plan.compared(failing))


def _primary_kinds(controller: Controller | Guest) -> Sequence[Kind[Any]]:
    if isinstance(controller, Controller):
        return [only_primary(type(controller)).kind]
    return controller.kinds
