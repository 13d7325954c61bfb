"""`natsctl explain`: explains the state of a key."""

from collections.abc import Sequence
from datetime import UTC, datetime

from natsctl.cli.framework.command import App, connected
from natsctl.cli.operate.find_daemon import (
    NamedOption,
    PrimaryKeyArgument,
    choose_by_key,
    find_controller,
)
from natsctl.cli.output.differences import described
from natsctl.cli.output.printing import Output, OutputOption, write_result, write_table
from natsctl.cli.output.terminal import write_line
from natsctl.core.insight.explain import KeyPause, Queued
from natsctl.core.sync.journal import SyncRecord
from natsctl.daemon.api.messages import KeyEvent, KeyExplanation
from natsctl.errors import NotFoundError
from natsctl.jetstream.bucket.entries import NONE, age
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key
from natsctl.model.store import planned_revision

app = App()


@app.add(
    "natsctl explain shop",
    "natsctl explain shop -c greetings -o json | jq '.[].syncs[-1].error'",
)
@connected
async def explain(
    options: NatsOptions,
    *,
    key: PrimaryKeyArgument,
    controller: NamedOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain the state of a key.

    The explanation has the key's place in the work queue and the time of its next sync, its last
    syncs with their results, the secondaries that it owns, the other objects that enqueue it, and
    its last events.
    """
    check_key(key)
    async with find_controller(options, controller, choose=choose_by_key(key)) as (daemons, name):
        answers = await daemons.explain(name, key)
    explanations = [answer for answer in answers if answer.present or answer.past]
    if not explanations:
        raise NotFoundError(f"{name} has no {key}, and no sync or event of it")
    write_result(
        explanations,
        output,
        names=[key],
        table=lambda: _write_all(explanations, datetime.now(UTC)),
    )


def _write_all(explanations: Sequence[KeyExplanation], now: datetime) -> None:
    for number, explanation in enumerate(explanations):
        if number:
            write_line("")
        _write(explanation, now)


def _write(key: KeyExplanation, now: datetime) -> None:
    write_line(f"{key.key} of {key.controller}, in {key.daemon}")
    _write_field("object", _object(key))
    if key.member or not key.here:
        _write_field("member", _member(key))
    if key.invalid:
        _write_field("skipped", key.invalid)
    if key.garbage_held:
        _write_field("kept", f"garbage collection is held: {key.garbage_held}")
    if key.paused is not None:
        _write_field("paused", _paused(key.paused))
    if key.quarantined:
        _write_field("quarantined", f"{key.quarantined}: natsctl resync {key.key}")
    _write_field("queue", _queue(key.queued, key.failures))
    more = [f"and {key.owned_more} more"] if key.owned_more else []
    owned = [f"{kind}/{name}" for kind, names in key.owned.items() for name in names]
    _write_field("owns", ", ".join((*owned, *more)))
    _write_fields("reads", key.reads)
    _write_fields("contested", key.contested)
    if key.planned is not None:
        _write_fields("planned", [described(action) for action in key.planned.actions] or [NONE])
    _write_table(
        "last syncs",
        ["STARTED", "OPERATION", "TOOK", "REVISION", "WRITES", "OUTCOME"],
        [_sync_row(sync, now) for sync in reversed(key.syncs)],
    )
    _write_table(
        "last events",
        ["LAST", "TYPE", "REASON", "COUNT", "MESSAGE"],
        [_event_row(event, now) for event in reversed(key.events)],
    )
    if key.events_error:
        _write_field("events", f"cannot be read: {key.events_error}")


def _object(key: KeyExplanation) -> str:
    if key.revision is not None and planned_revision(key.revision):
        return "a planned revision"
    if key.revision is not None:
        return f"revision {key.revision}"
    return "no revision of it was valid" if key.exists or key.invalid else "does not exist"


def _paused(pause: KeyPause) -> str:
    whole = "with the whole controller, " if pause.controller else ""
    pending = "; a sync waits until it is resumed" if pause.pending else ""
    return f"{whole}{pause}{pending}"


def _member(key: KeyExplanation) -> str:
    if key.here:
        return f"{key.member}, which is this one"
    return f"{key.member} has it" if key.member else "none: the key is moving to another member"


def _write_field(name: str, text: str) -> None:
    write_line(f"  {name:<12}{text or NONE}")


def _write_fields(name: str, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        _write_field("" if number else name, text)


def _write_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        write_line("")
        write_line(f"{title}:")
        write_table(headings, rows)


def _queue(queued: Queued | None, failures: int) -> str:
    after = f", after {failures} failures in a row" if failures else ""
    match queued:
        case None:
            return f"not queued{after}"
        case Queued("waiting", seconds):
            return f"{'retried' if failures else 'synced'} in {seconds:.1f} s{after}"
        case Queued("held", seconds):
            return f"being synced for {seconds:.1f} s{after}"
        case Queued(_, seconds, priority):
            return f"ready for {seconds:.1f} s, at priority {priority}{after}"


def _sync_row(sync: SyncRecord, now: datetime) -> list[str]:
    counts = ((sync.created, "created"), (sync.updated, "updated"), (sync.deleted, "deleted"))
    writes = ", ".join(f"{count} {verb}" for count, verb in counts if count)
    return [
        f"{age(sync.started.isoformat(), now)} ago",
        sync.operation,
        _duration(sync.duration_s),
        NONE if sync.revision is None else str(sync.revision),
        writes or NONE,
        " ".join(sync.error.split()) or "ok",
    ]


def _event_row(event: KeyEvent, now: datetime) -> list[str]:
    message = " ".join(event.message.split())
    return [f"{age(event.last, now)} ago", event.type, event.reason, str(event.count), message]


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
