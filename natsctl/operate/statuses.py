"""What daemons, or NATS alone, know of controllers: one row each, troubles, and reasons of errors.

A controller that no daemon runs exists all the same if a lease, a published schema, or a record of
a pause, death, failure or garbage collection names it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec

from natsctl.daemon.client import Daemons, OldDaemonError
from natsctl.daemon.messages import (
    ControllerStatus,
    DaemonProcess,
    KeyEvent,
    KeyExplanation,
    Mode,
    conflict,
    with_past,
)
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NatsctlError,
    NoDaemonError,
    NotFoundError,
    PermissionDeniedError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.jetstream.bucket import Bucket, Message
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.events import events_of
from natsctl.jetstream.feed import names
from natsctl.jetstream.store import LEASES
from natsctl.model import documents
from natsctl.model.bookkeeping import (
    DEATHS_MAX,
    PAUSES,
    LastingFailure,
    controller_record,
    deaths_in,
    failing_prefix,
    failure_in,
)
from natsctl.model.pause import Pause, parse_pause, pause_in
from natsctl.model.readiness import conditions
from natsctl.model.reports import LANE_MAX, Branch, KeyPause, Lanes, PrimarySource, Status
from natsctl.operate.buckets import published_schemas
from natsctl.operate.objects import labels_of, object_in
from natsctl.telemetry.hiding import first_line, hidden

N = TypeVar("N", int, float)

DOWN = "down"
NO_PROCESS = DaemonProcess(id="", host="", pid=0, version="", started="")

# ---- reasons of errors

Reason = Literal[
    "refused",
    "not_found",
    "conflict",
    "invalid",
    "old_daemon",
    "no_daemon",
    "unavailable",
    "timeout",
    "signed_out",
    "failed",
]
"""The reason of an error; the page shows each of them differently."""

_REASONS: Mapping[type[Exception], Reason] = {
    PermissionDeniedError: "refused",
    NotFoundError: "not_found",
    StoreMissingError: "not_found",
    ConflictError: "conflict",
    InvalidKeyError: "invalid",
    InvalidObjectError: "invalid",
    UsageError: "invalid",
    StoreTimeoutError: "timeout",
    TimeoutError: "timeout",
    OldDaemonError: "old_daemon",
    NoDaemonError: "no_daemon",
    NatsctlError: "unavailable",
}


class Problem(msgspec.Struct, frozen=True):
    """The reason of an error, and a text for people without secrets."""

    reason: Reason
    message: str


def problem_of(error: Exception) -> Problem:
    """Return the reason and the text of an error that natsctl raises on purpose."""
    reasons: Iterator[Reason] = (_REASONS[kind] for kind in _REASONS if isinstance(error, kind))
    return Problem(next(reasons, "failed"), hidden(str(error)) or "there was no answer in time")


class Partial(msgspec.Struct, frozen=True):
    """The number of daemons that answered and should answer, and the names of the silent ones."""

    answered: int
    expected: int
    missing: list[str]


def missing(expected: Mapping[str, str], answered: Collection[str]) -> Partial | None:
    """Return which of the *expected* daemons, by id, did not answer; None if all did."""
    silent = sorted(name for id_, name in expected.items() if id_ not in answered)
    return Partial(len(expected) - len(silent), len(expected), silent) if silent else None


# ---- the daemons of a controller together


class Daemon(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one daemon in a controller; a silent daemon has only its id and name."""

    id: str
    name: str
    answered: bool = False
    version: str = ""
    state: str = ""
    mode: str = ""
    trouble: str = ""
    failure: str = ""
    keys: int | None = None


class StatusRow(msgspec.Struct, frozen=True, kw_only=True):
    """One controller, as all its daemons together report it; None is for what none of them knows.

    Attributes:
        sources: where its primaries are.
        daemons: the daemons that run it, in the order of their names.
        mode: the mode of the daemon that works, the number of daemons that run alone, or of shards.
        conflict: why several daemons sync the same keys; empty if they do not.
        state: the state of the daemon that works; `down` if no daemon runs the controller.
        unhealthy: the number of keys that fail, are invalid, quarantined or overdue.
        paused_whole: the pause of the whole controller.
        queued: the number of keys that are ready.
        oldest_unanswered_s: seconds since the oldest change that waits for a successful sync, or
            since the oldest failure.
        lanes: the keys that are held or ready the longest, and those that are due next.
        syncs: the syncs since the daemons started, and `failures` those that failed.
        partial: which daemons did not answer; None if all did.
        error: why no daemon answered.
    """

    name: str
    sources: list[PrimarySource] = []
    daemons: list[Daemon] = []
    mode: str = ""
    conflict: str = ""
    state: str = ""
    primaries: int | None = None
    keys: int | None = None
    unhealthy: int | None = None
    failing: int | None = None
    invalid: int | None = None
    paused: int | None = None
    quarantined: int | None = None
    contested: int | None = None
    paused_whole: Pause | None = None
    queued: int | None = None
    held: int | None = None
    waiting: int | None = None
    oldest_unanswered_s: float | None = None
    lanes: Lanes | None = None
    syncs: int | None = None
    failures: int | None = None
    garbage_held: str = ""
    problems: list[str] = []
    partial: Partial | None = None
    error: Problem | None = None


