"""`natsctl status`: shows the daemons, their controllers and the keys that fail."""

from collections.abc import Iterator, Sequence

from natsctl.cli.framework.command import App, connected
from natsctl.cli.operate.find_daemon import NamedOption, controller_name
from natsctl.cli.output.explanations import lane_rows
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.cli.output.terminal import write_line, write_notice
from natsctl.daemon.api.messages import ControllerStatus
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.absent import DOWN
from natsctl.operate.entries import NONE, short_time
from natsctl.operate.fleet import open_fleet
from natsctl.operate.statuses import ControllerStatuses, StatusRow, problems_of

app = App()

HEADINGS = (
    *("CONTROLLER", "DAEMON", "STATE", "MODE", "PRIMARIES", "KEYS"),
    *("INVALID", "FAILING", "QUARANTINED", "PAUSED", "CONTESTED", "QUEUED", "WAITING", "OLDEST"),
)
DAEMON_HEADINGS = ("CONTROLLER", "DAEMON", "STATE", "MODE", "KEYS")
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
    """Show the controllers, the daemons that run them, and the keys that need you.

    Each controller has one row. One that no daemon runs is down and comes first: its keys are what
    NATS has of them. MODE is leader with --leader-elect, the number of shards with --shard, and
    alone without either. If several daemons run a controller alone, each of them syncs every key,
    and MODE shows their number. KEYS counts the primaries that are synced. QUARANTINED counts the
    keys that are not synced because they killed their process. QUEUED counts the keys that are
    ready or held by a worker. WAITING counts the keys that are queued for a later time, such as
    failing keys until their next retry. OLDEST is the time since the first change that no sync has
    answered yet, or since the first failure of a key that still fails, also before a restart; the
    changes of keys that a worker holds do not count. PAUSED counts the paused keys; it is all if
    the whole controller is paused. CONTESTED counts the keys with Kubernetes objects whose fields
    another writer changes back again and again.

    With -o wide, READY and HELD divide QUEUED, and SYNCS and FAILED count the syncs of the last 15
    minutes. Further tables list the daemons of each controller, and the keys that workers have held
    the longest, those that have been ready the longest, and those that are due next. With -o json,
    each controller has an entry for each of its daemons.
    """
    async with open_fleet(options) as fleet:
        answer = await fleet.statuses(controller_name(controller))
    statuses = [status for found in answer.controllers for status in found.statuses]
    wide = output is Output.WIDE
    controllers = dict.fromkeys(status.controller for status in statuses)
    write_result(
        statuses, output, names=controllers, table=lambda: _write(answer.controllers, wide=wide)
    )
    if answer.unknown:
        write_notice(f"it is not known which controllers should run: {answer.unknown}")


def _write(controllers: Sequence[ControllerStatuses], *, wide: bool) -> None:
    rows = [controller.row for controller in controllers]
    cells = [[*_cells(row), *(_wide_cells(row) if wide else ())] for row in rows]
    write_table((*HEADINGS, *WIDE_HEADINGS) if wide else HEADINGS, cells)
    statuses = [status for controller in controllers for status in controller.statuses]
    if wide:
        _write_more(DAEMON_HEADINGS, [cells for row in rows for cells in _daemon_cells(row)])
        queued = [row for status in statuses for row in _queued_rows(status)]
        _write_more(QUEUED_HEADINGS, queued)
    problems = [problem for found in controllers for problem in problems_of(found)]
    _write_more((), [[problem] for problem in problems])
    for installation in sorted({status.installation for status in statuses} - {""}):
        write_notice(f"installation {installation}")


def _write_more(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write one more table, or lines without headings, after an empty line."""
    if not rows:
        return
    write_line("")
    if headings:
        write_table(headings, rows)
        return
    for row in rows:
        write_line(row[0])


def _cells(row: StatusRow) -> list[str]:
    names = [daemon.name for daemon in row.daemons]
    daemon = names[0] if len(names) == 1 else f"{len(names)} daemons" if names else NONE
    queued = None if row.queued is None else row.queued + (row.held or 0)
    paused = "all" if row.paused_whole is not None else _number(row.paused)
    numbers = (row.primaries, row.keys, row.invalid, row.failing, row.quarantined)
    if row.primaries is None and row.state not in ("syncing", DOWN):
        numbers, paused = (None,) * 5, NONE  # it has just started
    elif row.primaries is None:  # a program, or nobody knows
        numbers = (None, None, None, row.failing, row.quarantined)
    oldest_s = row.oldest_unanswered_s
    return [
        *(row.name, daemon, row.state, row.mode or NONE),
        *map(_number, numbers),
        *(paused, NONE if row.primaries is None else _number(row.contested)),
        *(_number(queued), _number(row.waiting)),
        NONE if oldest_s is None else short_time(oldest_s),
    ]


def _wide_cells(row: StatusRow) -> list[str]:
    activity = row.activity
    places = [_number(row.queued), _number(row.held)]
    if activity is None:
        return [*places, NONE, NONE]
    return [*places, str(sum(activity.syncs)), str(sum(activity.failures))]


def _daemon_cells(row: StatusRow) -> Iterator[list[str]]:
    for daemon in row.daemons if len(row.daemons) > 1 else ():
        yield [row.name, daemon.name, daemon.state, daemon.mode or NONE, _number(daemon.keys)]


def _number(count: int | None) -> str:
    return NONE if count is None else str(count)


def _queued_rows(status: ControllerStatus) -> Iterator[list[str]]:
    """Yield a row for each key in the lanes."""
    for row in lane_rows(status.lanes):
        yield [status.controller, str(status.daemon), *row]
