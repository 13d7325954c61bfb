"""`natsctl gc` and `natsctl repair gc`: the daemon that leads a controller collects its garbage."""

import msgspec
import typer

from natsctl.cli.command import CONFLICT, App, NamedController, Yes
from natsctl.cli.output import TABLE, OutputOption, write_result, write_table
from natsctl.cli.terminal import confirm, write_line, write_notice
from natsctl.cli.values import parsed, read_bytes
from natsctl.daemon.messages import ControllerPlan
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.model.plans import GarbagePlan
from natsctl.operate.fleet import NoGarbageError, open_fleet

app = App()


@app.callback()
def gc() -> None:
    """Find and remove secondaries whose owner does not exist."""


@app.add(
    "natsctl gc plan --controller greetings",
    "natsctl gc plan -c greetings -o json > plan.json",
    called="plan",
)
async def plan_(
    options: NatsOptions,
    *,
    controller: NamedController = None,
    output: OutputOption = TABLE,
) -> None:
    """Show the secondaries whose owner does not exist.

    Nothing is removed. Each owner is looked for at the leader of its bucket. Objects that lost
    their labels are listed too, and never removed. If collection is held, the reason is shown.
    """
    try:
        async with open_fleet(options) as fleet:
            plan = await fleet.garbage(controller)
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
    plan="FILE | File of gc plan -o json; - reads standard input [default: a new plan]",
    force="With --yes, remove even while garbage collection is held",
)
async def apply(  # noqa: C901 - one straight line
    options: NatsOptions,
    *,
    controller: NamedController = None,
    plan: str | None = None,
    yes: Yes = False,
    force: bool = False,
) -> None:
    """Remove the objects of a plan.

    An object is removed only if it still has the planned revision and its owner still does not
    exist. The exit code is 4 if an object was kept, or if the plan lacks suspects.
    """
    async with open_fleet(options) as fleet:
        if plan is None:
            chosen = await fleet.garbage(controller)
        else:
            try:
                chosen = msgspec.convert(parsed(read_bytes(plan))[0], ControllerPlan)
            except msgspec.ValidationError as error:
                raise UsageError(
                    f"{plan} is not a plan of natsctl gc plan -o json: {error}"
                ) from error
            if controller is not None:
                own = (await fleet.daemons()).controller(controller)
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
    async with open_fleet(options) as fleet:
        removed = await (await fleet.daemons()).apply(chosen)
    reasons = {kept.orphan: kept.reason for kept in removed.kept}
    for orphan in owned:
        if orphan in removed.orphans:
            write_line(f"{orphan.name} deleted")
        else:
            write_notice(f"{orphan.name} kept: {reasons[orphan]}")
    if len(removed.orphans) < len(owned) or chosen.more:
        raise typer.Exit(CONFLICT)


async def accept(
    options: NatsOptions,
    *,
    controller: NamedController = None,
    yes: Yes = False,
) -> None:
    """Accept the bucket of primaries as it is, so that garbage collection continues.

    Collection is held if the bucket was recreated, restored from an older copy, or suddenly lost
    many keys. After this command, every secondary whose owner does not exist is garbage.
    """
    async with open_fleet(options) as fleet:
        plan = await fleet.garbage(controller)
        if not plan.refused:
            write_notice("nothing is held: there is nothing to accept")
            return
        _write_garbage(plan)
        confirm("Accept the bucket as it is, and collect these objects?", yes=yes)
        after = await (await fleet.daemons()).accept(plan)
    if after.refused:
        write_notice(f"still held, until natsctl gc apply removes the objects: {after.refused}")
        raise typer.Exit(CONFLICT)
    write_line("accepted")


def _write_garbage(plan: GarbagePlan) -> None:
    if plan.orphans:
        rows = [
            (one.kind, one.key, one.revision, one.owner, one.held or one.reason)
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