class ControllerStatuses(msgspec.Struct, frozen=True):
    """The row of one controller, the statuses of the daemons that cover its keys, and of all."""

    row: StatusRow
    working: list[ControllerStatus]
    statuses: list[ControllerStatus] = []


async def reports_of(daemons: Daemons, name: str) -> ControllerStatuses:
    """Return what the daemons of a controller report; an error becomes a part of the row."""
    expected = daemons.running(name)
    try:
        return combined(name, await daemons.status(name), expected)
    except (NatsctlError, TimeoutError) as error:
        problem, state = problem_of(error), "no answer"
    row = StatusRow(
        name=name,
        state=state,
        daemons=[Daemon(id=id_, name=text) for id_, text in sorted(expected.items())],
        partial=missing(expected, ()),
        error=problem,
    )
    silent = ControllerStatus(controller=name, daemon=NO_PROCESS, state=state)
    return ControllerStatuses(row, [], [msgspec.structs.replace(silent, failure=problem.message)])


def combined(
    name: str, statuses: Sequence[ControllerStatus], expected: Mapping[str, str] | None = None
) -> ControllerStatuses:
    """Return what these daemons report about a controller as one row.

    *expected* has the names of the daemons that run it, by id; by default those that answered.
    """
    expected = expected or {}
    answered = {
        status.daemon.id: Daemon(
            id=status.daemon.id,
            name=str(status.daemon),
            answered=True,
            version=status.daemon.version,
            state=status.state,
            mode=status.mode,
            trouble=status.trouble,
            failure=status.failure,
            keys=status.keys,
        )
        for status in statuses
        if status.daemon.id
    }
    daemons = {id_: Daemon(id=id_, name=text) for id_, text in expected.items()} | answered
    # those that cover every key once: all members, or the leader, or the first that runs alone
    working = [status for status in statuses if status.mode.startswith(Mode.SHARED)]
    if working:
        mode = "1 shard" if len(working) == 1 else f"{len(working)} shards"
    else:
        ranks = ("leader", Mode.ALONE, "", "standby")
        working = sorted(statuses, key=lambda one: (*ranks, one.mode).index(one.mode))[:1]
        mode = working[0].mode if working else ""
        alone = sum(status.mode == Mode.ALONE for status in statuses)
        if mode == Mode.ALONE and alone > 1:
            mode += f" \N{MULTIPLICATION SIGN}{alone}"
    known = [status for status in working if status.state != DOWN]
    queues = [status.queue for status in working if status.queue is not None]
    texts = [text for status in statuses for text in (status.trouble, status.failure) if text]
    row = StatusRow(
        name=name,
        sources=list(dict.fromkeys(source for status in statuses for source in status.sources)),
        daemons=sorted(daemons.values(), key=lambda daemon: (daemon.name, daemon.id)),
        partial=missing(expected, answered),
        mode=mode,
        conflict=conflict(statuses),
        state=(working or statuses)[0].state,
        primaries=_max(status.primaries for status in working),
        keys=_sum(status.keys for status in working),
        unhealthy=_sum(  # an older daemon does not count them
            max(one.unhealthy, one.failing_count, one.invalid_count, one.quarantined_count)
            for one in working
        ),
        failing=_sum(status.failing_count for status in working),
        invalid=_sum(status.invalid_count for status in known),
        paused=_sum(status.paused_count for status in known),
        quarantined=_sum(status.quarantined_count for status in working),
        contested=_sum(status.contested_count for status in known),
        paused_whole=next(filter(None, (status.paused_controller for status in working)), None),
        queued=_sum(queue.depth for queue in queues),
        held=_sum(queue.held for queue in queues),
        waiting=_sum(queue.waiting for queue in queues),
        oldest_unanswered_s=_max(status.oldest_unanswered_s for status in working),
        lanes=_lanes([status.lanes for status in working if status.lanes is not None]),
        syncs=_sum(status.syncs for status in known),
        failures=_sum(status.failures for status in known),
        garbage_held=next((status.garbage_held for status in working if status.garbage_held), ""),
        problems=list(dict.fromkeys(texts)),
    )
    return ControllerStatuses(row, working, list(statuses))


