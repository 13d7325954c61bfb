"""Events about keys, in a JetStream stream with one subject for each controller and key.

If an event is repeated, its count grows instead. Each key has a limited rate. Recording never
blocks a controller: events that cannot be sent are dropped and counted.
"""

import asyncio
import base64
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace
from nats.aio.msg import Msg

from natsctl.errors import DECODE_ERRORS, NotFoundError, StoreMissingError, StoreTimeoutError
from natsctl.jetstream.bucket import NANOSECONDS, create_consumer, create_stream
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.requests import revision_of
from natsctl.model.manifests import Reference
from natsctl.model.store import UNGUARDED, EventType, SyncNote, WriteGuard
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.outbox import BURST, Outbox, SendingPace
from natsctl.time_limit import happens

STREAM = "natsctl_events"
PREFIX = "natsctl.events"
AGE_S = 24 * 3600  # how long the stream keeps an event
BYTES_MAX = 256 * 1024 * 1024
PAUSE_S = 0.005  # between two events, so that writes of objects come first
REPEAT_S = 10.0  # a repeat within this time increases the count of the first event
EVENTS_MAX = 25  # that are read for a key; the stream keeps no more
FOUND_MAX = 10_000  # of many keys


class KvEvent(msgspec.Struct, frozen=True, gc=False):
    """An event in the stream, as JSON; timestamps are RFC 3339."""

    controller: str
    key: str
    type: str
    reason: str
    message: str
    first: str = msgspec.field(name="firstTimestamp")
    last: str = msgspec.field(name="lastTimestamp")
    count: int = 1
    sync: SyncNote | msgspec.UnsetType = msgspec.UNSET

    def itself(self) -> "KvEvent":
        return self

    def again(self, event: "KvEvent") -> "KvEvent":
        """Return an earlier *event* after this one has repeated it."""
        return replace(event, count=event.count + 1, last=self.last, sync=self.sync)


class StreamRecorder:
    """A `Recorder` that sends a controller's events in the background; made by `Nats.recorder`."""

    def __init__(
        self, connection: Connection, controller: str, guard: WriteGuard = UNGUARDED
    ) -> None:
        self.outbox = Outbox(self.send, repeat_s=REPEAT_S, pace=SendingPace(PAUSE_S))
        self._connection = connection
        self._controller = controller
        self._guard = guard
        self._ready = False

    @property
    def dropped(self) -> int:
        return self.outbox.counts["dropped"]

    def counted(self) -> dict[tuple[str, str], int]:
        return self.outbox.counted("nats")

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),  # noqa: ARG002 - the message is about the key
        *,
        sync: SyncNote | None = None,
    ) -> None:
        """Record an event, see `Recorder.event`.

        The event is dropped if the key is above its rate or if too many events are pending.
        """
        if not self._guard.may_record(key):
            return
        note, now = msgspec.UNSET if sync is None else sync, _now()
        message, kind = hidden(message), type.value
        event = KvEvent(self._controller, key, kind, reason, message, now, now, sync=note)
        identity = (key, kind, reason, message)
        self.outbox.add(key, identity, first=event.itself, again=event.again)

    async def past_failures(self, key: str, handler: str = "") -> int:
        events = await events_of(self._connection, self._controller, key)
        notes = (event.sync for event in events)
        syncs = [note for note in notes if note is not msgspec.UNSET and note.handler == handler]
        return max(syncs, key=lambda sync: sync.started).failures if syncs else 0

    async def send(self, event: KvEvent) -> KvEvent:
        """Send one event now, and return it; raises the errors of `Connection.request`."""
        if not self._ready:
            await self._ensure_stream()
            self._ready = True
        subject = f"{PREFIX}.{event.controller}.{event.key}"
        prefix = self._connection.options.stream_prefix
        reply = await self._connection.request(prefix + subject, msgspec.json.encode(event))
        revision_of(reply.data)
        return event

    async def _ensure_stream(self) -> None:
        config = {
            "name": STREAM,
            "subjects": [f"{PREFIX}.>"],
            "max_age": AGE_S * NANOSECONDS,
            "max_bytes": BYTES_MAX,
            "max_msgs_per_subject": BURST,
            "storage": "file",
            "discard": "old",
        }
        try:
            await self._connection.api(f"STREAM.INFO.{STREAM}")
        except StoreMissingError:
            await create_stream(self._connection, config, replicas=None)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


