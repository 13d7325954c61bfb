"""Lies between the processes of a world and its stores, and injects the faults of a run.

Every call of a store passes through here twice: on its way to the store, and with the answer. Each
way takes a time that the seed chooses, so calls of several keys arrive in any order.
"""

import asyncio
import contextvars
import copy
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from natsctl.errors import ConflictError, StoreTimeoutError, WatchBrokenError
from natsctl.jetstream.store import LEASES
from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.model.store import Applied, Deleted, WatchEvent
from natsctl.telemetry.hiding import abbreviated, hidden
from natsctl.testing.simulation.world.faults import (
    EVENT_FAULTS,
    Choices,
    Drawn,
    Fault,
    Faults,
    FaultType,
    SimulatedCall,
)

Fields = dict[str, Any]

VERSIONS_MAX = 50  # former states that a late read may return


class ExternalState:
    """The resources of one external system, and their former states."""

    def __init__(self) -> None:
        self.resources: dict[str, Fields] = {}
        self.unnamed: set[str] = set()  # names that the system chose
        self.creations = 0
        self._former: list[tuple[float, dict[str, Fields]]] = []  # each until this time

    def change(self, name: str, fields: Fields | None) -> None:
        """Set the fields of a resource; None removes it."""
        now = asyncio.get_running_loop().time()
        self._former.append((now, copy.deepcopy(self.resources)))
        del self._former[:-VERSIONS_MAX]
        if fields is None:
            del self.resources[name]
        else:
            self.resources[name] = copy.deepcopy(fields)

    def seen(self, late_s: float) -> dict[str, Fields]:
        """Return the resources as they were *late_s* seconds ago."""
        moment = asyncio.get_running_loop().time() - late_s
        former = (resources for until, resources in self._former if until > moment)
        return copy.deepcopy(next(former, self.resources))


T = TypeVar("T")

LATENCIES_S = (0.0, 0.0, 0.0, 0.001, 0.004, 0.03)
HURRIED_SHARE = 0.2  # of the runs
CUT_STEPS = 100  # of `TIMEOUT_S`, for which a process is cut off at most
TIMEOUT_S = 5.0  # until a call without an answer fails
WRITES_KEPT = 12
OWN_BUCKETS = ("natsctl", LEASES.bucket)  # which have natsctl's own records
VALUE_SHOWN_MAX = 100  # characters of a value in the list of writes


class Life(Protocol):
    """One life of a process, from its start to a crash or a stop."""

    crashed: bool
    name: str
    network: "Network"

    def crash(self, restart_s: float) -> None:
        """Stop every task of the process at its current `await`."""
        ...


class Write(msgspec.Struct, frozen=True):
    """A write that took effect, and its time in seconds since the start of the run."""

    seconds: float
    process: str
    operation: str
    target: str
    value: bytes = b""

    def __str__(self) -> str:
        text = f"{self.seconds:9.3f} s  {self.operation} {self.target} {_shown(self.value)}"
        return text.rstrip()


