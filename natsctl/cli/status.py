"""`natsctl status`, `describe` and `events`: controllers, a key, and what happened."""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, time, timedelta

import msgspec

from natsctl.cli.command import ONE, App, NamedController, OneObject
from natsctl.cli.output import (
    JSON,
    TABLE,
    TABLES,
    WIDE,
    OutputOption,
    action_line,
    duration,
    table_lines,
    write_coloured,
    write_json,
    write_result,
    write_rows,
    write_table,
)
from natsctl.cli.terminal import flush, write_line, write_notice, write_text
from natsctl.daemon.doctor.mirrors import check_mirrors
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.events import FOUND_MAX, KvEvent
from natsctl.jetstream.options import NatsOptions
from natsctl.model.reports import Branch, Queued
from natsctl.model.store import planned_revision
from natsctl.model.times import time_in
from natsctl.operate.fleet import Fleet, Statuses, open_fleet
from natsctl.operate.objects import NONE, age, parse_name
from natsctl.operate.pauses import duration_in
from natsctl.operate.statuses import DOWN, Description, StatusRow, problems_of
from natsctl.telemetry.escaping import escaped

app = App()

HEADINGS = (
    *("CONTROLLER", "DAEMON", "STATE", "MODE", "PRIMARIES", "KEYS"),
    *("INVALID", "FAILING", "QUARANTINED", "PAUSED", "CONTESTED", "QUEUED", "WAITING", "OLDEST"),
)
WIDE_HEADINGS = ("READY", "HELD", "SYNCS", "FAILED")
DAEMON_HEADINGS = ("CONTROLLER", "DAEMON", "STATE", "MODE", "KEYS")
QUEUED_HEADINGS = ("CONTROLLER", "DAEMON", "KEY", "QUEUE", "REASON")
PLACES = ("held for", "ready for", "due in")
REFRESH_S = 2.0


@app.add(
    "natsctl status",
    "natsctl status -w",
    "natsctl status -c greetings -o json | jq '.[].failing'",
    watch="-w | Show it again every two seconds",
)
async def status(
    options: NatsOptions,
    *,
    controller: NamedController = None,
    watch: bool = False,
    output: OutputOption = TABLE,
) -> None:
    """Show the controllers, the daemons that run them, and the keys that need you.

    Each controller has one row; one that no daemon runs is down and comes first. MODE is how its
    daemons share the work. KEYS counts the primaries that are synced, QUEUED those that are ready
    or being synced, WAITING those that are due later. OLDEST is the time since the first change
    that no sync has answered, or since the first failure. -o wide adds daemons and queues.
    """
    async with open_fleet(options) as fleet:
        if watch:
            if output not in TABLES:
                raise UsageError("--watch draws a table: use -o json with a loop of your shell")
            await _redraw(fleet, controller, wide=output == WIDE)
        known = await fleet.statuses(controller)
        sources = [source for found in known.controllers for source in found.row.sources]
        buckets = [source.bucket for source in sources if source.bucket]
        mirrors = [
            f"{finding.check}: {finding.found}"
            async for finding in check_mirrors(fleet.connection, buckets)
        ]

    def table() -> None:
        for line in _status_lines(known, wide=output == WIDE, mirrors=mirrors):
            write_coloured(line)

    statuses = [status for found in known.controllers for status in found.statuses]
    write_result(
        statuses, output, names=dict.fromkeys(one.controller for one in statuses), table=table
    )


async def _redraw(fleet: Fleet, controller: str | None, *, wide: bool) -> None:
    """Draw the status again and again: in place on a terminal, else each time that it changes."""
    from rich.live import Live  # noqa: PLC0415 - only this needs it
    from rich.text import Text  # noqa: PLC0415 - likewise

    terminal, before = sys.stdout.isatty(), ""
    with Live(auto_refresh=False, screen=False) if terminal else nullcontext() as live:
        while True:
            try:
                text = "\n".join(_status_lines(await fleet.statuses(controller), wide=wide))
            except NatsctlError as error:
                text = escaped(f"unknown: {error}")
            if live is not None:
                shown = Text(f"{text}\n{datetime.now().astimezone():%H:%M:%S}")
                shown.highlight_words(["down", "blocked", "no answer"], "red")
                live.update(shown, refresh=True)
            elif text != before:
                write_text(text)
                flush()
            before = text
            await asyncio.sleep(REFRESH_S)


