"""Sends events in the background: in bounded number and rate, and behind writes of objects."""

import asyncio
import math
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.telemetry.logger import Repeats, get_logger
from natsctl.time_limit import happens

log = get_logger(__name__)

E = TypeVar("E")

REMEMBERED_MAX = 10_000  # objects with a budget, and sent events that may repeat
BURST = 25  # events about one object at once
REFILL_S = 60.0  # seconds until an object may have one more event
PENDING_MAX = 10_000  # events that wait to be sent
PAUSE_S = 1.0  # pause after an event that couldn't be sent
CLOSE_S = 2.0  # timeout for sending the pending events at the end
GATHER_S = 1.0  # before a new event is sent, within which repeats are collected
BUSY = 10  # new events within `gather_s` that show that many objects are being written
LATE_S = 30.0  # the longest time that events wait for a busy controller
QUIET_S = 5.0  # after an event, within which repeats are collected and sent as one


class SendingPace:
    """Gives turns with a pause between two; outboxes that share one share its rate."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s, self._free_at = pause_s, 0.0
        self._clock = asyncio.get_running_loop().time

    def take(self) -> float:
        """Take the next turn, and return the seconds until it begins."""
        now = self._clock()
        begins = max(now, self._free_at)
        self._free_at = begins + self._pause_s
        return begins - now


class _Pending(msgspec.Struct, Generic[E], frozen=True, gc=False):
    """An event about the object `about` that waits to be sent since the time `since`.

    `make` returns the event. It's made when it's sent, because writes of objects come first.
    """

    about: str
    make: Callable[[], E]
    since: float


_Queue = OrderedDict[Hashable, _Pending[E]]


class Outbox(Generic[E]):
    """A bounded queue of events. Adding never blocks; events beyond a limit are dropped.

    `sending` sends the events one at a time, at the rate of the *pace*, which limits the load on
    the server. Events that equal an earlier one of the last *repeat_s* seconds are counted and sent
    as one. Writes of objects come first: many new events in a short time show that a controller
    writes many objects, so events then wait until there are fewer new ones, but not longer than
    `LATE_S`. Urgent events don't wait for that. They are sent before the others, and the oldest of
    the others makes room for an urgent event if the queue is full.

    *send* sends an event, and returns it in the form from which its repeats are made.
    """

    def __init__(
        self, send: Callable[[E], Awaitable[E]], *, repeat_s: float, pace: SendingPace
    ) -> None:
        self.counts = {"sent": 0, "merged": 0, "dropped": 0}
        self._send, self._repeat_s, self.pace = send, repeat_s, pace
        self._clock = asyncio.get_running_loop().time
        self._added = deque[float](maxlen=BUSY)  # the times of the last new events
        self._budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, time
        self._urgent: _Queue[E] = OrderedDict()
        self._others: _Queue[E] = OrderedDict()
        self._sent: OrderedDict[Hashable, tuple[E, float]] = OrderedDict()  # event, time
        self._delayed: dict[Hashable, tuple[str, _Queue[E]]] = {}  # repeats in the quiet time
        self._denials = Repeats(self._clock, math.inf)
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()

    def counted(self, system: str) -> dict[tuple[str, str], int]:
        return {(system, outcome): count for outcome, count in self.counts.items()}

    @property
    def pending(self) -> int:
        return len(self._urgent) + len(self._others)

    def add(
        self,
        about: str,
        identity: Hashable,
        *,
        first: Callable[[], E],
        again: Callable[[E], E],
        urgent: bool = False,
    ) -> None:
        """Queue an event about the object *about*.

        The event is *first*, or *again* of the recent event with the same *identity*. The event is
        dropped if the object has too many events or the queue is full; a repeat is counted anyway.
        *first* is called when the event is sent or repeated.
        """
        queue, now = self._urgent if urgent else self._others, self._clock()
        pending, recent = queue.get(identity), self._sent.get(identity)
        if pending is not None:
            repeated = again(pending.make())
            queue[identity] = _Pending(about, lambda: repeated, pending.since)
            self.counts["merged"] += 1
            return
        make = first
        if recent is not None and now - recent[1] > self._repeat_s:
            del self._sent[identity]
        elif recent is not None:
            event, sent_at = again(recent[0]), recent[1]
            self._sent[identity] = event, sent_at
            if sent_at + QUIET_S > now and not self._closed.is_set():
                if identity not in self._delayed:
                    self._delayed[identity] = about, queue
                    loop = asyncio.get_running_loop()
                    loop.call_at(sent_at + QUIET_S, self._release, identity)
                self.counts["merged"] += 1
                return
            make = lambda: event  # noqa: E731 - as *first*
        has_room = self.pending < PENDING_MAX or (urgent and len(self._others) > 0)
        if has_room and self._may_send(about):
            self._sent.pop(identity, None)
            self._added.append(now)
            self._enqueue(queue, identity, _Pending(about, make, now))
        else:
            self.counts["dropped"] += 1

    def _may_send(self, about: str) -> bool:
        """Take a token of the object *about*; return False if it has none left."""
        now = self._clock()
        tokens, refilled = self._budgets.pop(about, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - refilled) / REFILL_S)
        allowed = tokens >= 1
        self._budgets[about] = (tokens - allowed, now)
        if len(self._budgets) > REMEMBERED_MAX:
            self._budgets.popitem(last=False)
        return allowed

    def _enqueue(self, queue: _Queue[E], identity: Hashable, pending: _Pending[E]) -> None:
        queue[identity] = pending
        if self.pending > PENDING_MAX and self._others:
            self._others.popitem(last=False)
            self.counts["dropped"] += 1
        self._wake.set()

    def _release(self, identity: Hashable) -> None:
        delayed = self._delayed.pop(identity, None)
        if delayed is None or identity not in self._sent:
            return
        about, queue = delayed
        if not self._may_send(about):
            self.counts["dropped"] += 1
        else:
            event, _ = self._sent.pop(identity)
            self._enqueue(queue, identity, _Pending(about, lambda: event, self._clock()))

    async def run(self) -> None:
        """Send events until the outbox is closed, and then the pending ones."""
        closing = False
        while not closing:
            await self._wake.wait()
            self._wake.clear()
            closing = self._closed.is_set()
            while self.pending:
                # gathered, and behind writes unless urgent
                while not self._closed.is_set() and self._next()[0] > self._clock():
                    await self._rest(self._next()[0] - self._clock())
                if not self._closed.is_set():
                    await self._rest(self.pace.take())
                await self._send_next(self._next()[1])

    def close(self) -> None:
        """Make `run` return after it has sent the pending events."""
        for identity in list(self._delayed):
            self._release(identity)
        self._closed.set()
        self._wake.set()

    def drop_pending(self) -> int:
        pending = self.pending
        self._urgent.clear()
        self._others.clear()
        self.counts["dropped"] += pending
        return pending

    def _next(self) -> tuple[float, _Queue[E]]:
        """Return when the next event is due, and its queue: the urgent one if both are due."""
        urgent_at, other_at = (
            next(iter(queue.values())).since + GATHER_S if queue else math.inf
            for queue in (self._urgent, self._others)
        )
        calm_at = self._added[0] + GATHER_S if len(self._added) == BUSY else 0.0
        other_at = min(max(other_at, calm_at), other_at - GATHER_S + LATE_S)
        if urgent_at <= max(other_at, self._clock()) or (self._urgent and self._closed.is_set()):
            return urgent_at, self._urgent
        return other_at, self._others

    async def _rest(self, wait_s: float) -> None:
        if wait_s > 0:
            await happens(self._closed, within_s=wait_s)

    async def _send_next(self, queue: _Queue[E]) -> None:
        identity, pending = queue.popitem(last=False)
        about, event = pending.about, pending.make()
        self._remember(identity, event)  # so that an event during the send is a repeat
        try:
            sent = await self._send(event)
        except asyncio.CancelledError:
            # its outcome is unknown
            queue[identity] = _Pending(about, lambda: event, pending.since)
            raise
        except StoreError as error:
            self.counts["dropped"] += 1
            self._sent.pop(identity, None)
            if isinstance(error, PermissionDeniedError):
                if self._denials.due(str(error)):
                    log.warning("no permission to send events", object=about, error=error)
            else:
                log.warning("cannot send event", object=about, error=error)
                await asyncio.sleep(PAUSE_S)
        except Exception:
            self.counts["dropped"] += 1
            self._sent.pop(identity, None)
            log.exception("cannot send event", object=about)
        else:
            self.counts["sent"] += 1
            if identity not in queue and identity not in self._delayed:
                self._remember(identity, sent)

    def _remember(self, identity: Hashable, event: E) -> None:
        self._sent[identity] = (event, self._clock())
        if len(self._sent) > REMEMBERED_MAX:
            self._sent.popitem(last=False)


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
