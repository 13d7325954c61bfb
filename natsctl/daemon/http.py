"""Serves `/livez`, `/readyz` and `/metrics` from threads, so they answer while a handler blocks.

Probes and Prometheus send few, short requests. So a connection serves one request, the number of
connections is bounded, and every connection has a deadline. `probe` is the client of
`natsctl health`: a few lines on a socket.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from natsctl.core.coordination.shares import Participation
from natsctl.core.hosted import Hosted
from natsctl.core.status import lags
from natsctl.daemon.metrics import Family, Scrape, exposition, families
from natsctl.daemon.operator import Runnable
from natsctl.daemon.settings.address import Address, reason_of
from natsctl.daemon.watchdog import Watchdog
from natsctl.errors import NoDaemonError, UsageError
from natsctl.jetstream.connection import Connection
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube

DEAD_S = 60.0  # a process whose event loop is blocked for longer isn't live


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
        return not any(check.failure for check in self.checks)

    def text(self, *, verbose: bool = False) -> str:
        """Return `ok`, or a line for each check if one fails, if there is a note or if *verbose*.

        The form is that of a kube-apiserver.
        """
        if self.passed and not verbose and not self.note:
            return "ok"
        end = f"{self.endpoint} check {'passed' if self.passed else 'failed'}\n"
        return "\n".join((*map(str, self.checks), *filter(None, (self.note,)), end))


class Vitals:
    """Reports for a process, also before it's connected and while it stops.

    `watchdog` watches the event loop of the process.
    """

    def __init__(self) -> None:
        self.watchdog = Watchdog()
        self._connection: Connection | None = None
        self._runtimes: Sequence[Runnable] = ()
        self._participations: Sequence[Participation] = ()
        self._cluster: Kube | None = None
        self._stopping = False

    def stop(self) -> None:
        """Report from now on that the process isn't ready, because it's stopping."""
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
            caches = runtime.measures().caches
            checks.append(Check(name, "" if caches else "the controller is opening its stores"))
            for cache in caches:
                unlisted = f"the first listing of {cache.kind} is not complete"
                failure = cache.failure or ("" if cache.synced else unlisted)
                checks.append(Check(f"cache/{runtime.name}/{cache.slot}", failure))
        if not self._runtimes:
            checks.append(Check("controllers", "no controller is running"))
        return CheckVerdict("readyz", tuple(checks))

    async def metrics(self) -> list[Family]:
        """Return all metrics.

        Waits at most a second for stores that don't report their newest revision.
        """
        runtimes, connection, cluster = self._runtimes, self._connection, self._cluster
        measured = {runtime.name: runtime for runtime in runtimes if isinstance(runtime, Hosted)}
        states = [participation.state() for participation in self._participations]
        hosts = [runtime.host for runtime in measured.values()]
        behind = await asyncio.gather(*(lags(host.informers) for host in hosts))
        scrape = Scrape(
            measures=[runtime.measures() for runtime in measured.values()],
            lags=dict(zip(measured, behind, strict=True)),
            connection=None if connection is None else connection.state(),
            elections=[state for state in states if state.count == 1],
            shards=[state for state in states if state.count > 1],
            requests={} if cluster is None else cluster.requests(),
            times={} if cluster is None else cluster.times(),
            stalls=self.watchdog.stalls,
            version=version("natsctl"),
        )
        return families(scrape)

    def metrics_without_loop(self) -> list[Family]:
        """Return what any thread knows: the stalls. What isn't known is left out."""
        return families(Scrape(stalls=self.watchdog.stalls, version=version("natsctl")))


T = TypeVar("T")

log = get_logger(__name__)

CONNECTIONS_MAX = 64
CONNECTION_S = 10.0  # the deadline of a connection
PATIENCE_S = 1.0  # a younger connection doesn't make room for another one
ANSWER_S = 5.0  # how long the event loop may take for an answer
LOOK_S = 0.1  # the interval at which a stall or a late connection is noticed
PAUSE_FACTOR = 9.0  # the pause after a page of metrics, relative to the time it took
PAUSE_MAX_S = 0.25
TEXT = "text/plain; charset=utf-8"
PATHS = "/livez, /readyz (both with ?verbose) and /metrics"


@contextmanager
def serving(
    address: Address,
    vitals: Vitals,
    *,
    connection_s: float = CONNECTION_S,
    patience_s: float = PATIENCE_S,
) -> Iterator[Address]:
    """Serve the three endpoints while the context lasts; yields the address with the port in use.

    Call it in the event loop that the answers are about. A connection ends after *connection_s*
    seconds at the latest. If there are `CONNECTIONS_MAX` connections, a new one replaces the oldest
    one, or is closed if none is older than *patience_s* seconds.

    Raises `UsageError` if the process can't listen on the address.
    """
    loop = asyncio.get_running_loop()
    try:
        server = _Server(address, _Answers(vitals, loop), connection_s, patience_s)
    except (OSError, UnicodeError) as error:
        reason = reason_of(error)
        raise UsageError(f"cannot listen on {address}: {reason}; choose another address") from error
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_S,), daemon=True)
    thread.name = "probes"
    thread.start()
    bound = Address(address.host, server.server_address[1])
    log.info("serving /livez, /readyz and /metrics", address=bound)
    try:
        yield bound
    finally:
        server.shutdown()
        server.server_close()
        server.cut(older_s=0.0)