def _status_lines(known: Statuses, *, wide: bool, mirrors: Sequence[str] = ()) -> list[str]:
    """Return the table of controllers, further tables if *wide*, and the problems; escaped."""
    rows = [found.row for found in known.controllers]
    statuses = [status for found in known.controllers for status in found.statuses]
    headings = (*HEADINGS, *WIDE_HEADINGS) if wide else HEADINGS
    lines = table_lines(headings, [_cells(row)[: len(headings)] for row in rows])
    daemons = [
        (row.name, daemon.name, daemon.state, daemon.mode, daemon.keys)
        for row in rows
        for daemon in (row.daemons if len(row.daemons) > 1 else ())
    ]
    queued = [
        (one.controller, one.daemon, key.key, f"{place} {duration(key.s)}", key.reason)
        for one in statuses
        if (lanes := one.lanes) is not None
        for place, keys in zip(PLACES, (lanes.held, lanes.ready, lanes.waiting), strict=True)
        for key in keys
    ]
    for more_headings, more in ((DAEMON_HEADINGS, daemons), (QUEUED_HEADINGS, queued)):
        lines += ["", *table_lines(more_headings, more)] if wide and more else []
    problems = [problem for found in known.controllers for problem in problems_of(found)]
    problems += mirrors
    if known.unknown:
        problems.append(f"it is not known which controllers should run: {known.unknown}")
    lines += ["", *map(escaped, problems)] if problems else []
    installations = sorted({one.installation for one in statuses} - {""}) if wide else ()
    return lines + [f"installation {escaped(one)}" for one in installations]


def _cells(row: StatusRow) -> list[object]:
    names = [daemon.name for daemon in row.daemons]
    daemon = names[0] if len(names) == 1 else f"{len(names)} daemons" if names else None
    counts = [row.primaries, row.keys, row.invalid, row.failing, row.quarantined]
    paused = "all" if row.paused_whole is not None else row.paused
    contested = row.contested
    if row.primaries is None:  # a program, nobody knows, or it has just started
        known = row.state in ("syncing", DOWN)
        counts = [None, None, None, *(counts[3:] if known else (None, None))]
        paused, contested = paused if known else None, None
    queued = None if row.queued is None else row.queued + (row.held or 0)
    oldest_s = row.oldest_unanswered_s
    return [
        *(row.name, daemon, row.state, row.mode, *counts, paused, contested, queued, row.waiting),
        None if oldest_s is None else duration(oldest_s),
        *(row.queued, row.held, row.syncs, row.failures),  # if it's wide
    ]


# ---- one key


@app.add(
    "natsctl describe greetings/shop",
    "natsctl describe greetings shop -o json | jq '.[].syncs[-1].error'",
)
async def describe(
    options: NatsOptions,
    *,
    object_: OneObject,
    controller: NamedController = None,
    output: OutputOption = TABLE,
) -> None:
    """Describe the state of a key, and the objects that were made for it.

    The state has the key's place in the work queue, its last syncs and events, its conditions, and
    what it owns and reads. Without a daemon, it's what NATS knows. READY is Pending until an
    object's controller has observed its newest generation.
    """
    name, now = parse_name(object_), datetime.now(UTC)
    async with open_fleet(options) as fleet:
        found = await fleet.describe(name, controller)
    tree = found[0].tree or Branch(kind=found[0].source, key=found[0].key)

    def table() -> None:
        for number, description in enumerate(found):
            if number:
                write_line("")
            for line in _description_lines(description, now):
                write_text(line)
        if tree.branches:
            write_text("\nobjects:")
            rows = [
                (
                    *(prefix + branch.name, branch.ready, branch.reason),
                    *(branch.revision, age(branch.created, now)),
                )
                for prefix, branch in _branches(tree)
            ]
            write_table(["OBJECT", "READY", "REASON", "REVISION", "AGE"], rows)
            if tree.more:
                write_line(f"and {tree.more} more objects")

    names = [str(name), *(branch.name for branch in tree.branches)]
    write_result(found, output, names=names, table=table)


