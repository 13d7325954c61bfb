"""Reports whether a process is alive and ready, and its metrics."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Protocol, TypeVar

import msgspec

from natsctl.core.coordination.shares import ShareState
from natsctl.core.hosted import Hosted
from natsctl.core.status import CacheMeasures
from natsctl.daemon.http.metrics import Scrape, families
from natsctl.daemon.observe.watchdog import Watchdog
from natsctl.daemon.operator import Runnable
from natsctl.jetstream.connection import ConnectionState
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.histogram import Distribution
from natsctl.telemetry.metrics import Family

StateT_co = TypeVar("StateT_co", covariant=True)

DEAD_S = 60.0  # a process whose event loop is blocked for longer is not live


class Check(msgspec.Struct, frozen=True):
    """One aspect of a process's health; `failure` is the reason it fails, empty if it passes."""

    name: str
    failure: str = ""

    def __str__(self) -> str:
        reason = " ".join(hidden(self.failure).split())  # one line
        return f"[-]{self.name} failed: {reason}" if self.failure else f"[+]{self.name} ok"


class CheckVerdict(msgspec.Struct, frozen=True):
    """The result of all checks behind one endpoint, such as `readyz`.

    `note` explains a verdict that passes although something is wrong.
    """

    endpoint: str
    checks: tuple[Check, ...]
    note: str = ""

    @property
    def passed(self) -> bool:
        """True if no check fails."""
        return not any(check.failure for check in self.checks)

    def text(self, *, verbose: bool = False) -> str:
        """Return `ok`, or a line for each check if one fails, if there is a note or if *verbose*.

        The form is that of a kube-apiserver.
        """
        if self.passed and not verbose and not self.note:
            return "ok"
        end = f"{self.endpoint} check {'passed' if self.passed else 'failed'}\n"
        return "\n".join((*map(str, self.checks), *filter(None, (self.note,)), end))


class HasState(Protocol[StateT_co]):
    """A part that reports its state: an election, a shard or a connection."""

    def state(self) -> StateT_co:
        """Return the current state."""
        ...


class Reconnecting(HasState[ConnectionState], Protocol):
    """A connection that may reconnect by itself."""

    @property
    def reconnects(self) -> bool:
        """False if the connection was given up."""
        ...


class CountsRequests(Protocol):
    """A cluster that counts and measures the requests to it."""

    def requests(self) -> Mapping[tuple[str, ...], int]:
        """Return the number of requests by status, method and host."""
        ...

    def times(self) -> Mapping[tuple[str, ...], Distribution]:
        """Return the times until responses began, by method and host."""
        ...


class _Parts(msgspec.Struct, frozen=True):
    """The parts of a process that is connected."""

    connection: Reconnecting | None = None
    runtimes: Sequence[Runnable] = ()
    participations: Sequence[HasState[ShareState]] = ()
    cluster: CountsRequests | None = None


class Vitals:
    """Reports for a process, also before it is connected and while it stops.

    `watchdog` watches the event loop of the process.
    """

    def __init__(self) -> None:
        self.watchdog = Watchdog()
        self._parts = _Parts()
        self._stopping = False

    def stop(self) -> None:
        """Report from now on that the process is not ready, because it is stopping."""
        self._stopping = True

    @contextmanager
    def of(
        self,
        connection: Reconnecting,
        runtimes: Sequence[Runnable],
        participations: Sequence[HasState[ShareState]] = (),
        cluster: CountsRequests | None = None,
    ) -> Iterator[None]:
        """Report for these parts while the context lasts."""
        self._parts = _Parts(connection, runtimes, participations, cluster)
        try:
            yield
        finally:
            self._parts = _Parts()

    def live(self) -> CheckVerdict:
        """Return whether the process can work, now or when other systems are back.

        If not, only a restart helps. Any thread may call this. A handler that blocks the event loop
        for less than `DEAD_S` is a note, because a restart would not help yet.
        """
        connection, stall = self._parts.connection, self.watchdog.stall
        reconnects = connection is None or connection.reconnects
        failure = "" if reconnects else "the connection was given up and does not reconnect"
        checks = (Check("ping"), Check("nats", failure))
        if stall is None:
            return CheckVerdict("livez", checks)
        if stall.duration_s < DEAD_S:
            return CheckVerdict("livez", checks, f"[+]event-loop ok: {stall}")
        return CheckVerdict("livez", (*checks, Check("event-loop", str(stall))))

    def ready(self) -> CheckVerdict:
        """Return whether the process works, or can work at once if it becomes the leader.

        A process is ready if it is connected, every cache is synced and has a watch, and its leases
        and member records are known. A process that is stopping is not ready.
        """
        stopping = [Check("shutdown", "stopping")] if self._stopping else []
        controllers = [check for runtime in self._parts.runtimes for check in _checks(runtime)]
        if not controllers:
            controllers = [Check("controllers", "no controller is running")]
        shared = [
            _participation_check(participation.state())
            for participation in self._parts.participations
        ]
        return CheckVerdict("readyz", (*stopping, self._connection_check(), *shared, *controllers))

    async def metrics(self) -> list[Family]:
        """Return all metrics.

        Waits at most a second for stores that do not report their newest revision.
        """
        parts = self._parts
        measured = {
            runtime.name: runtime for runtime in parts.runtimes if isinstance(runtime, Hosted)
        }
        lags = await asyncio.gather(*(runtime.lags() for runtime in measured.values()))
        states = [participation.state() for participation in parts.participations]
        scrape = Scrape(
            measures=[runtime.measures() for runtime in measured.values()],
            lags=dict(zip(measured, lags, strict=True)),
            connection=None if parts.connection is None else parts.connection.state(),
            elections=[state for state in states if state.count == 1],
            shards=[state for state in states if state.count > 1],
            requests={} if parts.cluster is None else parts.cluster.requests(),
            times={} if parts.cluster is None else parts.cluster.times(),
            stalls=self.watchdog.stalls,
            version=version("natsctl"),
        )
        return families(scrape)

    def metrics_without_loop(self) -> list[Family]:
        """Return what any thread knows: the stalls. What is not known is left out."""
        return families(Scrape(stalls=self.watchdog.stalls, version=version("natsctl")))

    def _connection_check(self) -> Check:
        if self._parts.connection is None:
            return Check("nats", "not connected: the process is starting or stopping")
        state = self._parts.connection.state()
        if state.connected:
            return Check("nats")
        return Check("nats", f"not connected to {state.server}: {state.last_error}")


def _checks(runtime: Runnable) -> list[Check]:
    """Check a controller and each of its caches."""
    name = f"controller/{runtime.name}"
    if not isinstance(runtime, Hosted):
        return [Check(name, "" if runtime.synced.is_set() else "the controller is starting")]
    caches = runtime.measures().caches
    opened = Check(name, "" if caches else "the controller is opening its stores")
    return [
        opened,
        *(Check(f"cache/{runtime.name}/{cache.slot}", _cache_failure(cache)) for cache in caches),
    ]


def _participation_check(state: ShareState) -> Check:
    check = f"{'lease' if state.count == 1 else 'shard'}/{state.name}"
    if not state.known:
        return Check(check, "the lease was not read or written yet, or the last attempt failed")
    waits = state.count > 1 and not state.works
    return Check(check, "this process has no shares of the keys yet" if waits else "")


def _cache_failure(cache: CacheMeasures) -> str:
    if cache.failure:
        return cache.failure
    return "" if cache.synced else f"the first listing of {cache.kind} is not complete"