def _lanes(lanes: Sequence[Lanes]) -> Lanes | None:
    if not lanes:
        return None
    held = sorted((key for lane in lanes for key in lane.held), key=lambda key: -key.s)
    ready = sorted((key for lane in lanes for key in lane.ready), key=lambda key: -key.s)
    waiting = sorted((key for lane in lanes for key in lane.waiting), key=lambda key: key.s)
    return Lanes(held, ready, waiting).limited(LANE_MAX)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [number for number in counts if number is not None]
    return sum(known) if known else None


def _max(numbers: Iterable[N | None]) -> N | None:
    return max((number for number in numbers if number is not None), default=None)


def problems_of(controller: ControllerStatuses) -> list[str]:
    """Return a line for each problem of a controller, and for each key that needs somebody."""
    row = controller.row
    lines = (line for status in controller.statuses for line in _problems(status))
    return [f"{row.name}: {line}" for line in dict.fromkeys([row.conflict, *lines]) if line]


def _problems(status: ControllerStatus) -> Iterator[str]:
    name, members, pause = status.controller, len(status.members), status.paused_controller
    if members:
        yield "one member has all keys" if members == 1 else f"{members} members share the keys"
    yield from (status.trouble, status.failure)
    if pause is not None:
        yield f"it is paused {pause}: natsctl resume --all -c {name}"
    if status.garbage_held:
        held = f"garbage collection is held: {status.garbage_held}"
        yield f"{held}; see natsctl repair gc -c {name}"
    yield from status.concerns
    for kind in status.missing_kinds:
        yield f"the cluster does not have the optional kind {kind}"
    for state, reasons, count in (
        ("is skipped", status.invalid, status.invalid_count),
        ("fails", status.failing, status.failing_count),
        ("is quarantined", status.quarantined, status.quarantined_count),
        ("is paused", status.paused, status.paused_count),
        ("is contested", status.contested, status.contested_count),
    ):
        yield from (f"{key} {state}: {first_line(reason)}" for key, reason in reasons.items())
        if count > len(reasons):
            yield f"and {count - len(reasons)} more"


# ---- controllers that no daemon runs


class Traces(msgspec.Struct, frozen=True):
    """What NATS has of a controller: where its primaries are, as far as known, and its records."""

    sources: list[PrimarySource] = []
    records: dict[str, bytes] = {}


NO_TRACES = Traces()


async def known_controllers(connection: Connection) -> Mapping[str, Traces]:
    """Return the controllers that leases, published schemas and records name.

    Raises `PermissionDeniedError` if the user may not read the bucket `natsctl`.
    """

    async def living(kind_bucket: str, pattern: str) -> list[Message]:
        bucket = Bucket(connection, kind_bucket)
        try:
            messages = await bucket.newest(await names(bucket, pattern))
        except StoreMissingError:
            return []
        except PermissionDeniedError:
            if kind_bucket == LEASES.bucket:
                return []
            raise
        return [message for message in messages if message.marker is None]

    patterns = ("controllers.>", "lease.*", "gc.*")
    schemas, leases = await asyncio.gather(
        published_schemas(connection), living(LEASES.bucket, ">")
    )
    recorded = await asyncio.gather(*(living(PAUSES.bucket, pattern) for pattern in patterns))
    known = defaultdict[str, Traces](Traces)
    for schema in schemas:
        if schema.role == "primary":
            source = PrimarySource(schema.bucket, schema.keys, schema.kind)
            known[schema.controller].sources.append(source)
    for message in (message for messages in recorded for message in messages):
        known[message.key.split(".")[1]].records[message.key] = message.value
    for message in leases:
        known[message.key.split(".")[0]]  # it exists
    return known


def absent_statuses(
    known: Mapping[str, Traces], running: Collection[str]
) -> list[ControllerStatuses]:
    """Return the status of each *known* controller that isn't *running*, from its records."""
    down = sorted(known.keys() - set(running))
    return [combined(name, [_absent_status(name, known[name])]) for name in down]


