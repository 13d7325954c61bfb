"""The seam for events, which are messages to people about a key, and their sending queue."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.model.manifests import Reference
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

E = TypeVar("E")

REMEMBERED_MAX = 10_000  # objects with a budget, and sent events that may repeat
BURST = 25  # events about one object at once
REFILL_S = 60.0  # seconds until an object may have one more event
PENDING_MAX = 10_000  # events that wait to be sent
PAUSE_S = 1.0  # pause after an event that could not be sent
DENIALS_MAX = 100  # distinct denials that are logged only once
CLOSE_S = 2.0  # timeout for sending the pending events at the end
GATHER_S = 1.0  # before a new event is sent; recorders use it as `gather_s`
BUSY = 10  # new events within `gather_s` that show that many objects are being written
LATE_S = 30.0  # the longest time that events wait for a busy controller
QUIET_S = 5.0  # between an event and its repeats; recorders use it as `quiet_s`


class EventType(Enum):
    """The importance of an event, as in Kubernetes."""

    NORMAL = "Normal"
    WARNING = "Warning"


class SyncNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A sync that an event is about.

    Attributes:
        operation: the reason for the sync.
        started: the time of its start.
        duration_s: its duration.
        revision: the revision of the object; None if the object did not exist.
        created: how many secondaries it created.
        updated: how many secondaries it updated.
        deleted: how many secondaries it deleted.
        failures: the failed syncs in a row, with this one; 0 if it succeeded.
        handler: the name of the handler, if several handlers get the key.
    """

    operation: str
    started: datetime
    duration_s: float
    revision: int | None = None
    created: int = 0
    updated: int = 0
    deleted: int = 0
    failures: int = 0
    handler: str = ""


class Recorder(Protocol):
    """Records events and sends them in the background; never blocks and never raises."""

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the name in Kubernetes
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
        *,
        sync: SyncNote | None = None,
    ) -> None:
        """Record an event about the primary *key* and about its objects in a cluster.

        *reason* is a short CamelCase word for programs, *message* is for people, and *regarding*
        refers to the key's secondaries in a cluster. *sync* is the sync that the event is about.
        """
        ...


@runtime_checkable
class RemembersSyncs(Protocol):
    """A recorder whose events can be read, also those of earlier processes."""

    async def past_failures(self, key: str, handler: str = "") -> int:
        """Return the failures in a row with the last recorded sync of the key by a handler.

        Raises `StoreError` if the events cannot be read.
        """
        ...