def _branches(branch: Branch, prefix: str = "", indent: str = "") -> Iterator[tuple[str, Branch]]:
    """Yield every branch with the lines that are drawn before its name."""
    yield prefix, branch
    for number, child in enumerate(branch.branches, 1):
        last = number == len(branch.branches)
        corner, line = ("└─", "  ") if last else ("├─", "│ ")
        yield from _branches(child, indent + corner, indent + line)


def _description_lines(  # noqa: C901 - one straight line
    key: Description, now: datetime
) -> Iterator[str]:
    name = f"{key.source}/{key.key}" if key.source else key.key
    place = f", in {key.daemon}" if key.daemon.pid else ", which no daemon runs"
    of_controller = f"{key.key} of {key.controller}{place}"
    yield escaped(of_controller if key.controller else f"{name}, which no controller syncs")
    owned = [f"{kind}/{one}" for kind, keys in key.owned.items() for one in keys]
    owned += [f"and {key.owned_more} more"] if key.owned_more else []
    planned = () if key.planned is None else map(action_line, key.planned.actions)
    object_, paused, fails = "does not exist", "", ""
    if key.revision is not None:
        is_planned = planned_revision(key.revision)
        object_ = "a planned revision" if is_planned else f"revision {key.revision}"
    elif key.exists or key.invalid:
        object_ = "no revision of it was valid"
    if key.paused is not None:
        scope = "with the whole controller, " if key.paused.controller else ""
        waits = "; a sync waits until it is resumed" if key.paused.pending else ""
        paused = f"{scope}{key.paused}{waits}"
    if key.failing_since is not None:
        fails = f"{age(key.failing_since.isoformat(), now)} ago"
    held = key.garbage_held and f"garbage collection is held: {key.garbage_held}"
    fields: dict[str, Iterable[str]] = {
        "object": [object_],
        "owner": [key.owner],
        "member": [_member(key)],
        "skipped": [key.invalid],
        "kept": [held],
        "paused": [paused],
        "quarantined": [key.quarantined and f"{key.quarantined}: natsctl resync {name}"],
        "fails since": [fails],
        "external": key.external,
        "conditions": key.conditions,
        "queue": [_queue(key.queued, key.failures) if key.daemon.pid else ""],
        "owns": [", ".join(owned) or NONE] if key.controller else [],
        "held": key.held,
        "reads": key.reads,
        "contested": key.contested,
        "planned": [*planned] or [NONE if key.planned is not None else ""],
    }
    for title, texts in fields.items():
        for number, text in enumerate(filter(None, texts)):
            yield escaped(f"  {'' if number else title:<12}{text}")
    if key.syncs:
        headings = ["STARTED", "OPERATION", "TOOK", "REVISION", "WRITES", "OUTCOME"]
        rows = []
        for sync in reversed(key.syncs):
            counts = ("created", sync.created), ("updated", sync.updated), ("deleted", sync.deleted)
            writes = ", ".join(f"{count} {verb}" for verb, count in counts if count)
            started = f"{age(sync.started.isoformat(), now)} ago"
            outcome = " ".join(sync.error.split()) or "ok"
            took = duration(sync.duration_s)
            rows.append((started, sync.operation, took, sync.revision, writes, outcome))
        yield from ("", "last syncs:", *table_lines(headings, rows))
    if key.events:
        headings = ["LAST", "TYPE", "REASON", "COUNT", "MESSAGE"]
        events = [
            (
                *(f"{age(event.last, now)} ago", event.type, event.reason, event.count),
                " ".join(event.message.split()),
            )
            for event in reversed(key.events)
        ]
        yield from ("", "last events:", *table_lines(headings, events))
    if key.events_error:
        yield escaped(f"  {'events':<12}cannot be read: {key.events_error}")


