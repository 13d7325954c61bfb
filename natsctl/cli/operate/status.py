"""`natsctl status`: shows the daemons, their controllers and the keys that fail."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from natsctl.cli.framework.command import App, connected
from natsctl.cli.operate.find_daemon import NamedOption, controller_name, find_daemons
from natsctl.cli.output.explanations import lane_rows
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.daemon.api.messages import ControllerStatus
from natsctl.daemon.api.mode import Mode, counted
from natsctl.daemon.api.peers import conflict
from natsctl.jetstream.bucket.entries import NONE, short_time
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.telemetry.hiding import first_line

app = App()

HEADINGS = (
    *("CONTROLLER", "DAEMON", "STATE", "MODE", "PRIMARIES", "KEYS"),
    *("INVALID", "FAILING", "PAUSED", "CONTESTED", "QUEUED", "WAITING", "OLDEST"),
)
WIDE_HEADINGS = ("READY", "HELD", "SYNCS", "FAILED")
QUEUED_HEADINGS = ("CONTROLLER", "DAEMON", "KEY", "QUEUE", "REASON")


@app.add(
    "natsctl status",
    "natsctl status -o wide",
    "natsctl status -c greetings -o json | jq '.[].failing'",
)
@connected
async def status(
    options: NatsOptions, *, controller: NamedOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Show the daemons, their controllers and the keys that fail.

    MODE is leader or standby with --leader-elect, the shard with --shard, and alone without either.
    If several daemons run a controller alone, each daemon syncs every key, and MODE shows their
    number. KEYS counts the primaries that the daemon syncs. QUEUED counts the keys that are ready
    or held by a worker. WAITING counts the keys that are queued for a later time, such as failing
    keys until their next retry. OLDEST is the time since the first change that no sync has answered
    yet, or since the first failure of a key that still fails, also before a restart; the changes of
    keys that a worker holds do not count. PAUSED counts the paused keys; it is
    all if the whole controller is paused. CONTESTED counts the keys with Kubernetes objects whose
    fields another writer changes back again and again.

    With -o wide, READY and HELD divide QUEUED, and SYNCS and FAILED count the syncs of the last 15
    minutes. A second table lists the keys that workers have held the longest, those that have been
    ready the longest, and those that are due next.
    """
    async with find_daemons(options) as daemons:
        name = controller_name(controller)
        names = daemons.controllers if name is None else [daemons.controller(name)]
        statuses = [status for name in names for status in await daemons.status(name)]
    wide = output is Output.WIDE
    controllers = dict.fromkeys(status.controller for status in statuses)
    write_result(statuses, output, names=controllers, table=lambda: _write(statuses, wide=wide))


def _write(statuses: Sequence[ControllerStatus], *, wide: bool) -> None:
    alone = Counter(status.controller for status in statuses if status.mode == Mode.ALONE)
    rows = [_row(status, alone[status.controller]) for status in statuses]
    if wide:
        rows = [[*row, *_wide_cells(status)] for row, status in zip(rows, statuses, strict=True)]
    write_table((*HEADINGS, *WIDE_HEADINGS) if wide else HEADINGS, rows)
    queued = [row for status in statuses for row in _queued_rows(status)] if wide else []
    if queued:
        write_line("")
        write_table(QUEUED_HEADINGS, queued)
    for name in dict.fromkeys(status.controller for status in statuses):
        reason = conflict([status for status in statuses if status.controller == name])
        if reason:
            write_notice(f"{name}: {reason}")
    for installation in sorted({status.installation for status in statuses} - {""}):
        write_notice(f"installation {installation}")
    problems = (problem for status in statuses for problem in _problems(status))
    for problem in dict.fromkeys(problems):  # several daemons can have the same problem
        write_notice(problem)


def _row(status: ControllerStatus, alone: int) -> list[str]:
    mode = counted(status.mode, alone) or NONE
    head = [status.controller, str(status.daemon), status.state, mode]
    if status.primaries is None or status.queue is None:
        cells = [*head, *[NONE] * (len(HEADINGS) - len(head))]
        if status.state == "syncing":  # a program, which has no primaries
            cells[HEADINGS.index("FAILING")] = str(status.failing_count)
        return cells
    keys = NONE if status.keys is None else status.keys
    numbers = (
        *(status.primaries, keys),
        *(status.invalid_count, status.failing_count, _paused(status), status.contested_count),
        *(status.queue.depth + status.queue.held, status.queue.waiting),
    )
    oldest_s = status.oldest_unanswered_s
    return [*head, *map(str, numbers), NONE if oldest_s is None else short_time(oldest_s)]


def _wide_cells(status: ControllerStatus) -> list[str]:
    queue, activity = status.queue, status.activity
    places = [NONE, NONE] if queue is None else [str(queue.depth), str(queue.held)]
    if activity is None:
        return [*places, NONE, NONE]
    return [*places, str(sum(activity.syncs)), str(sum(activity.failures))]


def _queued_rows(status: ControllerStatus) -> Iterator[list[str]]:
    """Yield a row for each key in the lanes."""
    for row in lane_rows(status.lanes):
        yield [status.controller, str(status.daemon), *row]


def _paused(status: ControllerStatus) -> str:
    return str(status.paused_count) if status.paused_controller is None else "all"


def _problems(status: ControllerStatus) -> Iterator[str]:
    """Yield one line for each problem of a controller in one daemon."""
    name = status.controller
    if status.members:
        yield f"{name}: {_members(len(status.members))}"
    if status.trouble:
        yield f"{name}: {status.trouble}"
    if status.failure:
        yield f"{name}: {status.failure}"
    if status.paused_controller is not None:
        pause = status.paused_controller
        yield f"{name}: it is paused {pause}: natsctl resume --all -c {name}"
    if status.garbage_held:
        yield (
            f"{name}: garbage collection is held: {status.garbage_held}; "
            f"see natsctl gc accept -c {name}"
        )
    for kind in status.missing_kinds:
        yield f"{name}: the cluster does not have the optional kind {kind}"
    yield from _keys(name, "is skipped", status.invalid, status.invalid_count)
    yield from _keys(name, "fails", status.failing, status.failing_count)
    yield from _keys(name, "is quarantined", status.quarantined, status.quarantined_count)
    yield from _keys(name, "is paused", status.paused, status.paused_count)
    yield from _keys(name, "is contested", status.contested, status.contested_count)


def _members(count: int) -> str:
    return "one member has all keys" if count == 1 else f"{count} members share the keys"


def _keys(controller: str, state: str, reasons: Mapping[str, str], count: int) -> Iterator[str]:
    for key, reason in reasons.items():
        yield f"{controller}: {key} {state}: {first_line(reason)}"
    if count > len(reasons):
        yield f"{controller}: and {count - len(reasons)} more"
