"""Events about keys, kept in a JetStream stream: one subject per controller and key.

Repeats of an event are counted and told as one; each key may tell so many and no more. Nothing
here blocks a controller, and what cannot be sent is dropped and counted.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from natsctl.errors import StoreMissingError
from natsctl.jetstream.bucket.bucket import NANOSECONDS, create_stream
from natsctl.jetstream.connection.connection import Connection
from natsctl.model.manifests import Reference
from natsctl.model.recorder import BURST, QUIET_S, EventType, Outbox, sending
from natsctl.model.write_guard import UNGUARDED, WriteGuard
from natsctl.telemetry.hiding import hidden

STREAM = "natsctl_events"
PREFIX = "natsctl.events"
AGE_S = 24 * 3600  # how long events are kept
BYTES_MAX = 256 * 1024 * 1024
PAUSE_S = 0.005  # between two events: objects come first
REPEAT_S = 10.0  # an event that repeats within this time is told once more, with its count


class KvEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event on the wire, as JSON; timestamps are RFC 3339."""

    controller: str
    key: str
    type: str
    reason: str
    message: str
    first_timestamp: str
    last_timestamp: str
    count: int = 1


class StreamRecorder:
    """Sends a controller's events, in the background; a `Recorder`. Made by `recording`."""

    def __init__(
        self, connection: Connection, controller: str, guard: WriteGuard = UNGUARDED
    ) -> None:
        self.outbox = Outbox(self._send, repeat_s=REPEAT_S, pause_s=PAUSE_S, quiet_s=QUIET_S)
        self._connection = connection
        self._controller = controller
        self._guard = guard
        self._ready = False

    @property
    def dropped(self) -> int:
        """How many events were not sent."""
        return self.outbox.dropped

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),  # noqa: ARG002 - the message is about the key
    ) -> None:
        """See `Recorder.event`; beyond the key's rate, or too many pending, it is dropped."""
        if not self._guard.may_record(key):
            return
        message = hidden(message)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self.outbox.add(
            key,
            (key, type, reason, message),
            first=lambda: KvEvent(self._controller, key, type.value, reason, message, now, now),
            again=lambda told: replace(told, count=told.count + 1, last_timestamp=now),
        )

    async def _send(self, event: KvEvent) -> KvEvent:
        if not self._ready:
            await self._ensure()
            self._ready = True
        subject = f"{PREFIX}.{event.controller}.{event.key}"
        prefix = self._connection.publish_prefix
        reply = await self._connection.request(prefix + subject, msgspec.json.encode(event))
        self._connection.acknowledged(reply)
        return event

    async def _ensure(self) -> None:
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


@asynccontextmanager
async def recording(
    connection: Connection, controller: str, guard: WriteGuard = UNGUARDED
) -> AsyncIterator[StreamRecorder]:
    """Return a recorder that sends while the context lasts, and what is left at its end."""
    recorder = StreamRecorder(connection, controller, guard)
    async with sending(recorder.outbox):
        yield recorder