class Budget:
    """A token bucket per object, which limits the rate of its events."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, time
        self._clock = asyncio.get_running_loop().time

    def take(self, about: str) -> bool:
        """Take a token of the object *about*; return False if it has none left."""
        now = self._clock()
        tokens, refilled = self._buckets.pop(about, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - refilled) / REFILL_S)
        allowed = tokens >= 1
        self._buckets[about] = (tokens - allowed, now)
        if len(self._buckets) > REMEMBERED_MAX:
            self._buckets.popitem(last=False)
        return allowed


class _Pending(msgspec.Struct, Generic[E], frozen=True, gc=False):
    """An event about the object `about` that waits to be sent since the time `since`.

    `make` returns the event. It is made when it is sent, because writes of objects come first.
    """

    about: str
    make: Callable[[], E]
    since: float


class Outbox(Generic[E]):
    """A bounded queue of events. Adding never blocks; events beyond a limit are dropped.

    `sending` sends the events one at a time. Repeated events are counted and sent as one. Writes of
    objects come first: many new events in a short time show that a controller writes many objects,
    so events then wait until there are fewer new ones, but not longer than `LATE_S`.

    Args:
        send: sends an event, and returns it in the form from which its repeats are made.
        repeat_s: seconds within which an equal event is a repeat.
        pause_s: seconds between two events, which limits the load on the server.
        gather_s: seconds before a new event is sent, within which repeats are collected.
        quiet_s: seconds after an event within which repeats are collected and sent as one.
    """

    def __init__(
        self,
        send: Callable[[E], Awaitable[E]],
        *,
        repeat_s: float,
        pause_s: float = 0.0,
        gather_s: float = 0.0,
        quiet_s: float = 0.0,
    ) -> None:
        self.dropped = 0
        self._send = send
        self._repeat_s = repeat_s
        self._pause_s = pause_s
        self._gather_s = gather_s
        self._quiet_s = quiet_s
        self._clock = asyncio.get_running_loop().time
        self._added = deque[float](maxlen=BUSY)  # the times of the last new events
        self._budget = Budget()
        self._pending: OrderedDict[Hashable, _Pending[E]] = OrderedDict()
        self._sent: OrderedDict[Hashable, tuple[E, float]] = OrderedDict()  # event, time
        self._delayed: dict[Hashable, str] = {}  # objects of repeats within the quiet time
        self._denials: set[str] = set()
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()

    def add(
        self, about: str, identity: Hashable, *, first: Callable[[], E], again: Callable[[E], E]
    ) -> None:
        """Queue an event about the object *about*.

        The event is *first*, or *again* of the recent event with the same *identity*. The event is
        dropped if the object has too many events or the queue is full; a repeat is counted anyway.
        *first* is called when the event is sent or repeated.
        """
        pending = self._pending.get(identity)
        if pending is not None:
            repeated = again(pending.make())
            self._pending[identity] = _Pending(about, lambda: repeated, pending.since)
            return
        recent = self._recent(identity)
        if recent is not None and self._delay(about, identity):
            self._sent[identity] = (again(recent), self._sent[identity][1])
            return
        make = first if recent is None else partial(again, recent)
        if len(self._pending) < PENDING_MAX and self._budget.take(about):
            self._sent.pop(identity, None)
            now = self._clock()
            self._added.append(now)
            self._pending[identity] = _Pending(about, make, now)
            self._wake.set()
            return
        self.dropped += 1
        if recent is not None:
            self._sent[identity] = (make(), self._sent[identity][1])

    def _delay(self, about: str, identity: Hashable) -> bool:
        """Return whether a repeat is within the quiet time, and schedule it for its end."""
        due = self._sent[identity][1] + self._quiet_s
        if due <= self._clock() or self._closed.is_set():
            return False
        if identity not in self._delayed:
            self._delayed[identity] = about
            asyncio.get_running_loop().call_at(due, self._release, identity)
        return True

    def _release(self, identity: Hashable) -> None:
        """Queue a delayed repeat, unless it was forgotten or its object has no token left."""
        about = self._delayed.pop(identity, None)
        if about is None or identity not in self._sent:
            return
        if not self._budget.take(about):
            self.dropped += 1
        else:
            event, _ = self._sent.pop(identity)
            self._pending[identity] = _Pending(about, lambda: event, self._clock())
            self._wake.set()

    async def run(self) -> None:
        """Send events until the outbox is closed, and then the pending ones."""
        closing = False
        while not closing:
            await self._wake.wait()
            self._wake.clear()
            closing = self._closed.is_set()
            while self._pending:
                await self._let_writes_pass()
                await self._send_next()
                await self._rest(self._pause_s)

    def close(self) -> None:
        """Make `run` return after it has sent the pending events."""
        for identity in list(self._delayed):
            self._release(identity)
        self._closed.set()
        self._wake.set()

    def drop_pending(self) -> int:
        """Drop the pending events, and return their number."""
        pending = len(self._pending)
        self._pending.clear()
        self.dropped += pending
        return pending

    async def _let_writes_pass(self) -> None:
        """Wait until the oldest event is due, and not many new events come; see `LATE_S`."""
        while not self._closed.is_set():
            since = next(iter(self._pending.values())).since
            calm_at = self._added[0] + self._gather_s if len(self._added) == BUSY else 0.0
            due = min(max(since + self._gather_s, calm_at), since + LATE_S)
            if due <= self._clock():
                return
            await self._rest(due - self._clock())

    async def _rest(self, wait_s: float) -> None:
        """Wait, but not longer than until the outbox is closed."""
        if wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._closed.wait()

    def _recent(self, identity: Hashable) -> E | None:
        event, sent_at = self._sent.get(identity, (None, 0.0))
        if event is None or self._clock() - sent_at > self._repeat_s:
            self._sent.pop(identity, None)
            return None
        return event

    async def _send_next(self) -> None:
        """Send the oldest event; drop it if that fails."""
        identity, pending = self._pending.popitem(last=False)
        about, event = pending.about, pending.make()
        self._remember(identity, event)  # so that an event during the send is a repeat
        try:
            sent = await self._send(event)
        except asyncio.CancelledError:
            # its outcome is unknown
            self._pending[identity] = _Pending(about, lambda: event, pending.since)
            raise
        except StoreError as error:
            self.dropped += 1
            self._sent.pop(identity, None)
            if isinstance(error, PermissionDeniedError):
                self._log_denial_once(about, error)
            else:
                log.warning("cannot send event", object=about, error=error)
                await asyncio.sleep(PAUSE_S)
        else:
            if identity not in self._pending and identity not in self._delayed:
                self._remember(identity, sent)

    def _remember(self, identity: Hashable, event: E) -> None:
        self._sent[identity] = (event, self._clock())
        if len(self._sent) > REMEMBERED_MAX:
            self._sent.popitem(last=False)

    def _log_denial_once(self, about: str, denial: PermissionDeniedError) -> None:
        if str(denial) in self._denials:
            return
        if len(self._denials) >= DENIALS_MAX:
            self._denials.clear()
        self._denials.add(str(denial))
        log.warning("no permission to send events", object=about, error=denial)


@asynccontextmanager
async def sending(outbox: Outbox[Any]) -> AsyncIterator[None]:
    """Send the outbox's events while the context is open, and the pending ones at its end."""
    task = asyncio.create_task(outbox.run(), name="events")
    try:
        yield
    finally:
        outbox.close()
        _, late = await asyncio.wait((task,), timeout=CLOSE_S)
        if late:
            task.cancel()
            await asyncio.wait((task,))
            log.warning("events were not sent in time", events=outbox.drop_pending())
