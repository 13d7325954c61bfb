"""`natsctl describe` and `natsctl events`: what is known about a key, and what happened."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from typing import Annotated

import msgspec
import typer

from natsctl.cli.arguments import ONE, NameArgument, NamedOption, controller_name
from natsctl.cli.command import App, connected
from natsctl.cli.output import (
    TABLE,
    WIDE,
    OutputOption,
    action_line,
    duration,
    local_time,
    table_lines,
    write_result,
    write_table,
)
from natsctl.cli.terminal import flush, write_line, write_notice, write_text
from natsctl.daemon.messages import KeyEvent
from natsctl.errors import UsageError
from natsctl.jetstream.events import KvEvent
from natsctl.jetstream.options import NatsOptions
from natsctl.model.reports import Branch, KeyPause, Lanes, Queued, SyncRecord
from natsctl.model.store import planned_revision
from natsctl.operate.absent import Description
from natsctl.operate.entries import NONE, age
from natsctl.operate.fleet import open_fleet
from natsctl.operate.names import parse_name
from natsctl.operate.pauses import duration_in
from natsctl.telemetry.escaping import escaped

app = App()

TREE_HEADINGS = ("OBJECT", "READY", "REASON", "REVISION", "AGE")


def explanation_lines(key: Description, now: datetime) -> Iterator[str]:
    """Yield the explanation of a key by one daemon as escaped lines."""
    place = f", in {key.daemon}" if key.daemon.pid else ", which no daemon runs"
    of_controller = f"{key.key} of {key.controller}{place}"
    yield escaped(of_controller if key.controller else f"{_name(key)}, which no controller syncs")
    yield _field("object", _object(key))
    held = f"garbage collection is held: {key.garbage_held}" if key.garbage_held else ""
    dead = f"{key.quarantined}: natsctl resync {_name(key)}" if key.quarantined else ""
    since = "" if key.failing_since is None else key.failing_since.isoformat()
    for name, text in (
        ("owner", key.owner),
        ("member", _member(key) if key.member or not key.here else ""),
        ("skipped", key.invalid),
        ("kept", held),
        ("paused", "" if key.paused is None else _paused(key.paused)),
        ("quarantined", dead),
        ("fails since", f"{age(since, now)} ago" if since else ""),
    ):
        yield from [_field(name, text)] if text else []
    yield from _fields("external", key.external)
    yield from _fields("conditions", key.conditions)
    if key.daemon.pid:
        yield _field("queue", _queue(key.queued, key.failures))
    unnamed = [f"and {key.owned_more} more"] if key.owned_more else []
    owned = [f"{kind}/{name}" for kind, names in key.owned.items() for name in names]
    if key.controller:
        yield _field("owns", ", ".join((*owned, *unnamed)))
    yield from _fields("held", key.held)
    yield from _fields("reads", key.reads)
    yield from _fields("contested", key.contested)
    if key.planned is not None:
        yield from _fields(
            "planned", [action_line(action) for action in key.planned.actions] or [NONE]
        )
    yield from _table(
        "last syncs",
        ["STARTED", "OPERATION", "TOOK", "REVISION", "WRITES", "OUTCOME"],
        [_sync_row(sync, now) for sync in reversed(key.syncs)],
    )
    yield from _table(
        "last events",
        ["LAST", "TYPE", "REASON", "COUNT", "MESSAGE"],
        [_event_row(event, now) for event in reversed(key.events)],
    )
    if key.events_error:
        yield _field("events", f"cannot be read: {key.events_error}")


def tree_rows(root: Branch, now: datetime) -> list[list[str]]:
    """Return a row under `TREE_HEADINGS` for each object of a tree."""
    return [_row(prefix, branch, now) for prefix, branch in _branches(root)]


def lane_rows(lanes: Lanes | None) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the place and the reason of each key in the lanes: held, ready, waiting."""
    places = (
        ()
        if lanes is None
        else (("held for", lanes.held), ("ready for", lanes.ready), ("due in", lanes.waiting))
    )
    for place, keys in places:
        for queued in keys:
            yield queued.key, f"{place} {duration(queued.s)}", queued.reason


def _name(key: Description) -> str:
    return f"{key.source}/{key.key}" if key.source else key.key


def _object(key: Description) -> str:
    if key.revision is not None and planned_revision(key.revision):
        return "a planned revision"
    if key.revision is not None:
        return f"revision {key.revision}"
    return "no revision of it was valid" if key.exists or key.invalid else "does not exist"


def _paused(pause: KeyPause) -> str:
    scope = "with the whole controller, " if pause.controller else ""
    pending = "; a sync waits until it is resumed" if pause.pending else ""
    return f"{scope}{pause}{pending}"


def _member(key: Description) -> str:
    share = "" if key.share is None else f"share {key.share}, "
    if key.leaving:
        return f"{share}{key.member} gives it up when its syncs have ended"
    if key.here:
        return f"{share}{key.member}, which is this one"
    if key.member:
        return f"{share}{key.member} has it"
    return f"{share}none: the key is moving to another member"


def _field(name: str, text: str) -> str:
    return escaped(f"  {name:<12}{text or NONE}")


