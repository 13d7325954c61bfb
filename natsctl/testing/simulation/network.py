"""Lies between the processes of a run and its stores, and injects the faults of the run.

Every call of a store passes through here twice: on its way to the store, and with the answer. Each
way takes a time that the seed chooses, so calls of several keys arrive in any order.
"""

import asyncio
import contextvars
import math
from collections import defaultdict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from typing import Any, Generic, TypeVar

import msgspec

from natsctl.core.backends import Send, StoreProxy
from natsctl.errors import ConflictError, StoreTimeoutError, UsageError, WatchBrokenError
from natsctl.jetstream.store import LEASES
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import (
    UNGUARDED,
    Applied,
    Deleted,
    Guarded,
    Recorder,
    WatchEvent,
    WriteGuard,
)
from natsctl.telemetry.hiding import abbreviated, hidden
from natsctl.testing.cluster import MemoryCluster, MemoryManifestStore, MemoryResource
from natsctl.testing.jetstream import changes_something
from natsctl.testing.memory import MemoryStore, MemoryStores
from natsctl.testing.simulation.faults import (
    CUTS,
    EVENT_FAULTS,
    READ_FAULTS,
    REPLACE_FAULTS,
    REQUEST_FAULTS,
    WRITE_FAULTS,
    Choices,
    Fault,
    Faults,
    FaultType,
    SimulatedCall,
)

T = TypeVar("T")
Base = TypeVar("Base", bound=MemoryStores | MemoryCluster)

LATENCIES_S = (0.0, 0.0, 0.0, 0.001, 0.004, 0.03)
HURRIED_SHARE = 0.2  # of the runs
CUT_STEPS = 100  # of `TIMEOUT_S`, for which a process is cut off at most
TIMEOUT_S = 5.0  # until a call without an answer fails
WRITES_KEPT = 12
OWN_BUCKETS = ("natsctl", LEASES.bucket)  # which have natsctl's own records
VALUE_SHOWN_MAX = 100  # characters of a value in the list of writes


