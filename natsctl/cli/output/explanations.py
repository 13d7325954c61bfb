"""Describes the state of a key, and the objects made for it, as lines of text."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from natsctl.cli.output.differences import described
from natsctl.cli.output.printing import table_lines
from natsctl.core.explain import KeyPause, Lanes, Queued
from natsctl.core.history import SyncRecord
from natsctl.core.tree import Branch
from natsctl.daemon.api.messages import KeyEvent, KeyExplanation
from natsctl.model.store import planned_revision
from natsctl.operate.entries import NONE, age, short_time
from natsctl.telemetry.escaping import escaped

TREE_HEADINGS = ("OBJECT", "READY", "REASON", "REVISION", "AGE")


def explanation_lines(key: KeyExplanation, now: datetime) -> Iterator[str]:
    """Yield the explanation of a key by one daemon as escaped lines."""
    place = f", in {key.daemon}" if key.daemon.pid else ", which no daemon runs"
    yield escaped(f"{key.key} of {key.controller}{place}")
    yield _field("object", _object(key))
    if key.member or not key.here:
        yield _field("member", _member(key))
    if key.invalid:
        yield _field("skipped", key.invalid)
    if key.garbage_held:
        yield _field("kept", f"garbage collection is held: {key.garbage_held}")
    if key.paused is not None:
        yield _field("paused", _paused(key.paused))
    if key.quarantined:
        yield _field("quarantined", f"{key.quarantined}: natsctl resync {_name(key)}")
    if key.failing_since is not None:
        yield _field("fails since", f"{age(key.failing_since.isoformat(), now)} ago")
    yield from _fields("external", key.external)
    yield from _fields("conditions", key.conditions)
    if key.daemon.pid:
        yield _field("queue", _queue(key.queued, key.failures))
    unnamed = [f"and {key.owned_more} more"] if key.owned_more else []
    owned = [f"{kind}/{name}" for kind, names in key.owned.items() for name in names]
    yield _field("owns", ", ".join((*owned, *unnamed)))
    yield from _fields("held", key.held)
    yield from _fields("reads", key.reads)
    yield from _fields("contested", key.contested)
    if key.planned is not None:
        yield from _fields(
            "planned", [described(action) for action in key.planned.actions] or [NONE]
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
            yield queued.key, f"{place} {short_time(queued.s)}", queued.reason


def _name(key: KeyExplanation) -> str:
    return f"{key.source}/{key.key}" if key.source else key.key


def _object(key: KeyExplanation) -> str:
    if key.revision is not None and planned_revision(key.revision):
        return "a planned revision"
    if key.revision is not None:
        return f"revision {key.revision}"
    return "no revision of it was valid" if key.exists or key.invalid else "does not exist"


def _paused(pause: KeyPause) -> str:
    scope = "with the whole controller, " if pause.controller else ""
    pending = "; a sync waits until it is resumed" if pause.pending else ""
    return f"{scope}{pause}{pending}"


def _member(key: KeyExplanation) -> str:
    if key.here:
        return f"{key.member}, which is this one"
    return f"{key.member} has it" if key.member else "none: the key is moving to another member"


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
