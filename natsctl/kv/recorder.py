"""Events about keys, kept in a JetStream stream: one subject per controller and key.

Repeats of an event are counted and told as one; each key may tell so many and no more. Nothing
here blocks a controller, and what cannot be sent is dropped and counted.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec

from natsctl.errors import StoreError
from natsctl.kv.bucket import NANOSECONDS
from natsctl.kv.connection import Connection
from natsctl.model.manifests import Reference
from natsctl.model.recorder import EventType

log = logging.getLogger(__name__)

STREAM = "natsctl_events"
PREFIX = "natsctl.events"
AGE_S = 24 * 3600  # how long events are kept
BYTES_MAX = 256 * 1024 * 1024
REPEAT_S = 10.0  # an event that repeats within this time is told once more, with its count
KEYS_MAX = 10_000  # keys whose rate is remembered
BURST = 25  # events that a key may tell at once
REFILL_S = 60.0  # one more for each so many seconds
PENDING_MAX = 10_000  # events on their way
CLOSE_S = 2.0


class KvEvent(msgspec.Struct, rename="camel"):
    """An event on the wire, as JSON; timestamps are RFC 3339."""

    controller: str
    key: str
    type: str
    reason: str
    message: str
    first_timestamp: str
    last_timestamp: str
    count: int = 1


class _Budget:
    """How many events each key may still tell."""

    def __init__(self) -> None:
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at

    def take(self, key: str) -> bool:
        now = asyncio.get_running_loop().time()
        tokens, at = self._spent.pop(key, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - at) / REFILL_S)
        allowed = tokens >= 1
        self._spent[key] = (tokens - allowed, now)
        if len(self._spent) > KEYS_MAX:
            self._spent.popitem(last=False)
        return allowed


class EventRecorder:
    """Sends a controller's events, in the background; a `Recorder`. Made by `recording`."""

    def __init__(self, connection: Connection, controller: str) -> None:
        self.dropped = 0
        self._connection = connection
        self._controller = controller
        self._budget = _Budget()
        self._pending: OrderedDict[tuple[str, ...], KvEvent] = OrderedDict()
        self._told: OrderedDict[tuple[str, ...], tuple[KvEvent, float]] = OrderedDict()
        self._wake = asyncio.Event()
        self._ready = False
        self._closing = False

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),  # noqa: ARG002 - who is concerned is the key
    ) -> None:
        """See `Recorder.event`; beyond the key's rate, or too many pending, it is dropped."""
        identity = (key, type.value, reason, message)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        pending = self._pending.get(identity)
        if pending is not None:
            pending.count += 1
            pending.last_timestamp = now
            return
        if len(self._pending) >= PENDING_MAX or not self._budget.take(key):
            self.dropped += 1
            return
        self._pending[identity] = self._repeated(identity) or KvEvent(
            self._controller, key, type.value, reason, message, now, now
        )
        self._pending[identity].last_timestamp = now
        self._wake.set()

    def _repeated(self, identity: tuple[str, ...]) -> KvEvent | None:
        """Return the event as it was told a short while ago, counted once more."""
        told, at = self._told.pop(identity, (None, 0.0))
        if told is None or asyncio.get_running_loop().time() - at > REPEAT_S:
            return None
        return msgspec.structs.replace(told, count=told.count + 1)

    async def run(self) -> None:
        """Send what comes, until closed; then what is left."""
        closing = False
        while not closing:
            await self._wake.wait()
            self._wake.clear()
            closing = self._closing
            await self.flush()

    def close(self) -> None:
        """Let `run` end."""
        self._closing = True
        self._wake.set()

    async def flush(self) -> None:
        """Send what is pending; what cannot be sent is dropped."""
        while self._pending:
            identity, event = self._pending.popitem(last=False)
            try:
                await self._send(event)
            except StoreError as error:
                self.dropped += 1
                log.warning("an event about %s was not sent: %s", event.key, error)
                await asyncio.sleep(1.0)
            else:
                self._told[identity] = (event, asyncio.get_running_loop().time())
                while len(self._told) > KEYS_MAX:
                    self._told.popitem(last=False)

    async def _send(self, event: KvEvent) -> None:
        if not self._ready:
            await self._ensure()
            self._ready = True
        subject = f"{PREFIX}.{event.controller}.{event.key}"
        prefix = self._connection.publish_prefix
        reply = await self._connection.request(prefix + subject, msgspec.json.encode(event))
        self._connection.acknowledged(reply)

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
        except StoreError:
            await self._connection.api(f"STREAM.CREATE.{STREAM}", config)


@asynccontextmanager
async def recording(connection: Connection, controller: str) -> AsyncIterator[EventRecorder]:
    """Return a recorder that sends while the context lasts, and what is left at its end."""
    recorder = EventRecorder(connection, controller)
    task = asyncio.create_task(recorder.run(), name="events")
    try:
        yield recorder
    finally:
        recorder.close()
        _, late = await asyncio.wait((task,), timeout=CLOSE_S)
        if late:
            log.warning("events were not sent in time")
            task.cancel()
            await asyncio.wait((task,))