async def record_event(
    connection: Connection, controller: str, key: str, reason: str, message: str
) -> None:
    """Record one normal event now; raises the errors of `Connection.request`."""
    now = _now()
    event = KvEvent(controller, key, EventType.NORMAL.value, reason, hidden(message), now, now)
    await StreamRecorder(connection, controller).send(event)


async def events_of(connection: Connection, controller: str, key: str) -> list[KvEvent]:
    """Return the events about a controller's key, oldest first.

    The stream has a message for each count of an event; only the newest is returned. Messages that
    do not decode are left out. Returns an empty list if the stream does not exist. Raises the
    errors of `Connection.api`.
    """
    events: dict[tuple[str, ...], KvEvent] = {}
    query: dict[str, object] = {"seq": 1, "next_by_subj": f"{PREFIX}.{controller}.{key}"}
    for _ in range(EVENTS_MAX):
        try:
            reply = await connection.api(f"STREAM.MSG.GET.{STREAM}", query)
        except (NotFoundError, StoreMissingError):
            break
        message = reply["message"]
        query["seq"] = message["seq"] + 1
        with suppress(*DECODE_ERRORS):
            data = base64.b64decode(message.get("data", ""))
            event = msgspec.json.decode(data, type=KvEvent)
            identity = (event.type, event.reason, event.message, event.first)
            events.pop(identity, None)
            events[identity] = event
    return list(events.values())


async def events_between(
    connection: Connection,
    controller: str,
    key: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[KvEvent]:
    """Return the recorded events of the keys that match, the last reported one last.

    *controller* and *key* are subject tokens: `*` and `>` match any. A repeated event is returned
    once, with its count. Of more than `FOUND_MAX` events, these are the last. A consumer that the
    server removes by itself delivers them. Returns an empty list if the stream does not exist;
    raises the errors of `Connection.api`, and `StoreTimeoutError` if no event arrives for the time
    of a request.
    """
    name = f"natsctl_{secrets.token_hex(8)}"
    inbox = f"{connection.options.inbox_prefix}.{name}"
    options: dict[str, object] = {"deliver_subject": inbox, "deliver_policy": "all"}
    if since is not None:
        start = since.astimezone(UTC).isoformat()
        options |= {"deliver_policy": "by_start_time", "opt_start_time": start}
    events = OrderedDict[tuple[str, ...], KvEvent]()  # a dict finds its first key slowly
    arrived = asyncio.Event()
    count = 0

    async def receive(message: Msg) -> None:
        nonlocal count
        count += 1
        arrived.set()
        with suppress(*DECODE_ERRORS, ValueError, TypeError):
            one = msgspec.json.decode(message.data, type=KvEvent)
            if until is None or datetime.fromisoformat(one.last) <= until:
                identity = (one.controller, one.key, one.type, one.reason, one.message, one.first)
                events.pop(identity, None)
                events[identity] = one
                if len(events) > FOUND_MAX:
                    events.popitem(last=False)

    subscription = await connection.client.subscribe(inbox, cb=receive)
    try:
        subject = f"{PREFIX}.{controller}.{key}"
        try:
            consumer = await create_consumer(connection, STREAM, name, subject, **options)
        except StoreMissingError:
            return []
        while count < int(consumer.get("num_pending", 0)):
            arrived.clear()
            if not await happens(arrived, within_s=connection.options.request_timeout_s):
                raise StoreTimeoutError("the events did not arrive in time")
    finally:
        await subscription.unsubscribe()
    return sorted(events.values(), key=lambda event: event.last)
