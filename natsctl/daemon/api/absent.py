"""Reports about controllers that exist and that no daemon runs, from what NATS has of them.

Leases, published schemas, and the records of pauses, deaths, failures and garbage collection name
the controllers that exist.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from natsctl.core.explain import Explanation, KeyPause, PrimarySource, Status
from natsctl.core.pausing.failing_records import LastingFailure, failing_prefix, failure_in
from natsctl.core.pausing.pausing import PAUSES, controller_record
from natsctl.core.pausing.quarantine import DEATHS_MAX, deaths_in
from natsctl.daemon.api.client import NO_DAEMON, Daemons
from natsctl.daemon.api.endpoints import with_past
from natsctl.daemon.api.messages import ControllerStatus, DaemonProcess, KeyEvent, KeyExplanation
from natsctl.daemon.published import published_schemas
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import (
    NatsctlError,
    NoDaemonError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
)
from natsctl.jetstream.bucket.bucket import Bucket, Message
from natsctl.jetstream.bucket.leases import LEASES
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.events import events_of
from natsctl.model.pause import parse_pause, pause_in
from natsctl.telemetry.hiding import hidden

DOWN = "down"
NO_PROCESS = DaemonProcess(id="", host="", pid=0, version="", started="")

Known = Mapping[str, Sequence[PrimarySource]]
"""The controllers that exist, by name, with the places of their primaries as far as known."""


class Fleet(msgspec.Struct, frozen=True):
    """The statuses of all controllers, in each of their daemons.

    Those that no daemon runs come first, with one status each, whose state is `DOWN`. `unknown` is
    why it isn't known whether there are any; empty if it is.
    """

    statuses: list[ControllerStatus]
    unknown: str = ""


async def fleet(connection: Connection, name: str | None = None) -> Fleet:
    """Return the statuses of all controllers, or of the one with this *name*.

    Raises `NoDaemonError` if there's neither a daemon nor a trace of a controller, and
    `NotFoundError` if there's no controller of this name.
    """
    daemons, known, unknown = await _found(connection)
    running = daemons.controllers
    if not running and not known:
        raise NoDaemonError(NO_DAEMON)
    if name is not None and name not in known and name not in running:
        names = sorted({*known, *running})
        advice = did_you_mean(name, names) or f": there are {', '.join(names)}"
        raise NotFoundError(f"no controller {name} exists{advice}")
    asked = [one for one in running if name in (None, one)]
    down = [one for one in sorted(known) if name in (None, one) and one not in running]
    absent = await asyncio.gather(*(_absent_status(connection, one, known[one]) for one in down))
    present = await asyncio.gather(*(_statuses(daemons, one) for one in asked))
    return Fleet([*absent, *(status for statuses in present for status in statuses)], unknown)


async def absent_statuses(
    connection: Connection, running: Collection[str]
) -> list[ControllerStatus]:
    """Return the status of each controller that exists and isn't *running*."""
    known = await known_controllers(connection)
    down = sorted(known.keys() - set(running))
    return await asyncio.gather(*(_absent_status(connection, name, known[name]) for name in down))


async def explained_without_daemon(
    connection: Connection,
    key: str,
    holds: Callable[[PrimarySource], bool],
    controller: str | None = None,
) -> list[KeyExplanation]:
    """Return what NATS knows about a key of a controller that no daemon runs.

    Without a *controller*, of each one with a place of primaries that *holds* the key. The list is
    empty if there is no such controller, or if nothing is known about the key.
    """
    daemons, known, _ = await _found(connection)
    explanations: list[KeyExplanation] = []
    for name in known.keys() - set(daemons.controllers):
        sources = [source for source in known[name] if holds(source)]
        if name == controller or (controller is None and sources):
            bucket = _bucket(sources or known[name])
            explanations.append(await _explanation(connection, name, bucket, key))
    return [explanation for explanation in explanations if explanation.present or explanation.past]


async def known_controllers(connection: Connection) -> Known:
    """Return the controllers that leases, published schemas and records name.

    Raises `PermissionDeniedError` if the user may not read the bucket `natsctl`.
    """
    records, leases = Bucket(connection, PAUSES.bucket), Bucket(connection, LEASES.bucket)
    patterns = ("controllers.>", "lease.*", "gc.*")
    schemas, leased = await asyncio.gather(
        published_schemas(connection), _living(leases, ">", allowed=False)
    )
    named = await asyncio.gather(*(_living(records, pattern) for pattern in patterns))
    known = defaultdict[str, list[PrimarySource]](list)
    for schema in schemas:
        if schema.role == "primary":
            known[schema.controller].append(PrimarySource(schema.bucket, schema.keys, schema.kind))
    for message in (message for messages in named for message in messages):
        known[message.key.split(".")[1]] += []
    for message in leased:
        known[message.key.split(".")[0]] += []
    return known