def _fields(name: str, texts: Sequence[str]) -> Iterator[str]:
    for number, text in enumerate(texts):
        yield _field("" if number else name, text)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield ""
        yield f"{title}:"
        yield from table_lines(headings, rows)


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
        f"{age(sync.started.isoformat(), now)} ago",
        sync.operation,
        duration(sync.duration_s),
        NONE if sync.revision is None else str(sync.revision),
        writes or NONE,
        " ".join(sync.error.split()) or "ok",
    ]


def _event_row(event: KeyEvent, now: datetime) -> list[str]:
    message = " ".join(event.message.split())
    return [f"{age(event.last, now)} ago", event.type, event.reason, str(event.count), message]


def _branches(branch: Branch, prefix: str = "", indent: str = "") -> Iterator[tuple[str, Branch]]:
    """Yield every branch with the lines that are drawn before its name."""
    yield prefix, branch
    for number, child in enumerate(branch.branches, 1):
        last = number == len(branch.branches)
        corner, line = ("└─", "  ") if last else ("├─", "│ ")
        yield from _branches(child, indent + corner, indent + line)


def _row(prefix: str, branch: Branch, now: datetime) -> list[str]:
    revision = NONE if branch.revision is None else str(branch.revision)
    created = age(branch.created, now)
    return [prefix + branch.name, branch.ready, branch.reason or NONE, revision, created]


@app.add(
    "natsctl describe greetings/shop",
    "natsctl describe greetings shop -o json | jq '.[].syncs[-1].error'",
)
@connected
async def describe(
    options: NatsOptions,
    *,
    object_: NameArgument,
    controller: NamedOption = None,
    output: OutputOption = TABLE,
) -> None:
    """Describe the state of a key, and the objects that were made for it.

    The state has the key's place in the work queue, its last syncs and events, its conditions, and
    what it owns and reads. Without a daemon, it's what NATS knows. READY is Pending until an
    object's controller has observed its newest generation.
    """
    name = parse_name(object_)
    async with open_fleet(options) as fleet:
        descriptions = await fleet.describe(name, controller_name(controller))
    write_result(
        descriptions,
        output,
        names=[str(name), *(branch.name for branch in _tree(descriptions).branches)],
        table=lambda: _write_all(descriptions, datetime.now(UTC)),
    )


def _write_all(descriptions: Sequence[Description], now: datetime) -> None:
    for number, description in enumerate(descriptions):
        if number:
            write_line("")
        for line in explanation_lines(description, now):
            write_text(line)
    tree = _tree(descriptions)
    if tree.branches:
        write_line("")
        write_line("objects:")
        write_table(TREE_HEADINGS, tree_rows(tree, now))
        if tree.more:
            write_line(f"and {tree.more} more objects")


def _tree(descriptions: Sequence[Description]) -> Branch:
    """Return the tree of the key; without branches if nobody knows it."""
    first = descriptions[0]
    return first.tree or Branch(kind=first.source, key=first.key)


# ---- events

EVENT_HEADINGS = ("LAST", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE")
FOLLOW_S = 1.0


@app.add(
    "natsctl events",
    "natsctl events greetings/shop --since 1h",
    "natsctl events -c greetings --since 2026-11-28T03:00:00Z --until 03:30 -w",
)
@connected
async def events(
    options: NatsOptions,
    *,
    object_: Annotated[
        list[str] | None,
        typer.Argument(help=f"{ONE}; without it, all objects", metavar="BUCKET/KEY"),
    ] = None,
    controller: NamedOption = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From this time on: 2h, 03:00, or RFC 3339")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Up to this time, in the same forms")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show further events as they happen")
    ] = False,
    output: OutputOption = TABLE,
) -> None:
    """Show what happened to keys: syncs, failures and actions.

    NATS keeps the events of a day. A repeated event is one line, with its count.
    """
    name = parse_name(object_) if object_ else None
    now = datetime.now(UTC)
    begin, end = (None if text is None else time_of(text, now) for text in (since, until))
    named = controller_name(controller)
    async with open_fleet(options) as fleet:
        found = await fleet.events(name=name, controller=named, since=begin, until=end)
        if not found and output in (TABLE, WIDE):
            write_notice("there are no events")
        elif not watch or output in (TABLE, WIDE):
            _write_events(found, output)
        seen = {msgspec.json.encode(event) for event in found}
        while watch:
            await asyncio.sleep(FOLLOW_S)
            last = datetime.now(UTC) - timedelta(seconds=60)
            recent = await fleet.events(name=name, controller=named, since=max(last, now))
            new = [event for event in recent if msgspec.json.encode(event) not in seen]
            seen.update(map(msgspec.json.encode, new))
            for event in new:
                if output in (TABLE, WIDE):
                    write_line("   ".join(_event_cells(event)))
                else:
                    _write_events([event], output)
            flush()


def _write_events(found: Sequence[KvEvent], output: str) -> None:
    rows = [_event_cells(event) for event in found]
    names = [f"{event.controller}/{event.key}" for event in found]
    write_result(found, output, names=names, table=lambda: write_table(EVENT_HEADINGS, rows))


def _event_cells(event: KvEvent) -> list[str]:
    name = f"{event.controller}/{event.key}"
    message = " ".join(event.message.split())
    return [local_time(event.last), event.type, event.reason, name, str(event.count), message]


def time_of(text: str, now: datetime) -> datetime:
    """Return the time that a user names: RFC 3339, `03:30` today, or `2h` ago."""
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