class _Answers:
    """What the threads answer: asked of the event loop, or known without it while it's blocked."""

    def __init__(self, vitals: Vitals, loop: asyncio.AbstractEventLoop) -> None:
        self._vitals = vitals
        self._loop = loop
        self._making = threading.Lock()
        self._begun = self._pause_until = 0.0  # of the newest pages of metrics
        self._pages: dict[str, tuple[bytes, str]] = {}  # by Accept header

    def verdict(self, endpoint: str) -> CheckVerdict:
        if endpoint == "livez":
            return self._vitals.live()

        async def ready() -> CheckVerdict:
            return self._vitals.ready()

        answer = self._of_loop(ready)
        if answer is not None:
            return answer
        blocked = str(self._vitals.watchdog.stall or f"no answer in {ANSWER_S:g} s")
        return CheckVerdict(endpoint, (Check("event-loop", blocked),))

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type, which depends on *accept*.

        One page is made at a time, with a pause after each, so that scrapes don't slow down syncs.
        A page shows the state after its request arrived; requests that wait share a page.
        """
        arrived = time.monotonic()
        with self._making:
            if self._begun < arrived:
                time.sleep(max(0.0, self._pause_until - arrived))
                self._pages, self._begun = {}, time.monotonic()
                self._families = (
                    self._of_loop(self._vitals.metrics) or self._vitals.metrics_without_loop()
                )
            if accept not in self._pages:
                self._pages[accept] = exposition(self._families, accept)
            now = time.monotonic()
            self._pause_until = now + min(PAUSE_MAX_S, PAUSE_FACTOR * (now - self._begun))
            return self._pages[accept]

    def _of_loop(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Return what the event loop answers; None if it's blocked."""
        future = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and self._vitals.watchdog.stall is None:
            with suppress(TimeoutError):
                return future.result(LOOK_S)
        future.cancel()
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: Address, answers: _Answers, connection_s: float, patience_s: float
    ) -> None:
        self.answers = answers
        self._connection_s = connection_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._open: dict[Any, float] = {}  # the time of each connection, the oldest first
        self.address_family, bound = _bindable(address)
        super().__init__(bound, _Request)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # a connection of the process before may still wait for its last packets
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._open) >= CONNECTIONS_MAX and not self.cut(older_s=self._patience_s, count=1):
            super().shutdown_request(request)
            return
        with self._lock:
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.cut(older_s=self._connection_s)

    def cut(self, *, older_s: float, count: int | None = None) -> int:
        """End the connections that are older, the oldest *count* of them; returns how many."""
        now = time.monotonic()
        with self._lock:
            old = [request for request, begun in self._open.items() if now - begun >= older_s]
            for request in old[:count]:
                del self._open[request]
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
        return len(old[:count])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that disconnects or sends nonsense isn't the operator's task."""


class _Request(BaseHTTPRequestHandler):
    timeout = CONNECTION_S
    default_request_version = "HTTP/1.0"
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        try:
            match url.path:
                case "/livez" | "/readyz":
                    verdict = self.server.answers.verdict(url.path[1:])
                    status = HTTPStatus.OK if verdict.passed else HTTPStatus.SERVICE_UNAVAILABLE
                    self._send(status, verdict.text(verbose="verbose" in url.query))
                case "/metrics":
                    accept = self.headers.get("Accept", "")
                    page, content_type = self.server.answers.metrics(accept)
                    self._send(HTTPStatus.OK, page, content_type)
                case _:
                    self._send(HTTPStatus.NOT_FOUND, f"not found; this server has {PATHS}\n")
        except OSError:
            raise
        except Exception:
            log.exception("cannot answer request", path=url.path)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error\n")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed\n")

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

    def version_string(self) -> str:
        return "natsctl"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def _send(self, status: HTTPStatus, body: str | bytes, content_type: str = TEXT) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _bindable(address: Address) -> tuple[socket.AddressFamily, Any]:
    """Return the family and the place of an address; IPv4 if a name has several."""
    if not address.host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return family, ("::" if both else "0.0.0.0", address.port)  # noqa: S104 - as asked for
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    found.sort(key=lambda place: place[0] != socket.AF_INET)
    return found[0][0], found[0][4]


PROBE_S = 5.0  # the deadline of a probe
ANSWER_MAX = 1_048_576  # bytes of a response that are read


class ProbeResponse(msgspec.Struct, frozen=True):
    """The response to a probe: whether all checks passed, and a text that explains it."""

    passed: bool
    text: str


async def probe(address: Address, path: str, *, answer_s: float = PROBE_S) -> ProbeResponse:
    """Return the response of the process that listens at *address* on this machine.

    Raises `NoDaemonError` if no process responds within *answer_s* seconds, or if the response is
    not HTTP.
    """
    response = bytearray()
    try:
        async with asyncio.timeout(answer_s):
            reader, writer = await asyncio.open_connection(*msgspec.structs.astuple(address.nearby))
            try:
                writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                while len(response) < ANSWER_MAX and (chunk := await reader.read(ANSWER_MAX)):
                    response += chunk
            finally:
                writer.transport.abort()
    except TimeoutError:
        raise NoDaemonError(f"{address} does not respond within {answer_s:g} s") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise NoDaemonError(
            f"cannot connect to {address}: {reason}; start the daemon with --listen {address}"
        ) from error
    head, _, text = response.decode("utf-8", "replace").partition("\r\n\r\n")
    match head.split(maxsplit=2):
        case [protocol, status, *_] if protocol.startswith("HTTP/") and status.isdigit():
            return ProbeResponse(int(status) == HTTPStatus.OK, text)
        case _:
            raise NoDaemonError(f"the process at {address} is not natsctl: it does not speak HTTP")
