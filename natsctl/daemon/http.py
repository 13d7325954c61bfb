"""Serves `/livez`, `/readyz` and `/metrics` from threads, so they answer while a handler blocks."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from natsctl.core.coordination.shares import Participation
from natsctl.core.hosted import Hosted
from natsctl.core.reports import lags, mask_errors
from natsctl.daemon.metrics import Family, exposition, families
from natsctl.daemon.operator import Runnable
from natsctl.daemon.server import LOOK_S, TEXT, HttpRequest, HttpServer
from natsctl.daemon.settings.settings import Address
from natsctl.daemon.watchdog import Watchdog
from natsctl.jetstream.connection import Connection
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube

T = TypeVar("T")

log = get_logger(__name__)

DEAD_S = 60.0  # a process whose event loop is blocked for longer isn't live
CONNECTIONS_MAX = 64
CONNECTION_S = 10.0  # the deadline of a connection
PATIENCE_S = 1.0  # a younger connection doesn't make room for another one
ANSWER_S = 5.0  # how long the event loop may take for an answer
PAUSE_FACTOR = 9.0  # the pause after a page of metrics, relative to the time it took
PAUSE_MAX_S = 0.25


class Check(msgspec.Struct, frozen=True):
    """One aspect of a process's health; `failure` is the reason it fails, empty if it passes."""

    name: str
    failure: str = ""

    def __str__(self) -> str:
        reason = " ".join(hidden(self.failure).split())  # one line
        return f"[-]{self.name} failed: {reason}" if self.failure else f"[+]{self.name} ok"


class CheckVerdict(msgspec.Struct, frozen=True):
    """The checks behind one endpoint; `note` is what's wrong although they pass."""

    endpoint: str
    checks: tuple[Check, ...]
    note: str = ""

    @property
    def passed(self) -> bool:
        return not any(check.failure for check in self.checks)

    def text(self, *, verbose: bool = False) -> str:
        if self.passed and not verbose and not self.note:
            return "ok"
        end = f"{self.endpoint} check {'passed' if self.passed else 'failed'}\n"
        return "\n".join((*map(str, self.checks), *filter(None, (self.note,)), end))


