"""`natsctl status`, `describe` and `events`: controllers, a key, and what happened."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, time, timedelta

import msgspec

from natsctl.cli.command import ONE, App, NamedController, OneObject, controller_name
from natsctl.cli.output import (
    TABLE,
    TABLES,
    WIDE,
    OutputOption,
    action_line,
    duration,
    table_lines,
    write_coloured,
    write_result,
    write_table,
)
from natsctl.cli.terminal import flush, write_line, write_notice, write_text
from natsctl.daemon.doctor.mirrors import check_mirrors
from natsctl.errors import NatsctlError, UsageError
from natsctl.jetstream.events import FOUND_MAX, KvEvent
from natsctl.jetstream.options import NatsOptions
from natsctl.model.reports import Branch, Queued, SyncRecord
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
    named = controller_name(controller)
    async with open_fleet(options) as fleet:
        if watch:
            if output not in TABLES:
                raise UsageError("--watch draws a table: use -o json with a loop of your shell")
            await _redraw(fleet, named, wide=output == WIDE)
        known = await fleet.statuses(named)
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
    controllers = dict.fromkeys(status.controller for status in statuses)
    write_result(statuses, output, names=controllers, table=table)


async def _redraw(fleet: Fleet, named: str | None, *, wide: bool) -> None:
    """Draw the status again and again: in place on a terminal, else each time that it changes."""
    from rich.live import Live  # noqa: PLC0415 - only this needs it
    from rich.text import Text  # noqa: PLC0415 - likewise

    terminal, before = sys.stdout.isatty(), ""
    with Live(auto_refresh=False, screen=False) if terminal else nullcontext() as live:
        while True:
            try:
                text = "\n".join(_status_lines(await fleet.statuses(named), wide=wide))
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
    rows = [controller.row for controller in known.controllers]
    statuses = [status for controller in known.controllers for status in controller.statuses]
    headings = (*HEADINGS, *WIDE_HEADINGS) if wide else HEADINGS
    lines = table_lines(headings, [_cells(row)[: len(headings)] for row in rows])
    if wide:
        daemons = [
            [row.name, daemon.name, daemon.state, daemon.mode or NONE, _number(daemon.keys)]
            for row in rows
            for daemon in (row.daemons if len(row.daemons) > 1 else ())
        ]
        queued = [
            [
                status.controller,
                str(status.daemon),
                key.key,
                f"{place} {duration(key.s)}",
                key.reason,
            ]
            for status in statuses
            if (lanes := status.lanes) is not None
            for place, keys in (
                *(("held for", lanes.held), ("ready for", lanes.ready), ("due in", lanes.waiting)),
            )
            for key in keys
        ]
        for more_headings, more in ((DAEMON_HEADINGS, daemons), (QUEUED_HEADINGS, queued)):
            lines += ["", *table_lines(more_headings, more)] if more else []
    problems = [problem for found in known.controllers for problem in problems_of(found)]
    problems += mirrors
    if known.unknown:
        problems.append(f"it is not known which controllers should run: {known.unknown}")
    lines += ["", *map(escaped, problems)] if problems else []
    installations = sorted({status.installation for status in statuses} - {""})
    return lines + ([f"installation {escaped(one)}" for one in installations] if wide else [])


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
    activity = row.activity
    counts = (None, None) if activity is None else (sum(activity.syncs), sum(activity.failures))
    return [
        *(row.name, daemon, row.state, row.mode or NONE),
        *map(_number, numbers),
        *(paused, NONE if row.primaries is None else _number(row.contested)),
        *(_number(queued), _number(row.waiting)),
        NONE if oldest_s is None else duration(oldest_s),
        *map(_number, (row.queued, row.held, *counts)),  # if it's wide
    ]


def _number(count: int | None) -> str:
    return NONE if count is None else str(count)


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
        found = await fleet.describe(name, controller_name(controller))
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
                [
                    *(prefix + branch.name, branch.ready, branch.reason or NONE),
                    *(_number(branch.revision), age(branch.created, now)),
                ]
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


def _description_lines(key: Description, now: datetime) -> Iterator[str]:
    name = f"{key.source}/{key.key}" if key.source else key.key
    place = f", in {key.daemon}" if key.daemon.pid else ", which no daemon runs"
    of_controller = f"{key.key} of {key.controller}{place}"
    yield escaped(of_controller if key.controller else f"{name}, which no controller syncs")
    owned = [f"{kind}/{one}" for kind, keys in key.owned.items() for one in keys]
    owned += [f"and {key.owned_more} more"] if key.owned_more else []
    actions = () if key.planned is None else [action_line(one) for one in key.planned.actions]
    fields: list[tuple[str, Sequence[str]]] = [
        ("object", [_object(key)]),
        ("owner", [key.owner] if key.owner else ()),
        ("member", [_member(key)] if key.member or not key.here else ()),
        ("skipped", [key.invalid] if key.invalid else ()),
        ("kept", [f"garbage collection is held: {key.garbage_held}"] if key.garbage_held else ()),
        ("paused", _paused(key)),
        ("quarantined", [f"{key.quarantined}: natsctl resync {name}"] if key.quarantined else ()),
        (
            "fails since",
            [f"{age(key.failing_since.isoformat(), now)} ago"] if key.failing_since else (),
        ),
        ("external", key.external),
        ("conditions", key.conditions),
        ("queue", [_queue(key.queued, key.failures)] if key.daemon.pid else ()),
        ("owns", [", ".join(owned)] if key.controller else ()),
        ("held", key.held),
        ("reads", key.reads),
        ("contested", key.contested),
        ("planned", () if key.planned is None else actions or [NONE]),
    ]
    for title, texts in fields:
        for number, text in enumerate(texts):
            yield escaped(f"  {'' if number else title:<12}{text or NONE}")
    if key.syncs:
        headings = ["STARTED", "OPERATION", "TOOK", "REVISION", "WRITES", "OUTCOME"]
        rows = [_sync_row(sync, now) for sync in reversed(key.syncs)]
        yield from ("", "last syncs:", *table_lines(headings, rows))
    if key.events:
        headings = ["LAST", "TYPE", "REASON", "COUNT", "MESSAGE"]
        rows = [
            [
                *(f"{age(event.last, now)} ago", event.type, event.reason, str(event.count)),
                " ".join(event.message.split()),
            ]
            for event in reversed(key.events)
        ]
        yield from ("", "last events:", *table_lines(headings, rows))
    if key.events_error:
        yield escaped(f"  {'events':<12}cannot be read: {key.events_error}")


def _object(key: Description) -> str:
    if key.revision is not None:
        planned = planned_revision(key.revision)
        return "a planned revision" if planned else f"revision {key.revision}"
    return "no revision of it was valid" if key.exists or key.invalid else "does not exist"


def _paused(key: Description) -> list[str]:
    pause = key.paused
    if pause is None:
        return []
    scope = "with the whole controller, " if pause.controller else ""
    return [f"{scope}{pause}{'; a sync waits until it is resumed' if pause.pending else ''}"]


def _member(key: Description) -> str:
    share = "" if key.share is None else f"share {key.share}, "
    if key.leaving_s:
        since = duration(key.leaving_s)
        return f"{share}{key.member} gives it up when its syncs have ended, for {since} now"
    if key.here:
        return f"{share}{key.member}, which is this one"
    if key.member:
        return f"{share}{key.member} has it"
    return f"{share}none: the key is moving to another member"


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


def _sync_row(sync: SyncRecord, now: datetime) -> list[str]:
    counts = ((sync.created, "created"), (sync.updated, "updated"), (sync.deleted, "deleted"))
    writes = ", ".join(f"{count} {verb}" for count, verb in counts if count)
    return [
        *(f"{age(sync.started.isoformat(), now)} ago", sync.operation, duration(sync.duration_s)),
        *(_number(sync.revision), writes or NONE, " ".join(sync.error.split()) or "ok"),
    ]


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
    named = controller_name(controller)
    async with open_fleet(options) as fleet:
        found = await fleet.events(name=name, controller=named, since=begin, until=end)
        if not found and output in TABLES:
            write_notice("there are no events")
        elif not watch or output in TABLES:
            _write_events(found, output)
        if len(found) == FOUND_MAX:
            write_notice(f"these are the last {FOUND_MAX:,} events: name an object, or --since")
        seen = {msgspec.json.encode(event) for event in found}
        while watch:
            await asyncio.sleep(FOLLOW_S)
            last = datetime.now(UTC) - timedelta(seconds=60)
            recent = await fleet.events(name=name, controller=named, since=max(last, now))
            new = [event for event in recent if msgspec.json.encode(event) not in seen]
            seen.update(map(msgspec.json.encode, new))
            for event in new:
                if output in TABLES:
                    write_line("   ".join(_event_cells(event)))
                else:
                    _write_events([event], output)
            flush()


def _write_events(found: Sequence[KvEvent], output: str) -> None:
    rows = [_event_cells(event) for event in found]
    names = [row[3] for row in rows]
    write_result(found, output, names=names, table=lambda: write_table(EVENT_HEADINGS, rows))


def _event_cells(event: KvEvent) -> list[str]:
    last = time_in(event.last)
    return [
        NONE if last is None else last.astimezone().isoformat(timespec="seconds"),
        *(event.type, event.reason, f"{event.controller}/{event.key}", str(event.count)),
        " ".join(event.message.split()),
    ]


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
