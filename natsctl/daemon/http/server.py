"""Serves `/livez`, `/readyz` and `/metrics` from threads, so they answer while a handler blocks.

Probes and Prometheus send few, short requests. So a connection serves one request, the number of
connections is bounded, and every connection has a deadline.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import urlsplit

from natsctl.daemon.http.vitals import Check, CheckVerdict, Vitals
from natsctl.daemon.settings.address import Address, reason_of
from natsctl.errors import UsageError
from natsctl.telemetry.logger import get_logger
from natsctl.telemetry.metrics import exposition

T = TypeVar("T")

log = get_logger(__name__)

CONNECTIONS_MAX = 64
CONNECTION_S = 10.0  # the deadline of a connection
PATIENCE_S = 1.0  # a younger connection does not make room for another one
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

    Raises `UsageError` if the process cannot listen on the address.
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
    """What the threads answer: asked of the event loop, or known without it while it is blocked."""

    def __init__(self, vitals: Vitals, loop: asyncio.AbstractEventLoop) -> None:
        self._vitals = vitals
        self._loop = loop
        self._making = threading.Lock()
        self._begun = self._pause_until = 0.0  # of the newest pages of metrics
        self._pages: dict[str, tuple[bytes, str]] = {}  # by Accept header

    def verdict(self, endpoint: str) -> CheckVerdict:
        """Return the verdict behind `livez` or `readyz`."""
        if endpoint == "livez":
            return self._vitals.live()

        async def ready() -> CheckVerdict:
            return self._vitals.ready()

        return self._of_loop(ready) or CheckVerdict(endpoint, (self._blocked(),))

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type, which depends on *accept*.

        One page is made at a time, with a pause after each, so that scrapes do not slow down syncs.
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
        """Return what the event loop answers; None if it is blocked."""
        future = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and self._vitals.watchdog.stall is None:
            with suppress(TimeoutError):
                return future.result(LOOK_S)
        future.cancel()
        return None

    def _blocked(self) -> Check:
        stall = self._vitals.watchdog.stall
        return Check("event-loop", str(stall or f"no answer in {ANSWER_S:g} s"))


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
        """Say nothing: a client that disconnects or sends nonsense is not the operator's task."""


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