def _member(key: Description) -> str:
    if key.here and not key.member:
        return ""
    share = "" if key.share is None else f"share {key.share}, "
    if key.leaving_s:
        since = duration(key.leaving_s)
        return f"{share}{key.member} gives it up when its syncs have ended, for {since} now"
    if key.here:
        return f"{share}{key.member}, which is this one"
    has = f"{key.member} has it" if key.member else "none: the key is moving to another member"
    return f"{share}{has}"


def _queue(queued: Queued | None, failures: int) -> str:
    after = f", after {failures} failures in a row" if failures else ""
    match queued:
        case None:
            return f"not queued{after}"
        case Queued("waiting", seconds):
            return f"{'retried' if failures else 'synced'} in {duration(seconds)}{after}"
        case Queued("held", seconds):
            return f"being synced for {duration(seconds)}{after}"
        case Queued(_, seconds, priority):
            return f"ready for {duration(seconds)}, at priority {priority}{after}"


# ---- events

EVENT_HEADINGS = ("LAST", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE")
FOLLOW_S = 1.0


@app.add(
    "natsctl events",
    "natsctl events greetings/shop --since 1h",
    "natsctl events -c greetings --since 2026-11-28T03:00:00Z --until 03:30 -w",
    object_=f"{ONE}; without it, all objects",
    since="TIME | From this time on: 2h, 03:00, or RFC 3339",
    until="TIME | Up to this time, in the same forms",
    watch="-w | Show further events as they happen",
)
async def events(
    options: NatsOptions,
    *,
    object_: list[str] | None = None,
    controller: NamedController = None,
    since: str | None = None,
    until: str | None = None,
    watch: bool = False,
    output: OutputOption = TABLE,
) -> None:
    """Show what happened to keys: syncs, failures and actions.

    NATS keeps the events of a day. A repeated event is one line, with its count.
    """
    name = parse_name(object_) if object_ else None
    now = datetime.now(UTC)
    begin, end = (None if text is None else _time_of(text, now) for text in (since, until))
    async with open_fleet(options) as fleet:
        found = await fleet.events(name=name, controller=controller, since=begin, until=end)
        _write_events(found, output, watched=watch)
        if len(found) == FOUND_MAX:
            write_notice(f"these are the last {FOUND_MAX:,} events: name an object, or --since")
        seen = {msgspec.json.encode(event) for event in found}
        while watch:
            await asyncio.sleep(FOLLOW_S)
            last = datetime.now(UTC) - timedelta(seconds=60)
            events_now = await fleet.events(name=name, controller=controller, since=max(last, now))
            encoded = {msgspec.json.encode(event): event for event in events_now}
            new = [event for text, event in encoded.items() if text not in seen]
            seen = {*encoded}  # the window only moves on
            _write_events(new, output, watched=True, headings=())
            flush()


def _write_events(
    events: Sequence[KvEvent],
    output: str,
    *,
    watched: bool,
    headings: Sequence[str] = EVENT_HEADINGS,
) -> None:
    """Write events; if they're watched, JSON has one on each line. Later ones have no headings."""
    rows = [
        (
            *(_local_time(event.last), event.type, event.reason),
            *(f"{event.controller}/{event.key}", str(event.count), " ".join(event.message.split())),
        )
        for event in events
    ]
    if watched and output == JSON:
        for event in events:
            write_json(event, indent=-1)
    elif output in TABLES and not headings:
        for row in rows:
            write_line("   ".join(row))
    else:
        names = [row[3] for row in rows]
        nothing = "there are no events"
        write_rows(events, output, names=names, headings=headings, rows=rows, nothing=nothing)


def _local_time(text: str) -> str:
    time_ = time_in(text)
    return NONE if time_ is None else time_.astimezone().isoformat(timespec="seconds")


def _time_of(text: str, now: datetime) -> datetime:
    with suppress(ValueError):
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.astimezone()).astimezone(UTC)
    with suppress(ValueError):
        clock = time.fromisoformat(text)
        return datetime.combine(now.astimezone().date(), clock).astimezone(UTC)
    try:
        return now - duration_in(text)
    except UsageError:
        raise UsageError(
            f"{text!r} is not a time: write 2h, 03:30 or 2026-11-28T03:30:00Z"
        ) from None
