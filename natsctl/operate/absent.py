"""Reports about controllers that exist and that no daemon runs, from what NATS has of them.

Leases, published schemas, and the records of pauses, deaths, failures and garbage collection name
the controllers that exist.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from natsctl.daemon.messages import (
    ControllerStatus,
    DaemonProcess,
    KeyEvent,
    KeyExplanation,
    with_past,
)
from natsctl.errors import NatsctlError, NotFoundError, PermissionDeniedError, StoreMissingError
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
from natsctl.model.pause import parse_pause, pause_in
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


async def known_controllers(connection: Connection) -> Known:
    """Return the controllers that leases, published schemas and records name.

    Raises `PermissionDeniedError` if the user may not read the bucket `natsctl`.
    """
    records, leases = Bucket(connection, PAUSES.bucket), Bucket(connection, LEASES.bucket)
    patterns = ("controllers.>", "lease.*", "gc.*")
    schemas, leased = await asyncio.gather(
        published_schemas(connection), _living(leases, ">", allowed=False)
    )
    recorded = await asyncio.gather(*(_living(records, pattern) for pattern in patterns))
    known = defaultdict[str, list[PrimarySource]](list)
    for schema in schemas:
        if schema.role == "primary":
            known[schema.controller].append(PrimarySource(schema.bucket, schema.keys, schema.kind))
    for message in (message for messages in recorded for message in messages):
        known[message.key.split(".")[1]] += []
    for message in leased:
        known[message.key.split(".")[0]] += []
    return known


async def absent_statuses(
    connection: Connection, running: Collection[str]
) -> list[ControllerStatus]:
    """Return the status of each controller that exists and isn't *running*."""
    known = await known_controllers(connection)
    down = sorted(known.keys() - set(running))
    return await asyncio.gather(*(absent_status(connection, name, known[name]) for name in down))


async def absent_status(
    connection: Connection, name: str, sources: Sequence[PrimarySource]
) -> ControllerStatus:
    """Return the status of a controller that no daemon runs, from its records in NATS."""
    failing: dict[str, LastingFailure] = {}
    quarantined: dict[str, str] = {}
    whole = None
    for record in await _living(Bucket(connection, PAUSES.bucket), f"controllers.{name}.>"):
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
    since = {key: _since(failure) for key, failure in failing.items()}
    now = datetime.now(UTC)
    oldest_s = max((max(0.0, (now - at).total_seconds()) for at in since.values()), default=None)
    status = Status(
        controller=name,
        sources=list(sources),
        state=DOWN,
        failure="no daemon runs it",
        failing={key: failure.error for key, failure in failing.items()},
        failing_since=since,
        quarantined=quarantined,
        paused_controller=whole,
        oldest_failure_s=oldest_s,
        oldest_unanswered_s=oldest_s,
        unhealthy=len(failing.keys() | quarantined.keys()),
    )
    return ControllerStatus.of(status, NO_PROCESS).limited()


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
            buckets = [source.bucket for source in sources or known[name] if source.bucket]
            bucket = buckets[0] if buckets else ""
            descriptions.append(await _explanation(connection, name, bucket, key))
    return [one for one in descriptions if one.present or one.past]


async def stored_description(connection: Connection, bucket: str, key: str) -> Description | None:
    """Return what a bucket has of an object that no controller syncs; None if it has none."""
    object_ = await _newest(connection, bucket, key)
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
    return Description(**_stored("", bucket, key, object_, None), owner=next(owners, ""))


async def _explanation(connection: Connection, name: str, bucket: str, key: str) -> Description:
    records = PAUSES.bucket
    object_, record, whole = await asyncio.gather(
        _newest(connection, bucket, key),
        _newest(connection, records, failing_prefix(name) + key),
        _newest(connection, records, controller_record(name)),
    )
    failure = None if record is None else failure_in(record.value)
    try:
        recorded, events_error = await events_of(connection, name, key), ""
    except NatsctlError as error:
        recorded, events_error = [], hidden(str(error))
    return Description(
        **_stored(name, bucket, key, object_, whole),
        failures=0 if failure is None else 1,
        failing_since=None if failure is None else _since(failure),
        syncs=with_past([], recorded),
        events=msgspec.convert(recorded, list[KeyEvent], from_attributes=True),
        events_error=events_error,
    )


def _stored(
    controller: str, bucket: str, key: str, object_: Message | None, whole: Message | None
) -> dict[str, Any]:
    pause = None if object_ is None else pause_in(object_.value)
    if whole is not None:
        pause = parse_pause(whole.value.decode(errors="replace"))
    if pause is not None:
        fields = msgspec.structs.asdict(pause) | {"reason": hidden(pause.reason)}
        pause = KeyPause(**fields, controller=whole is not None)
    document = {} if object_ is None else object_in(object_.value) or {}
    return {
        "controller": controller,
        "daemon": NO_PROCESS,
        "key": key,
        "source": bucket,
        "exists": object_ is not None,
        "revision": None if object_ is None else object_.revision,
        "paused": pause,
        "conditions": [hidden(text) for text in conditions(document)],
    }


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


async def _newest(connection: Connection, bucket: str, key: str) -> Message | None:
    """Return an object; None without it or its bucket, which is empty for one in a cluster."""
    try:
        message = await Bucket(connection, bucket).last(key) if bucket else None
    except (NotFoundError, StoreMissingError):
        return None
    return None if message is None or message.marker else message


def _since(failure: LastingFailure) -> datetime:
    return datetime.fromtimestamp(failure.since_s, UTC)
