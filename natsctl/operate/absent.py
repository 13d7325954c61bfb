"""Reports about controllers that exist and that no daemon runs, from what NATS has of them.

Leases, published schemas, and the records of pauses, deaths, failures and garbage collection name
the controllers that exist.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from natsctl.daemon.messages import (
    ControllerStatus,
    DaemonProcess,
    KeyEvent,
    KeyExplanation,
    with_past,
)
from natsctl.errors import (
    NatsctlError,
    NotFoundError,
    PermissionDeniedError,
    StoreMissingError,
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
from natsctl.model.reports import Branch, KeyPause, PrimarySource, Status
from natsctl.operate.buckets import published_schemas
from natsctl.operate.entries import labels_of, object_in
from natsctl.telemetry.hiding import hidden

DOWN = "down"
NO_PROCESS = DaemonProcess(id="", host="", pid=0, version="", started="")

Known = Mapping[str, Sequence[PrimarySource]]
"""The controllers that exist, by name, with the places of their primaries as far as known."""


class Description(KeyExplanation, frozen=True, kw_only=True):
    """What a daemon, or NATS alone, knows about a key.

    Attributes:
        tree: the key with the objects that were made for it; None if no daemon knows it.
        owner: the object that owns this one, as `KIND/KEY`; empty if it has none.
    """

    tree: Branch | None = None
    owner: str = ""


async def absent_statuses(
    connection: Connection, running: Collection[str]
) -> list[ControllerStatus]:
    """Return the status of each controller that exists and isn't *running*."""
    known = await known_controllers(connection)
    down = sorted(known.keys() - set(running))
    return await asyncio.gather(*(absent_status(connection, name, known[name]) for name in down))


async def explained_without_daemon(
    connection: Connection,
    key: str,
    holds: Callable[[PrimarySource], bool],
    controller: str | None = None,
    *,
    running: Collection[str] = (),
) -> list[Description]:
    """Return what NATS knows about a key of a controller that isn't *running*.

    Without a *controller*, of each one with a place of primaries that *holds* the key. The list is
    empty if there is no such controller, or if nothing is known about the key.
    """
    known = await known_controllers(connection)
    descriptions: list[Description] = []
    for name in known.keys() - set(running):
        sources = [source for source in known[name] if holds(source)]
        if name == controller or (controller is None and sources):
            bucket = _bucket(sources or known[name])
            descriptions.append(await _explanation(connection, name, bucket, key))
    return [one for one in descriptions if one.present or one.past]


async def stored_description(connection: Connection, bucket: str, key: str) -> Description | None:
    """Return what a bucket has of an object that no controller syncs; None if it has none."""
    object_ = await _newest(Bucket(connection, bucket), key)
    if object_ is None:
        return None
    document = object_in(object_.value) or {}
    texts = {**labels_of(document), **documents.annotations_of(document)}
    owners = (
        f"{texts[name]}/{texts[owner_key]}"
        for name in texts
        if name.endswith("/owner-kind")
        and (owner_key := name.removesuffix("kind") + "key") in texts
    )
    pause = pause_in(object_.value)
    return Description(
        controller="",
        daemon=NO_PROCESS,
        key=key,
        source=bucket,
        exists=True,
        revision=object_.revision,
        paused=None if pause is None else _key_pause(pause, controller=False),
        conditions=[hidden(text) for text in conditions(document)],
        owner=next(owners, ""),
    )


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


async def absent_status(
    connection: Connection, name: str, sources: Sequence[PrimarySource]
) -> ControllerStatus:
    """Return the status of a controller that no daemon runs, from its records in NATS."""
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


async def _explanation(connection: Connection, name: str, bucket: str, key: str) -> Description:
    object_, record, whole = await asyncio.gather(
        _newest(Bucket(connection, bucket), key) if bucket else _none(),
        _newest(Bucket(connection, PAUSES.bucket), failing_prefix(name) + key),
        _newest(Bucket(connection, PAUSES.bucket), controller_record(name)),
    )
    failure = None if record is None else failure_in(record.value)
    pause = None if object_ is None else pause_in(object_.value)
    if whole is not None:
        pause = parse_pause(whole.value.decode(errors="replace"))
    try:
        recorded, events_error = await events_of(connection, name, key), ""
    except NatsctlError as error:
        recorded, events_error = [], hidden(str(error))
    document = {} if object_ is None else object_in(object_.value) or {}
    return Description(
        controller=name,
        daemon=NO_PROCESS,
        key=key,
        source=bucket,
        exists=object_ is not None,
        revision=None if object_ is None else object_.revision,
        paused=None if pause is None else _key_pause(pause, controller=whole is not None),
        failures=0 if failure is None else 1,
        failing_since=None if failure is None else _time(failure),
        conditions=[hidden(text) for text in conditions(document)],
        syncs=with_past([], recorded),
        events=msgspec.convert(recorded, list[KeyEvent], from_attributes=True),
        events_error=events_error,
    )


def _key_pause(pause: Pause, *, controller: bool) -> KeyPause:
    fields = msgspec.structs.asdict(pause) | {"reason": hidden(pause.reason)}
    return KeyPause(**fields, controller=controller)


async def _living(bucket: Bucket, pattern: str, *, allowed: bool = True) -> list[Message]:
    """Return the objects whose keys match, none without the bucket.

    Without the permission, raises `PermissionDeniedError`, or returns none if *allowed* is False.
    """
    try:
        messages = await bucket.newest(await names(bucket, pattern))
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