class Vitals:
    """Reports for a process, also before it's connected and while it stops."""

    def __init__(self) -> None:
        self.watchdog = Watchdog()
        self._connection: Connection | None = None
        self._runtimes: Sequence[Runnable] = ()
        self._participations: Sequence[Participation] = ()
        self._cluster: Kube | None = None
        self._stopping = False

    def stop(self) -> None:
        self._stopping = True

    @contextmanager
    def of(
        self,
        connection: Connection,
        runtimes: Sequence[Runnable],
        participations: Sequence[Participation] = (),
        cluster: "Kube | None" = None,
    ) -> Iterator[None]:
        self._connection, self._cluster = connection, cluster
        self._runtimes, self._participations = runtimes, participations
        try:
            yield
        finally:
            self._connection = self._cluster = None
            self._runtimes = self._participations = ()

    def live(self) -> CheckVerdict:
        """Return whether the process can work, now or when other systems are back.

        If not, only a restart helps. Any thread may call this. A handler that blocks the event loop
        for less than `DEAD_S` is a note, because a restart would not help yet.
        """
        connection, stall = self._connection, self.watchdog.stall
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

        A process is ready if it's connected, every cache is synced and has a watch, and its leases
        and member records are known. A process that is stopping isn't ready.
        """
        checks = [Check("shutdown", "stopping")] if self._stopping else []
        if self._connection is None:
            checks.append(Check("nats", "not connected: the process is starting or stopping"))
        else:
            state = self._connection.state()
            lost = f"not connected to {state.server}: {state.last_error}"
            checks.append(Check("nats", "" if state.connected else lost))
        for participation in self._participations:
            share, failure = participation.state(), ""
            if not share.known:
                failure = "the lease was not read or written yet, or the last attempt failed"
            elif share.count > 1 and not share.works:
                failure = "this process has no shares of the keys yet"
            checks.append(
                Check(f"{'lease' if share.count == 1 else 'shard'}/{share.name}", failure)
            )
        for runtime in self._runtimes:
            name = f"controller/{runtime.name}"
            if not isinstance(runtime, Hosted):
                starting = "" if runtime.synced.is_set() else "the controller is starting"
                checks.append(Check(name, starting))
                continue
            informers = runtime.host.informers
            checks.append(Check(name, "" if informers else "the controller is opening its stores"))
            for slot, informer in informers.items():
                table, broken = informer.table, informer.failure
                failure = "" if broken is None else str(broken)
                if not (failure or table.synced.is_set()):
                    failure = f"the first listing of {table.kind.name} is not complete"
                checks.append(Check(f"cache/{runtime.name}/{slot}", failure))
        if not self._runtimes:
            checks.append(Check("controllers", "no controller is running"))
        return CheckVerdict("readyz", tuple(checks))

    async def metrics(self) -> list[Family]:
        connection, cluster = self._connection, self._cluster
        shares = [participation.state() for participation in self._participations]
        hosted = [runtime for runtime in self._runtimes if isinstance(runtime, Hosted)]
        for runtime in hosted:
            await mask_errors(runtime.host)
        behind = await asyncio.gather(*(lags(runtime.host.informers) for runtime in hosted))
        return families(
            [(one.measures(), lag) for one, lag in zip(hosted, behind, strict=True)],
            stalls=self.watchdog.stalls,
            connection=None if connection is None else connection.state(),
            shares=shares,
            cluster=cluster,
        )


@contextmanager
def serving(
    address: Address,
    vitals: Vitals,
    *,
    connection_s: float = CONNECTION_S,
    patience_s: float = PATIENCE_S,
) -> Iterator[Address]:
    """Serve the three endpoints of this event loop while the context lasts; yields the address."""
    server = HttpServer(
        address,
        _Answers(vitals, asyncio.get_running_loop()).answer,
        {"Cache-Control": "no-store"},
        connections_max=CONNECTIONS_MAX,
        connection_s=connection_s,
        patience_s=patience_s,
    )
    with server.serving():
        log.info("serving /livez, /readyz and /metrics", address=server.address)
        yield server.address


class _Answers:
    """What the threads answer: asked of the event loop, or known without it while it's blocked."""

    def __init__(self, vitals: Vitals, loop: asyncio.AbstractEventLoop) -> None:
        self._vitals = vitals
        self._loop = loop
        self._making = threading.Lock()
        self._begun = self._pause_until = 0.0  # of the newest pages of metrics
        self._pages: dict[str, tuple[bytes, str]] = {}  # by Accept header

    def answer(self, request: HttpRequest) -> None:
        url = urlsplit(request.path)
        if request.command not in {"GET", "HEAD"}:
            request.refuse_method("GET", "HEAD")
        elif url.path == "/metrics":
            request.send(HTTPStatus.OK, *self._metrics(request.headers.get("Accept", "")))
        elif url.path in {"/livez", "/readyz"}:
            verdict = self._vitals.live() if url.path == "/livez" else self._ready()
            status = HTTPStatus.OK if verdict.passed else HTTPStatus.SERVICE_UNAVAILABLE
            request.send(status, verdict.text(verbose="verbose" in url.query), TEXT)
        else:
            paths = "/livez, /readyz (both with ?verbose) and /metrics"
            request.send(HTTPStatus.NOT_FOUND, f"not found; this server has {paths}\n")

    def _ready(self) -> CheckVerdict:
        async def ready() -> CheckVerdict:
            return self._vitals.ready()

        if (verdict := self._of_loop(ready)) is not None:
            return verdict
        blocked = str(self._vitals.watchdog.stall or f"no answer in {ANSWER_S:g} s")
        return CheckVerdict("readyz", (Check("event-loop", blocked),))

    def _metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type, which depends on *accept*.

        One page is made at a time, with a pause after each, so that scrapes don't slow down syncs.
        A page shows the state after its request arrived; requests that wait share a page. While the
        loop is blocked, it has what any thread knows: the stalls.
        """
        arrived = time.monotonic()
        with self._making:
            if self._begun < arrived:
                time.sleep(max(0.0, self._pause_until - arrived))
                self._pages, self._begun = {}, time.monotonic()
                stalls = self._vitals.watchdog.stalls
                self._families = self._of_loop(self._vitals.metrics) or families(stalls=stalls)
            if accept not in self._pages:
                self._pages[accept] = exposition(self._families, accept)
            now = time.monotonic()
            self._pause_until = now + min(PAUSE_MAX_S, PAUSE_FACTOR * (now - self._begun))
            return self._pages[accept]

    def _of_loop(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        future = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and self._vitals.watchdog.stall is None:
            with suppress(TimeoutError):
                return future.result(LOOK_S)
        future.cancel()
        return None
