"""Writes plans, shows their progress, and chooses the exit status of a plan."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal

import typer
from msgspec import UNSET

from natsctl.cli.output.differences import described, write_differences, write_signed, write_unified
from natsctl.cli.output.printing import write_json
from natsctl.cli.output.terminal import Progress as Bar
from natsctl.cli.output.terminal import progress_bar, write_line, write_notice, write_text
from natsctl.daemon.plan import MadePlan, Progress
from natsctl.model.plans.plan import KeyPlan, Plan

FAILED = 1
"""The exit status if a key fails."""

CHANGES = 10
"""The exit status with `--exit-code` if the plan has changes."""


PlanOutput = Literal["tree", "json", "diff"]
"""An output format of a plan."""


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
            bars[0].reach(min(done, total))

        yield show


def write_plan(made_plan: MadePlan, output: PlanOutput) -> None:
    """Write a plan."""
    match output:
        case "json":
            write_json(made_plan.plan)
        case "diff":
            for change in made_plan.changes:
                write_unified(f"{change.kind}/{change.key}", change.before, change.after)
            _write_reasons(made_plan.plan)
            write_notice(str(made_plan.plan.summary))
        case "tree":
            for key, key_plan in made_plan.plan.keys.items():
                _write_key(key, key_plan)
            _write_garbage(made_plan.plan)
            write_line(str(made_plan.plan.summary))


def write_missing(made_plan: MadePlan) -> None:
    """Write a notice of each bucket of primaries, and each requested key, that does not exist."""
    for bucket in made_plan.without_bucket:
        write_notice(f"bucket {bucket} does not exist: the plan takes it as empty")
    for key in made_plan.plan.missing or ():
        write_notice(f"{key} does not exist")


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
    if key_plan.held_back:
        write_text(f"    {key_plan.held_back}")
    if key_plan.after_s is not None:
        write_text(f"    again after {key_plan.after_s:g} s")


def _write_reasons(plan: Plan) -> None:
    """Write why keys fail or are held back."""
    for key, key_plan in plan.keys.items():
        if reason := key_plan.error or key_plan.held_back:
            write_notice(f"{key}: {reason}")


def _write_garbage(plan: Plan) -> None:
    """Write the orphans that garbage collection keeps."""
    if plan.garbage is UNSET:
        return
    for orphan in plan.garbage.orphans:
        reason = orphan.held or plan.garbage.refused or orphan.reason
        write_notice(f"kept: {orphan.name}: {reason}")
