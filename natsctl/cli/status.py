"""`natsctl status`: shows the controllers, their daemons, and the keys that need you."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Annotated

import typer

from natsctl.cli.arguments import NamedOption, controller_name
from natsctl.cli.command import App, connected
from natsctl.cli.describe import lane_rows
from natsctl.cli.output import (
    TABLE,
    WIDE,
    OutputOption,
    duration,
    in_colour,
    table_lines,
    write_result,
)
from natsctl.cli.terminal import flush, write_text
from natsctl.daemon.doctor.buckets import check_mirrors
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.absent import DOWN
from natsctl.operate.entries import NONE
from natsctl.operate.fleet import Fleet, Statuses, open_fleet
from natsctl.operate.statuses import StatusRow, problems_of
from natsctl.telemetry.escaping import escaped

app = App()

HEADINGS = (
    *("CONTROLLER", "DAEMON", "STATE", "MODE", "PRIMARIES", "KEYS"),
    *("INVALID", "FAILING", "QUARANTINED", "PAUSED", "CONTESTED", "QUEUED", "WAITING", "OLDEST"),
)

DAEMON_HEADINGS = ("CONTROLLER", "DAEMON", "STATE", "MODE", "KEYS")

WIDE_HEADINGS = ("READY", "HELD", "SYNCS", "FAILED")

QUEUED_HEADINGS = ("CONTROLLER", "DAEMON", "KEY", "QUEUE", "REASON")


REFRESH_S = 2.0


@app.add(
    "natsctl status",
    "natsctl status -w",
    "natsctl status -c greetings -o json | jq '.[].failing'",
)
@connected
async def status(
    options: NatsOptions,
    *,
    controller: NamedOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every two seconds")
    ] = False,
    output: OutputOption = TABLE,
) -> None:
    """Show the controllers, the daemons that run them, and the keys that need you.

    Each controller has one row; one that no daemon runs is down and comes first. MODE is how its
    daemons share the work. KEYS counts the primaries that are synced, QUEUED those that are ready
    or being synced, WAITING those that are due later. OLDEST is the time since the first change
    that no sync has answered, or since the first failure. -o wide adds daemons and queues.
    """
    named = controller_name(controller)
    async with open_fleet(options) as fleet:
        if not watch:
            known = await fleet.statuses(named)
            sources = [source for found in known.controllers for source in found.row.sources]
            buckets = [source.bucket for source in sources if source.bucket]
            found = [finding async for finding in check_mirrors(fleet.connection, buckets)]
            _write(known, output, [f"{finding.check}: {finding.found}" for finding in found])
            return
        if output not in (TABLE, WIDE):
            raise UsageError("--watch draws a table: use -o json with a loop of your shell")
        await _redraw(fleet, named, wide=output == WIDE)


async def _redraw(fleet: Fleet, named: str | None, *, wide: bool) -> None:
    """Draw the status again and again: in place on a terminal, else each time that it changes."""
    from rich.live import Live  # noqa: PLC0415 - only this needs it
    from rich.text import Text  # noqa: PLC0415 - likewise

    terminal, before = sys.stdout.isatty(), ""
    with Live(auto_refresh=False, screen=False) if terminal else nullcontext() as live:
        while True:
            try:
                lines = _lines(await fleet.statuses(named), wide=wide)
            except NatsctlError as error:
                lines = [f"unknown: {error}"]
            text = "\n".join(map(escaped, lines))
            if live is not None:
                shown = Text(f"{text}\n{datetime.now().astimezone():%H:%M:%S}")
                shown.highlight_words(["down", "blocked", "no answer"], "red")
                live.update(shown, refresh=True)
            elif text != before:
                write_text(text)
                flush()
            before = text
            await asyncio.sleep(REFRESH_S)


def _write(known: Statuses, output: str, mirrors: Sequence[str]) -> None:
    statuses = [status for found in known.controllers for status in found.statuses]
    controllers = dict.fromkeys(status.controller for status in statuses)

    def table() -> None:
        for number, line in enumerate(_lines(known, wide=output == WIDE, mirrors=mirrors)):
            write_text(in_colour(escaped(line)) if number else escaped(line))

    write_result(statuses, output, names=controllers, table=table)


def _lines(known: Statuses, *, wide: bool, mirrors: Sequence[str] = ()) -> list[str]:
    """Return the table of controllers, further tables if *wide*, and the problems."""
    rows = [controller.row for controller in known.controllers]
    statuses = [status for controller in known.controllers for status in controller.statuses]
    cells = [[*_cells(row), *(_wide_cells(row) if wide else ())] for row in rows]
    headings = (*HEADINGS, *WIDE_HEADINGS) if wide else HEADINGS
    lines = table_lines(headings, cells)
    if wide:
        daemons = [cells for row in rows for cells in _daemon_cells(row)]
        queued = [
            [status.controller, str(status.daemon), *row]
            for status in statuses
            for row in lane_rows(status.lanes)
        ]
        for more_headings, more in ((DAEMON_HEADINGS, daemons), (QUEUED_HEADINGS, queued)):
            lines += ["", *table_lines(more_headings, more)] if more else []
    problems = [problem for found in known.controllers for problem in problems_of(found)]
    problems += mirrors
    if known.unknown:
        problems.append(f"it is not known which controllers should run: {known.unknown}")
    lines += ["", *problems] if problems else []
    installations = sorted({status.installation for status in statuses} - {""})
    return lines + ([f"installation {one}" for one in installations] if wide else [])


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
        NONE if oldest_s is None else duration(oldest_s),
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
