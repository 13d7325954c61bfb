"""Describes controllers and keys as rows of tables."""

from collections.abc import Sequence

import msgspec
from rich.text import Text

from natsctl.cli.output.explanations import lane_rows
from natsctl.cli.top.answers import ControllerState
from natsctl.console.answers import Partial, Problem
from natsctl.console.home import Failures
from natsctl.console.statuses import StatusRow
from natsctl.jetstream.bucket.entries import NONE, short_time
from natsctl.jetstream.connection.connection import ConnectionState
from natsctl.telemetry.escaping import escaped
from natsctl.telemetry.hiding import abbreviated, first_line

NARROW = 100
"""Columns of a terminal, below which tables leave out some of theirs."""

BARS = "▁▂▃▄▅▆▇█"
BARS_MAX = 12
NAME_MAX = 20  # characters of a controller's name on a narrow terminal

GOOD, WARNING, BAD = "green", "yellow", "bold red"

CONTROLLER_HEADINGS = (
    *("CONTROLLER", "STATE", "MODE", "KEYS", "FAIL", "INV", "PAUSE", "QUEUE", "OLDEST"),
    *("SYNCS", "ERRORS"),
)
WIDE_ONLY = 2
"""The last columns of the controllers, which a narrow terminal does not show."""

FAILURE_HEADINGS = ("KEYS", "CONTROLLER", "MESSAGE")
KEY_HEADINGS = ("KEY", "STATE", "REASON")

_STATES = {"syncing": GOOD, "blocked": BAD, "no answer": BAD}


class KeyRow(msgspec.Struct, frozen=True):
    """A key that needs attention or is in the work queue."""

    controller: str
    key: str
    state: str
    reason: str


def controller_cells(row: StatusRow, *, wide: bool) -> list[Text]:
    """Return the cells under `CONTROLLER_HEADINGS`."""
    state = "no answer" if row.error is not None else row.state
    mode = Text(f"{row.mode} !", BAD) if row.conflict else Text(row.mode or NONE)
    paused = Text("all", WARNING) if row.paused_whole is not None else _count(row.paused, WARNING)
    queued = None if row.queued is None else row.queued + (row.held or 0)
    cells = [
        text(row.name if wide else abbreviated(row.name, NAME_MAX)),
        Text(state or NONE, _STATES.get(state, WARNING)),
        mode,
        _count(row.keys),
        _count(row.failing, BAD),
        _count(row.invalid, BAD),
        paused,
        _count(queued),
        _count_s(row.oldest_unanswered_s),
    ]
    if not wide:
        return cells
    if row.activity is None:
        return [*cells, Text(NONE), Text(NONE)]
    return [*cells, Text(bars(row.activity.syncs)), Text(bars(row.activity.failures), BAD)]


def failure_cells(failures: Failures) -> list[Text]:
    """Return the cells under `FAILURE_HEADINGS`."""
    names = ", ".join(sorted({key.controller for key in failures.keys}))
    return [Text(str(failures.count), BAD), text(names), text(first_line(failures.message))]


def key_cells(row: KeyRow) -> list[Text]:
    """Return the cells under `KEY_HEADINGS`."""
    style = BAD if row.state.startswith(("failing", "invalid", "quarantined")) else ""
    return [text(row.key), Text(row.state, style), text(first_line(row.reason))]


def keys_of(state: ControllerState) -> list[KeyRow]:
    """Return the keys of a controller that need attention or are in its queue, each key once."""
    if state.row is None:
        return []
    name = state.row.name
    queued = {key: place for key, *place in lane_rows(state.row.lanes)}
    rows = [
        KeyRow(name, key, _with_place(kind, queued.pop(key, None)), reason)
        for key, (kind, reason) in sorted(state.keys.items())
    ]
    return rows + [KeyRow(name, key, *described) for key, described in queued.items()]


def _with_place(state: str, queued: list[str] | None) -> str:
    return state if queued is None else f"{state}, {queued[0]}"


def facts_of(state: ControllerState) -> list[str]:
    """Return lines about a controller that the tables do not show."""
    row = state.row
    if row is None:
        return ["no daemon runs the controller now"]
    lines = [
        f"{daemon.name}: {daemon.state if daemon.answered else 'no answer'} {daemon.mode}".rstrip()
        for daemon in row.daemons
    ]
    lines += [row.conflict, *row.problems]
    if row.paused_whole is not None:
        lines.append(f"the controller is paused {row.paused_whole}")
    if row.garbage_held:
        lines.append(f"garbage collection is held: {row.garbage_held}")
    if row.error is not None:
        lines.append(row.error.message)
    counts = (row.quarantined, row.invalid, row.failing, row.paused)
    unlisted = sum(count or 0 for count in counts) - len(state.keys)
    if unlisted > 0:
        lines.append(f"and {unlisted} more keys need attention")
    return [escaped(line) for line in lines if line]


def state_of(
    connection: ConnectionState, problem: Problem | None, partial: Partial | None, stale_s: float
) -> Text:
    """Return the line that states how current the view is."""
    if not connection.connected:
        error = f": {connection.last_error}" if connection.last_error else ""
        return Text(escaped(f"no update for {short_time(stale_s)}, reconnecting{error}"), BAD)
    if problem is not None:
        return Text(escaped(first_line(refusal(problem))), BAD)
    if partial is not None:
        missing = ", ".join(partial.missing)
        count = f"{partial.answered} of {partial.expected} daemons answered"
        return Text(escaped(f"{count}; no answer from {missing}"), WARNING)
    return Text(escaped(f"live from {connection.server}"))


def refusal(problem: Problem) -> str:
    """Return why a request failed."""
    return f"refused: {problem.message}" if problem.reason == "refused" else problem.message


def bars(counts: Sequence[int]) -> str:
    """Return the last counts as bars; each bar has the sum of several counts if they are many."""
    step = -(-len(counts) // BARS_MAX) or 1
    sums = [sum(counts[max(0, end - step) : end]) for end in range(len(counts), 0, -step)][::-1]
    highest = max(sums, default=0)
    if not highest:
        return "·" * len(sums)
    heights = (-(-count * len(BARS) // highest) for count in sums)
    return "".join(BARS[height - 1] if height else "·" for height in heights)


def text(content: str) -> Text:
    """Return the text of an object, whose control characters are escaped."""
    return Text(escaped(content))


def matches(cells: Sequence[Text], pattern: str) -> bool:
    """Return whether a cell of a row contains the pattern, in any case."""
    return not pattern or any(pattern.lower() in cell.plain.lower() for cell in cells)


def _count(number: int | None, style: str = "") -> Text:
    return Text(NONE if number is None else str(number), style if number else "", justify="right")


def _count_s(seconds: float | None) -> Text:
    return Text(NONE if seconds is None else short_time(seconds), justify="right")