class Life:
    """One life of a process, from its start to a crash or a stop, as the network sees it."""

    def __init__(self, name: str, network: "Network") -> None:
        self.name, self.network = name, network
        self.crashed = False
        self.restart_s = 0.0
        self.over = asyncio.Event()

    def crash(self, restart_s: float) -> None:
        """Stop every task of the process at its current `await`."""
        self.crashed, self.restart_s = True, restart_s
        self.over.set()


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
        self.externals: dict[str, Any] = {}  # the states of external systems, by their names
        self.opened: dict[str, Kind[Any]] = {}  # the kinds that processes have opened, by place
        self._choices = choices
        self._hurried = hurried or choices.share("network/hurried") < HURRIED_SHARE
        self._numbers: dict[tuple[str, str], int] = defaultdict(int)
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
        may_send: Callable[[], None] | None = None,
    ) -> T:
        """Carry a call to a store and the answer back; a fault raises a `StoreError`.

        Raises what *may_send* raises before the call is sent.
        """
        if life.crashed or self.calls >= self._calls_max:
            await _hang()
        own = place == LEASES.bucket  # heartbeats never end, and wake nobody
        self.calls += not own
        target = f"{place}/{name}" if name else place
        with nullcontext() if own else self._under_way():
            call = self._numbered(operation, target)
            fault = self.faults.at(call, types)
            if fault is not None:
                self._begin(life, fault)
            if may_send is not None:
                may_send()
            there = back = 0.0
            if not self._hurried:
                place_of_draw = f"latency/{operation}/{target}/{call.number}"
                there, back, _, _ = self._choices.draw(place_of_draw)
                await self._travel(there)
            if fault is not None and fault.fault is FaultType.LATE:
                return await self._arrive_late(fault.seconds, action)
            if fault is not None:
                await self._fail_before(life, fault, place)
            if self._away or self._cut:
                await self._check_reached(life, place)
            result = await action()
            if fault is not None:
                await self._lose_answer(life, fault)
            await self._travel(back)
            if life.crashed:
                await _hang()
            return result

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Count something as under way: until it ends, the controller isn't idle."""
        self.pending += 1
        try:
            yield
        finally:
            self.pending -= 1
            self.active_at = _clock()

    async def _travel(self, drawn: float) -> None:
        seconds = LATENCIES_S[int(drawn * len(LATENCIES_S))]
        if seconds:
            await asyncio.sleep(seconds)

    def quiet_s(self) -> float:
        return _clock() - self.active_at

    def late_s(self, place: str) -> float:
        """Return how old the state is that this read of an external system returns."""
        return self._late.pop(place, 0.0)

    def wrote(
        self, process: str, operation: str, place: str, name: str, value: bytes = b""
    ) -> None:
        """Record a write that took effect, unless it is one of natsctl's own records."""
        if place in OWN_BUCKETS:
            return
        write = Write(round(_clock(), 3), process, operation, f"{place}/{name}", value)
        self.writes.append(write)
        del self.writes[:-WRITES_KEPT]
        self.writes_count += 1
        self.on_write(write)

    @asynccontextmanager
    async def watch(
        self,
        life: Life,
        place: str,
        opened: AbstractAsyncContextManager[AsyncIterator[WatchEvent]],
        forget: Callable[[], None],
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Open a watch whose events may be late, and which may break: then *forget* is called."""
        await self.call(life, "watch", place, "", _at_once, types=())
        async with (
            opened as events,
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
        own = place == LEASES.bucket
        async for event in events:
            if not own:
                self.active_at = _clock()
            if isinstance(event, Applied | Deleted) and not self.faults.over:
                key = event.key if isinstance(event, Deleted) else event.stored.key
                fault = self.faults.at(self._numbered("event", f"{place}/{key}"), EVENT_FAULTS)
                if fault is not None and fault.fault is FaultType.BREAK:
                    forget()  # the next one lists, and shows only the newest states
                    raise WatchBrokenError("the watch was broken")
                if fault is not None:
                    await self._act_after(fault.seconds, _at_once)
            if self._cut:
                await self._reached_again(life)
            if life.crashed:
                await _hang()
            if self._away and (life.name, place) in self._away:
                raise WatchBrokenError(f"the connection to {place} is lost")
            if not own:
                self.active_at = _clock()
            yield event

    def _begin(self, life: Life, fault: Fault) -> None:
        if fault.fault in CUTS:
            self._cut[life.name] = _clock() + fault.seconds
        elif fault.fault is FaultType.JUMP:
            asyncio.get_running_loop().jump(fault.seconds)  # type: ignore[attr-defined]

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
                self._away[life.name, place] = _clock() + fault.seconds
            case FaultType.SLOW:
                await asyncio.sleep(fault.seconds)
            case FaultType.OLD:
                self._late[place] = fault.seconds
            case _:
                pass

    async def _lose_answer(self, life: Life, fault: Fault) -> None:
        if fault.fault is FaultType.CRASH_AFTER:
            life.crash(fault.seconds)
            await _hang()
        if fault.fault is FaultType.LOST_ANSWER:
            await asyncio.sleep(TIMEOUT_S)
            raise StoreTimeoutError(f"no answer within {TIMEOUT_S:g} s")

    async def _arrive_late(self, seconds: float, action: Callable[[], Awaitable[T]]) -> T:
        """Let the write arrive when its process reaches the stores again, whatever became of it."""
        loop = asyncio.get_running_loop()
        arrival = loop.create_task(self._act_after(seconds, action), context=contextvars.Context())
        return await asyncio.shield(arrival)

    async def _act_after(self, seconds: float, action: Callable[[], Awaitable[T]]) -> T:
        with self._under_way():
            await asyncio.sleep(seconds)
            return await action()

    async def _check_reached(self, life: Life, place: str) -> None:
        if self.faults.over:
            self._away.clear()
            self._cut.clear()
        until = max(self._away.get((life.name, place), 0.0), self._cut.get(life.name, 0.0))
        if until > _clock():
            await asyncio.sleep(min(TIMEOUT_S, until - _clock()))
            raise StoreTimeoutError(f"{place} does not answer")
        self._away.pop((life.name, place), None)

    async def _reached_again(self, life: Life) -> None:
        """Wait until the process isn't cut off any more."""
        for _ in range(CUT_STEPS):
            wait_s = self._cut.get(life.name, 0.0) - _clock()
            if wait_s <= 0 or self.faults.over:
                return
            await asyncio.sleep(min(wait_s, TIMEOUT_S))

    def _numbered(self, operation: str, target: str) -> SimulatedCall:
        self._numbers[operation, target] += 1
        return SimulatedCall(operation, target, self._numbers[operation, target])


def _clock() -> float:
    return asyncio.get_running_loop().time()


async def _at_once() -> None:
    """Open a watch at once, or hand on an event."""


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


def place_of(kind: Kind[Any]) -> str:
    """Return the bucket of a kind, or the kind in a cluster, as findings name it."""
    if isinstance(kind, KvKind):
        return kind.bucket
    return kind.kind if isinstance(kind, KubeKind) else kind.name


# ---- the stores as one process sees them


_READS = {"check_create", "get", "history", "managed", "read"}
_PARTIAL = {"apply", "patch_status"}  # verbs that may change nothing
_OPERATIONS = {"check_create": "check", "managed": "read", "patch_status": "patch"}  # others: equal


class SimulatedStore(StoreProxy):
    """A store behind a connection; a `ManifestStore` for a kind of a cluster."""

    def __init__(
        self,
        base: MemoryStore | MemoryManifestStore,
        life: Life,
        guard: WriteGuard = UNGUARDED,
    ) -> None:
        super().__init__(base)
        self._life, self._guard, self._place = life, guard, place_of(base.kind)
        life.network.opened[self._place] = base.kind

    def watch(
        self, shown: Collection[str] | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        opened = self._store.watch(shown)
        return self._life.network.watch(self._life, self._place, opened, self._store.forget)

    def _call(
        self,
        verb: str,
        key: str,
        send: Send[T],
        value: bytes | Document = b"",
        *,
        revision: int | None = None,
    ) -> Coroutine[Any, Any, T]:
        network, life, place = self._life.network, self._life, self._place
        operation = _OPERATIONS.get(verb, verb)
        if verb in _READS:
            return network.call(life, operation, place, key, send, types=READ_FAULTS)

        async def write() -> T:
            before = self._store.writes
            result = await send()
            if place not in OWN_BUCKETS and (verb not in _PARTIAL or self._store.writes > before):
                done = "patch status of" if verb == "patch_status" else verb
                written = value if isinstance(value, bytes) else documents.render(value)
                network.wrote(life.name, done, place, key, written)
            return result

        types = REPLACE_FAULTS if verb == "apply" or revision is not None else WRITE_FAULTS
        return network.call(life, operation, place, key, write, types=types, may_send=self._check)

    def _check(self) -> None:
        self._guard.check(self.kind)


class SimulatedBucket(SimulatedStore):
    """A bucket behind a connection; a `Sequenced`."""

    def last_revision(self) -> Coroutine[Any, Any, int]:
        return self._call("read", "", self._store.last_revision)

    def newest_revision(self) -> Coroutine[Any, Any, int]:
        return self._call("read", "", self._store.newest_revision)


class _Simulated(Guarded, Generic[Base]):
    """A system behind a connection, whose guard is asked before a write is sent."""

    forgets = True  # no record of failing keys

    def __init__(self, base: Base, life: Life) -> None:
        self._base = base
        self._life = life

    def recorder(self, controller: str) -> AbstractAsyncContextManager[Recorder]:
        return self._base.guarded(self.guard).recorder(controller)


class SimulatedStores(_Simulated[MemoryStores]):
    """The buckets behind a connection; a `Stores` with a JetStream API."""

    async def open(self, kind: Kind[Any]) -> SimulatedBucket:
        return self.store(kind)

    def store(self, kind: Kind[Any]) -> SimulatedBucket:
        return SimulatedBucket(self._base.store(kind), self._life, self.guard)

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        network, life, changes = self._life.network, self._life, changes_something(endpoint)

        async def api() -> dict[str, Any]:
            response = await self._base.api(endpoint, body)
            if changes:
                network.wrote(life.name, "request", "jetstream", endpoint)
            return response

        def may_send() -> None:
            if changes:
                self.guard.check(None)

        types = REQUEST_FAULTS if changes else READ_FAULTS
        return await network.call(
            life, "request", "jetstream", endpoint, api, types=types, may_send=may_send
        )


class SimulatedCluster(_Simulated[MemoryCluster]):
    """The kinds of a cluster behind a connection; a `ManifestStores`."""

    async def open(self, kind: Kind[Any]) -> SimulatedStore:
        if not isinstance(kind, KubeKind):
            raise UsageError(f"{kind.name} is not a Kubernetes kind")
        return SimulatedStore(self._base.store(kind), self._life, self.guard)

    async def resource(self, api_version: str, kind: str) -> MemoryResource:
        return await self._base.resource(api_version, kind)