class Network:
    """The connections of all processes of one run.

    Args:
        hurried: whether calls take no time, so that the run is as simple as possible.
        calls_max: the number of calls after which none returns, because a program may never wait
            otherwise.
    """

    def __init__(
        self,
        choices: Choices,
        faults: Faults,
        *,
        hurried: bool = False,
        calls_max: float = math.inf,
    ) -> None:
        self.faults = faults
        self._calls_max = calls_max
        self.calls = 0
        self.active_at = 0.0  # when something last passed
        self.pending = 0  # calls and events that are under way
        self.writes: list[Write] = []
        self.writes_count = 0
        self.on_write: Callable[[Write], None] = lambda _: None
        self.on_overlap: Callable[[str], None] = lambda _: None
        """Called if two processes work on the same keys, or a handler sees that they do."""
        self._choices = choices
        self._hurried = hurried or choices.share("network/hurried") < HURRIED_SHARE
        self._numbers: dict[tuple[str, str], int] = defaultdict(int)
        self.externals: dict[str, ExternalState] = {}  # by the name of the external system
        self.opened: dict[str, Kind[Any]] = {}  # the kinds that processes have opened, by place
        self._late: dict[str, float] = {}  # how old the next read of an external system is
        self._away: dict[tuple[str, str], float] = {}  # until when a store doesn't answer a process
        self._cut: dict[str, float] = {}  # until when a process reaches nothing

    async def call(
        self,
        life: Life,
        operation: str,
        place: str,
        name: str,
        action: Callable[[], Awaitable[T]],
        *,
        types: tuple[FaultType, ...],
        may_send: Callable[[], None] = lambda: None,
    ) -> T:
        """Carry a call to a store and the answer back; a fault raises a `StoreError`.

        Raises what *may_send* raises before the call is sent.
        """
        if life.crashed or self.calls >= self._calls_max:
            await _hang()
        own = place == LEASES.bucket  # heartbeats never end, and wake nobody
        self.calls += not own
        self.pending += not own
        try:
            call = self._numbered(operation, f"{place}/{name}" if name else place)
            fault = self.faults.at(call, types)
            if fault is not None:
                self._at_once(life, fault)
            may_send()
            drawn = self._choices.draw(f"latency/{operation}/{call.target}/{call.number}")
            await self._travel(drawn)
            if fault is not None:
                await self._fail_before(life, fault, place)
            if fault is not None and fault.fault is FaultType.LATE:
                return await self._arrive_late(fault.seconds, action)
            if self._away or self._cut:
                await self._check_reached(life, place)
            result = await action()
            if fault is not None:
                await self._lose_answer(life, fault)
            await self._travel(drawn)
            if life.crashed:
                await _hang()
            return result
        finally:
            if not own:
                self.pending -= 1
                self.active_at = asyncio.get_running_loop().time()

    def quiet_s(self) -> float:
        """Return the seconds since a call or an event last passed."""
        return asyncio.get_running_loop().time() - self.active_at

    def late_s(self, place: str) -> float:
        """Return how old the state is that this read of an external system returns."""
        return self._late.pop(place, 0.0)

    def wrote(
        self, process: str, operation: str, place: str, name: str, value: bytes = b""
    ) -> None:
        """Record a write that took effect, unless it is one of natsctl's own records."""
        if place in OWN_BUCKETS:
            return
        seconds = asyncio.get_running_loop().time()
        write = Write(round(seconds, 3), process, operation, f"{place}/{name}", value)
        self.writes.append(write)
        del self.writes[:-WRITES_KEPT]
        self.writes_count += 1
        self.on_write(write)

    @asynccontextmanager
    async def watch(
        self,
        life: Life,
        place: str,
        opened: Callable[[], AbstractAsyncContextManager[AsyncIterator[WatchEvent]]],
        forget: Callable[[], None],
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Open a watch whose events may be late, and which may break: then *forget* is called."""
        await self.call(life, "watch", place, "", _no_wait, types=())
        async with (
            opened() as events,
            aclosing(self._events(life, place, events, forget)) as delivered,
        ):
            yield delivered

    async def _events(
        self,
        life: Life,
        place: str,
        events: AsyncIterator[WatchEvent],
        forget: Callable[[], None],
    ) -> AsyncGenerator[WatchEvent, None]:
        clock = asyncio.get_running_loop().time
        own = place == LEASES.bucket
        async for event in events:
            self.active_at = self.active_at if own else clock()
            if isinstance(event, Applied | Deleted) and not self.faults.over:
                key = event.key if isinstance(event, Deleted) else event.stored.key
                fault = self.faults.at(self._numbered("event", f"{place}/{key}"), EVENT_FAULTS)
                if fault is not None:
                    if fault.fault is FaultType.BREAK:
                        forget()  # the next one lists, and shows only the newest states
                    await self._delay(fault)
            await self._reached_again(life)
            if life.crashed:
                await _hang()
            if (life.name, place) in self._away:
                raise WatchBrokenError(f"the connection to {place} is lost")
            self.active_at = self.active_at if own else clock()
            yield event

    async def _delay(self, fault: Fault) -> None:
        if fault.fault is FaultType.BREAK:
            raise WatchBrokenError("the watch was broken")
        self.pending += 1
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self.pending -= 1

    async def _travel(self, drawn: Drawn) -> None:
        if not self._hurried:
            seconds = LATENCIES_S[int(drawn.share() * len(LATENCIES_S))]
            if seconds:
                await asyncio.sleep(seconds)

    def _at_once(self, life: Life, fault: Fault) -> None:
        now = asyncio.get_running_loop().time()
        match fault.fault:
            case FaultType.CUT | FaultType.LATE:
                self._cut[life.name] = now + fault.seconds
            case FaultType.JUMP:
                _jump(fault.seconds)
            case _:
                pass

    async def _fail_before(self, life: Life, fault: Fault, place: str) -> None:
        match fault.fault:
            case FaultType.CRASH_BEFORE:
                life.crash(fault.seconds)
                await _hang()
            case FaultType.TIMEOUT:
                await asyncio.sleep(TIMEOUT_S)
                raise StoreTimeoutError(f"{place} did not answer within {TIMEOUT_S:g} s")
            case FaultType.CONFLICT:
                raise ConflictError(f"{place} changed since it was read")
            case FaultType.AWAY:
                self._away[life.name, place] = asyncio.get_running_loop().time() + fault.seconds
            case FaultType.SLOW:
                await asyncio.sleep(fault.seconds)
            case FaultType.OLD:
                self._late[place] = fault.seconds
            case _:
                pass

    async def _lose_answer(self, life: Life, fault: Fault) -> None:
        match fault.fault:
            case FaultType.CRASH_AFTER:
                life.crash(fault.seconds)
                await _hang()
            case FaultType.LOST_ANSWER:
                await asyncio.sleep(TIMEOUT_S)
                raise StoreTimeoutError(f"no answer within {TIMEOUT_S:g} s")
            case _:
                pass

    async def _arrive_late(self, seconds: float, action: Callable[[], Awaitable[T]]) -> T:
        """Let the write arrive when its process reaches the stores again, whatever became of it."""
        loop = asyncio.get_running_loop()
        arrival = loop.create_task(self._act_after(seconds, action), context=contextvars.Context())
        return await asyncio.shield(arrival)

    async def _act_after(self, seconds: float, action: Callable[[], Awaitable[T]]) -> T:
        self.pending += 1
        try:
            await asyncio.sleep(seconds)
            return await action()
        finally:
            self.pending -= 1

    async def _check_reached(self, life: Life, place: str) -> None:
        clock = asyncio.get_running_loop().time
        if self.faults.over:
            self._away.clear()
            self._cut.clear()
        until = max(self._away.get((life.name, place), 0.0), self._cut.get(life.name, 0.0))
        if until > clock():
            await asyncio.sleep(min(TIMEOUT_S, until - clock()))
            raise StoreTimeoutError(f"{place} does not answer")
        self._away.pop((life.name, place), None)

    async def _reached_again(self, life: Life) -> None:
        """Wait until the process isn't cut off any more."""
        clock = asyncio.get_running_loop().time
        for _ in range(CUT_STEPS):
            until = self._cut.get(life.name, 0.0)
            if until <= clock() or self.faults.over:
                return
            await asyncio.sleep(min(until - clock(), TIMEOUT_S))

    def _numbered(self, operation: str, target: str) -> SimulatedCall:
        self._numbers[operation, target] += 1
        return SimulatedCall(operation, target, self._numbers[operation, target])


def _jump(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    loop.jump(seconds)  # type: ignore[attr-defined]  # runs are in virtual time


async def _no_wait() -> None:
    """Open a watch at once."""


async def _hang() -> None:
    """Wait until the task is cancelled, since its process has crashed."""
    await asyncio.get_running_loop().create_future()


def _shown(value: bytes) -> str:
    """Return the spec and the status of a value, shortened and without secrets."""
    if not value:
        return ""
    try:
        document = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"{len(value)} bytes"
    if isinstance(document, dict):
        document = documents.without(document, "metadata", "apiVersion", "kind")
    return abbreviated(hidden(msgspec.json.encode(document).decode()), VALUE_SHOWN_MAX)