async def _found(connection: Connection) -> tuple[Daemons, Known, str]:
    """Return the daemons, the controllers that exist, and why these aren't known."""
    try:
        daemons = await Daemons.find(connection)
    except NoDaemonError:
        daemons = Daemons(connection, ())
    try:
        return daemons, await known_controllers(connection), ""
    except StoreError as error:
        if not daemons.controllers and not isinstance(error, PermissionDeniedError):
            raise
        return daemons, {}, str(error)


async def _statuses(daemons: Daemons, name: str) -> list[ControllerStatus]:
    """Return the status of a controller in each daemon; of one that doesn't answer, that it is."""
    try:
        return await daemons.status(name)
    except NatsctlError as error:
        if len(daemons.controllers) == 1:
            raise
        silent = ControllerStatus(controller=name, daemon=NO_PROCESS, state="no answer")
        return [msgspec.structs.replace(silent, failure=str(error))]


async def _absent_status(
    connection: Connection, name: str, sources: Sequence[PrimarySource]
) -> ControllerStatus:
    records = await _living(Bucket(connection, PAUSES.bucket), f"controllers.{name}.>")
    failing: dict[str, LastingFailure] = {}
    quarantined: dict[str, str] = {}
    whole = None
    for record in records:
        if record.key.startswith(failing_prefix(name)):
            failure = failure_in(record.value)
            if failure is not None:
                failing[record.key.removeprefix(failing_prefix(name))] = failure
        elif record.key.startswith(prefix := f"controllers.{name}.deaths."):
            deaths = deaths_in(record.value)
            if deaths is not None and deaths.count >= DEATHS_MAX:
                quarantined[record.key.removeprefix(prefix).partition(".")[2]] = str(deaths)
        elif record.key == controller_record(name):
            whole = parse_pause(record.value.decode(errors="replace"))
    oldest_s = max((_age_s(failure) for failure in failing.values()), default=None)
    status = Status(
        controller=name,
        sources=list(sources),
        state=DOWN,
        failure="no daemon runs it",
        failing={key: failure.error for key, failure in failing.items()},
        failing_since={key: _time(failure) for key, failure in failing.items()},
        quarantined=quarantined,
        paused_controller=whole,
        oldest_failure_s=oldest_s,
        oldest_unanswered_s=oldest_s,
        unhealthy=len(failing.keys() | quarantined.keys()),
    )
    return ControllerStatus.of(status, NO_PROCESS).limited()


async def _explanation(connection: Connection, name: str, bucket: str, key: str) -> KeyExplanation:
    object_, record, whole = await asyncio.gather(
        _newest(Bucket(connection, bucket), key) if bucket else _none(),
        _newest(Bucket(connection, PAUSES.bucket), failing_prefix(name) + key),
        _newest(Bucket(connection, PAUSES.bucket), controller_record(name)),
    )
    failure = None if record is None else failure_in(record.value)
    pause, by_controller = None if object_ is None else pause_in(object_.value), False
    if whole is not None:
        pause, by_controller = parse_pause(whole.value.decode(errors="replace")), True
    try:
        recorded, events_error = await events_of(connection, name, key), ""
    except NatsctlError as error:
        recorded, events_error = [], hidden(str(error))
    explanation = Explanation(
        controller=name,
        key=key,
        exists=object_ is not None,
        revision=None if object_ is None else object_.revision,
        paused=None
        if pause is None
        else KeyPause(
            **msgspec.structs.asdict(pause) | {"reason": hidden(pause.reason)},
            controller=by_controller,
        ),
        failures=0 if failure is None else 1,
        failing_since=None if failure is None else _time(failure),
        syncs=with_past([], recorded),
    )
    return msgspec.structs.replace(
        KeyExplanation.of(explanation, NO_PROCESS),
        events=msgspec.convert(recorded, list[KeyEvent], from_attributes=True),
        events_error=events_error,
    )


async def _living(bucket: Bucket, pattern: str, *, allowed: bool = True) -> list[Message]:
    """Return the objects whose keys match, none without the bucket.

    Without the permission, raises `PermissionDeniedError`, or returns none if *allowed* is False.
    """
    try:
        messages = await bucket.newest(await bucket.keys(pattern))
    except StoreMissingError:
        return []
    except PermissionDeniedError:
        if allowed:
            raise
        return []
    return [message for message in messages if message.marker is None]


async def _newest(bucket: Bucket, key: str) -> Message | None:
    try:
        message = await bucket.last(key)
    except (NotFoundError, StoreMissingError):
        return None
    return None if message.marker else message


async def _none() -> None:
    """Return nothing, for objects that aren't in NATS."""


def _bucket(sources: Sequence[PrimarySource]) -> str:
    return next((source.bucket for source in sources if source.bucket), "")


def _time(failure: LastingFailure) -> datetime:
    return datetime.fromtimestamp(failure.since_s, UTC)


def _age_s(failure: LastingFailure) -> float:
    return max(0.0, (datetime.now(UTC) - _time(failure)).total_seconds())