def _absent_status(name: str, traces: Traces) -> ControllerStatus:
    failing: dict[str, LastingFailure] = {}
    quarantined: dict[str, str] = {}
    for record, value in traces.records.items():
        if record.startswith(failing_prefix(name)):
            if (failure := failure_in(value)) is not None:
                failing[record.removeprefix(failing_prefix(name))] = failure
        elif record.startswith(prefix := f"controllers.{name}.deaths."):
            deaths = deaths_in(value)
            if deaths is not None and deaths.count >= DEATHS_MAX:
                quarantined[record.removeprefix(prefix).partition(".")[2]] = str(deaths)
    now = datetime.now(UTC).timestamp()
    oldest_s = max((max(0.0, now - one.since_s) for one in failing.values()), default=None)
    status = Status(
        controller=name,
        sources=list(traces.sources),
        state=DOWN,
        failure="no daemon runs it",
        failing={key: failure.error for key, failure in failing.items()},
        failing_since={key: _since(failure) for key, failure in failing.items()},
        quarantined=quarantined,
        paused_controller=_whole_pause(name, traces),
        oldest_failure_s=oldest_s,
        oldest_unanswered_s=oldest_s,
        unhealthy=len(failing.keys() | quarantined.keys()),
    )
    return ControllerStatus.of(status, NO_PROCESS).limited()


class Description(KeyExplanation, frozen=True, kw_only=True):
    """What a daemon, or NATS alone, knows about a key.

    Attributes:
        tree: the key with the objects that were made for it; None if no daemon knows it.
        owner: the object that owns this one, as `KIND/KEY`; empty if it has none.
    """

    tree: Branch | None = None
    owner: str = ""


async def described_by_nats(
    connection: Connection,
    known: Mapping[str, Traces],
    key: str,
    holds: Callable[[PrimarySource], bool],
    controller: str | None = None,
) -> list[Description]:
    """Return what NATS knows about a key of one of the *known* controllers, which don't run.

    Without a *controller*, of each one with a place of primaries that *holds* the key. The list is
    empty if there is no such controller, or if nothing is known about the key.
    """
    descriptions: list[Description] = []
    for name, traces in known.items():
        sources = [source for source in traces.sources if holds(source)]
        if name == controller or (controller is None and sources):
            places = [one.bucket for one in sources or traces.sources if one.bucket]
            bucket = places[0] if places else ""
            descriptions.append(await stored_description(connection, bucket, key, name, traces))
    return [one for one in descriptions if one.present or one.past]


async def stored_description(
    connection: Connection,
    bucket: str,
    key: str,
    controller: str = "",
    traces: Traces = NO_TRACES,
) -> Description:
    """Return what a bucket, empty for a cluster, has of an object, and NATS of its controller."""
    stored: Message | None = None
    if bucket:
        with suppress(NotFoundError, StoreMissingError):
            stored = await Bucket(connection, bucket).last(key)
    value = None if stored is None or stored.marker else stored.value
    document = object_in(value or b"") or {}
    texts = {**labels_of(document), **documents.annotations_of(document)}
    owners = (
        f"{texts[name]}/{texts[owner_key]}"
        for name in texts
        if name.endswith("/owner-kind") and (owner_key := f"{name[:-4]}key") in texts
    )
    whole = _whole_pause(controller, traces)
    pause = whole or pause_in(value or b"")
    if pause is not None:
        fields = msgspec.structs.asdict(pause) | {"reason": hidden(pause.reason)}
        pause = KeyPause(**fields, controller=whole is not None)
    failure = failure_in(traces.records.get(failing_prefix(controller) + key, b""))
    recorded, events_error = [], ""
    try:
        recorded = await events_of(connection, controller, key) if controller else []
    except NatsctlError as error:
        events_error = hidden(str(error))
    return Description(
        controller=controller,
        daemon=NO_PROCESS,
        key=key,
        source=bucket,
        exists=value is not None,
        revision=stored.revision if stored is not None and value is not None else None,
        paused=pause,
        conditions=[hidden(text) for text in conditions(document)],
        owner=next(owners, ""),
        failures=0 if failure is None else 1,
        failing_since=None if failure is None else _since(failure),
        syncs=with_past([], recorded),
        events=msgspec.convert(recorded, list[KeyEvent], from_attributes=True),
        events_error=events_error,
    )


def _whole_pause(name: str, traces: Traces) -> Pause | None:
    value = traces.records.get(controller_record(name))
    return None if value is None else parse_pause(value.decode(errors="replace"))


def _since(failure: LastingFailure) -> datetime:
    return datetime.fromtimestamp(failure.since_s, UTC)
