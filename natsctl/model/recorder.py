"""The seam for events: messages about a key, for people."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from natsctl.errors import PermissionDeniedError, StoreError
from natsctl.model.manifests import Reference

log = logging.getLogger(__name__)

E = TypeVar("E")

OBJECTS_MAX = 10_000  # objects, and events told, that are remembered
BURST = 25  # events that may be told of an object at once
REFILL_S = 60.0  # one more for each so many seconds
PENDING_MAX = 10_000  # events on their way
PAUSE_S = 1.0  # after one that could not be sent
DENIALS_MAX = 100  # distinct ones that are remembered
CLOSE_S = 2.0
QUIET_S = 5.0  # that recorders leave between an event and its repeats


class EventType(Enum):
    """Whether somebody should look."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Recorder(Protocol):
    """Takes events and sends them when it can; never blocks, never raises."""

    def event(
        self,
        key: str,
        type: EventType,  # noqa: A002 - the field's word
        reason: str,
        message: str,
        regarding: Sequence[Reference] = (),
    ) -> None:
        """Record that something happened to the primary *key*, and to what was made for it.

        *reason* is short, CamelCase and made for programs; *message* is for people; *regarding*
        names the objects of a cluster that were made for it.
        """
        ...


class Budget:
    """How many events may still be told of each object."""

    def __init__(self) -> None:
        self._spent: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, at

    def take(self, about: str) -> bool:
        """Say whether one more may be told, and count it."""
        now = asyncio.get_running_loop().time()
        tokens, at = self._spent.pop(about, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - at) / REFILL_S)
        allowed = tokens >= 1
        self._spent[about] = (tokens - allowed, now)
        if len(self._spent) > OBJECTS_MAX:
            self._spent.popitem(last=False)
        return allowed


class Outbox(Generic[E]):
    """Sends events; `sending` runs it. Adding never waits, and what is too much is dropped.

    *send* sends one and returns it as it is to be remembered: a repeat within *repeat_s* seconds
    is made of it. *pause_s* lies between two, so that they are little of a server's work. Repeats
    within *quiet_s* seconds after an event was sent are sent as one, when that time is over or at
    the end.
    """

    def __init__(
        self,
        send: Callable[[E], Awaitable[E]],
        *,
        repeat_s: float,
        pause_s: float = 0.0,
        quiet_s: float = 0.0,
    ) -> None:
        self.dropped = 0
        self._send = send
        self._repeat_s = repeat_s
        self._pause_s = pause_s
        self._quiet_s = quiet_s
        self._held: dict[Hashable, str] = {}  # repeats that wait, with their objects
        self._budget = Budget()
        self._pending: OrderedDict[Hashable, tuple[str, E]] = OrderedDict()
        self._told: OrderedDict[Hashable, tuple[E, float]] = OrderedDict()
        self._denials: set[str] = set()
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()

    def add(
        self, about: str, identity: Hashable, *, first: Callable[[], E], again: Callable[[E], E]
    ) -> None:
        """Have an event sent: a *first*, or *again* what was told with the same *identity*.

        Beyond the rate of what it is *about*, or with too many on their way, it is dropped; a
        repeat is counted nevertheless.
        """
        if identity in self._pending:
            self._pending[identity] = (about, again(self._pending[identity][1]))
            return
        told = self._told_lately(identity)
        if told is not None and self._hold(about, identity):
            self._told[identity] = (again(told), self._told[identity][1])
            return
        event = first() if told is None else again(told)
        if len(self._pending) < PENDING_MAX and self._budget.take(about):
            self._told.pop(identity, None)
            self._pending[identity] = (about, event)
            self._wake.set()
            return
        self.dropped += 1
        if told is not None:
            self._told[identity] = (event, self._told[identity][1])

    def _hold(self, about: str, identity: Hashable) -> bool:
        """Return whether a repeat comes too soon after the last one was sent: it is sent later."""
        loop = asyncio.get_running_loop()
        due = self._told[identity][1] + self._quiet_s
        if due <= loop.time() or self._closed.is_set():
            return False
        if identity not in self._held:
            self._held[identity] = about
            loop.call_at(due, self._release, identity)
        return True

    def _release(self, identity: Hashable) -> None:
        """Send a repeat that was held, unless it was forgotten since or is beyond the rate."""
        about = self._held.pop(identity, None)
        if about is None or identity not in self._told:
            return
        if not self._budget.take(about):
            self.dropped += 1
        else:
            event, _ = self._told.pop(identity)
            self._pending[identity] = (about, event)
            self._wake.set()

    async def run(self) -> None:
        """Send what comes, until closed; then what is left."""
        closing = False
        while not closing:
            await self._wake.wait()
            self._wake.clear()
            closing = self._closed.is_set()
            while self._pending:
                await self._send_next()
                await self._pause()

    def close(self) -> None:
        """Let `run` end, once what is left is sent."""
        for identity in list(self._held):
            self._release(identity)
        self._closed.set()
        self._wake.set()

    async def _pause(self) -> None:
        """Wait before the next; not at the end."""
        if self._pause_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._closed.wait()

    def _told_lately(self, identity: Hashable) -> E | None:
        told, at = self._told.get(identity, (None, 0.0))
        if told is None or asyncio.get_running_loop().time() - at > self._repeat_s:
            self._told.pop(identity, None)
            return None
        return told

    async def _send_next(self) -> None:
        """Send the oldest; what cannot be sent is dropped."""
        identity, (about, event) = self._pending.popitem(last=False)
        self._remember(identity, event)  # a repeat that comes meanwhile is one
        try:
            sent = await self._send(event)
        except StoreError as error:
            self.dropped += 1
            self._told.pop(identity, None)
            if isinstance(error, PermissionDeniedError):
                self._report_once(about, error)
            else:
                log.warning("an event about %s was not sent: %s", about, error)
                await asyncio.sleep(PAUSE_S)
        else:
            if identity not in self._pending and identity not in self._held:
                self._remember(identity, sent)

    def _remember(self, identity: Hashable, event: E) -> None:
        self._told[identity] = (event, asyncio.get_running_loop().time())
        if len(self._told) > OBJECTS_MAX:
            self._told.popitem(last=False)

    def _report_once(self, about: str, denial: PermissionDeniedError) -> None:
        if str(denial) in self._denials:
            return
        if len(self._denials) >= DENIALS_MAX:
            self._denials.clear()
        self._denials.add(str(denial))
        log.warning("an event about %s was not sent, nor are others like it: %s", about, denial)


@asynccontextmanager
async def sending(outbox: Outbox[Any]) -> AsyncIterator[None]:
    """Send while the context lasts, and what is left at its end."""
    task = asyncio.create_task(outbox.run(), name="events")
    try:
        yield
    finally:
        outbox.close()
        _, late = await asyncio.wait((task,), timeout=CLOSE_S)
        if late:
            log.warning("events were not sent in time")
            task.cancel()
            await asyncio.wait((task,))
