"""`natsctl explain`: why a key is as it is."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.operate.find_daemon import NamedOption, asked, with_key
from natsctl.cli.output.entries import NONE, age
from natsctl.cli.output.printing import Output, OutputOption, line, write_found, write_table
from natsctl.core.insight.explain import Queued
from natsctl.core.sync.journal import SyncRecord
from natsctl.daemon.api.messages import KeyEvent, KeyExplanation
from natsctl.errors import NotFoundError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl explain shop",
        "natsctl explain shop -c greetings -o json | jq '.[].syncs[-1].error'",
    ),
)
@connected
async def explain(
    options: NatsOptions,
    *,
    key: Annotated[str, typer.Argument(help="a primary's key", metavar="KEY")],
    controller: NamedOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show why a key is as it is.

    Where it is in the queue and when it is next, its last syncs and what came of them, what was
    made for it, what else wakes it, and what was told about it.
    """
    check_key(key)
    async with asked(options, controller, choose=with_key(key)) as (daemons, name):
        found = await daemons.explain(name, key)
    telling = [each for each in found if each.present or each.past]
    if not telling:
        raise NotFoundError(f"{name} has no {key}, and nothing is known of it")
    write_found(telling, output, names=[key], table=lambda: _show_all(telling, datetime.now(UTC)))


def _show_all(found: Sequence[KeyExplanation], now: datetime) -> None:
    for number, each in enumerate(found):
        if number:
            line("")
        _show(each, now)


def _show(at: KeyExplanation, now: datetime) -> None:
    line(f"{at.key} of {at.controller}, in {at.daemon}")
    _field("object", _object(at))
    if at.member or not at.here:
        _field("member", _member(at))
    if at.invalid:
        _field("left alone", at.invalid)
    if at.garbage_held:
        _field("kept", f"garbage collection is held: {at.garbage_held}")
    _field("queue", _place(at.queued, at.failures))
    more = [f"and {at.owned_more} more"] if at.owned_more else []
    owned = [f"{kind}/{key}" for kind, keys in at.owned.items() for key in keys]
    _field("owns", ", ".join((*owned, *more)))
    for number, read in enumerate(at.reads):
        _field("" if number else "reads", read)
    for number, contested in enumerate(at.contested):
        _field("" if number else "contested", contested)
    _table(
        "last syncs",
        ["STARTED", "OPERATION", "TOOK", "REVISION", "WRITES", "OUTCOME"],
        [_sync_row(each, now) for each in reversed(at.syncs)],
    )
    _table(
        "last events",
        ["LAST", "TYPE", "REASON", "COUNT", "MESSAGE"],
        [_event_row(each, now) for each in reversed(at.events)],
    )
    if at.events_error:
        _field("events", f"cannot be read: {at.events_error}")


def _object(at: KeyExplanation) -> str:
    if at.revision is not None:
        return f"revision {at.revision}"
    return "no state of it was valid" if at.exists or at.invalid else "does not exist"


def _member(at: KeyExplanation) -> str:
    if at.here:
        return f"{at.member}, which is this one"
    return f"{at.member} has it" if at.member else "nobody has it now: it moves"


def _field(name: str, text: str) -> None:
    line(f"  {name:<12}{text or NONE}")


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        line("")
        line(f"{title}:")
        write_table(headings, rows)


def _place(at: Queued | None, failures: int) -> str:
    after = f", after {failures} failures in a row" if failures else ""
    match at:
        case None:
            return f"not in it{after}"
        case Queued("waiting", s):
            return f"{'tried again' if failures else 'visited'} in {s:.1f} s{after}"
        case Queued("held", s):
            return f"being synced for {s:.1f} s{after}"
        case Queued(_, s, priority):
            return f"ready for {s:.1f} s, at priority {priority}{after}"


def _sync_row(at: SyncRecord, now: datetime) -> list[str]:
    counts = ((at.created, "created"), (at.updated, "updated"), (at.deleted, "deleted"))
    writes = ", ".join(f"{count} {what}" for count, what in counts if count)
    revision = NONE if at.revision is None else str(at.revision)
    started = f"{age(at.started.isoformat(), now)} ago"
    return [started, at.operation, _seconds(at.duration_s), revision, writes or NONE, _outcome(at)]


def _outcome(at: SyncRecord) -> str:
    return " ".join(at.error.split()) or "ok"


def _event_row(at: KeyEvent, now: datetime) -> list[str]:
    message = " ".join(at.message.split())
    return [f"{age(at.last, now)} ago", at.type, at.reason, str(at.count), message]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
