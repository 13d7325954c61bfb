"""An HTTP server on threads, for few requests: it answers while the event loop is blocked.

A connection serves one request, the number of connections is bounded, and each has a deadline.
"""

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from typing import Any, TypeVar

from natsctl.daemon.settings.settings import Address, reason_of
from natsctl.errors import UsageError
from natsctl.telemetry.logger import get_logger

T = TypeVar("T")

log = get_logger(__name__)

LOOK_S = 0.1  # the interval at which a late connection, a stall or a lost client is noticed
TEXT = "text/plain; charset=utf-8"
NONE: Mapping[str, str] = {}


class HttpServer(ThreadingHTTPServer):
    """Serves on a thread while the context lasts; `address` has the port in use.

    *answer* is called in a thread of the request. A connection ends after *connection_s* seconds at
    the latest, unless `HttpRequest.last` was called. If there are *connections_max*, a new one
    replaces the oldest of them, or is closed if none is older than *patience_s* seconds. Each
    answer has the *headers*.

    Raises `UsageError` if the process can't listen on the address.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: Address,
        answer: "Callable[[HttpRequest], None]",
        headers: Mapping[str, str],
        *,
        connections_max: int,
        connection_s: float,
        patience_s: float,
    ) -> None:
        self.answer = answer
        self.headers = headers
        self._limits = connections_max, connection_s, patience_s
        self.lock = threading.Lock()
        self.open: dict[Any, float] = {}  # the time of each connection, the oldest first
        try:
            self.address_family, bound = _bindable(address)
            super().__init__(bound, HttpRequest)
        except (OSError, UnicodeError) as error:
            reason = reason_of(error)
            message = f"cannot listen on {address}: {reason}; choose another address"
            raise UsageError(message) from error
        self.address = Address(address.host, self.server_address[1])

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self.serve_forever, args=(LOOK_S,), daemon=True)
        thread.name = "http"
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            self.server_close()
            self.cut(older_s=-inf)

    def server_bind(self) -> None:
        if self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # a connection of the process before may still wait for its last packets
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: Any, client_address: Any) -> None:
        connections_max, _, patience_s = self._limits
        if len(self.open) >= connections_max and not self.cut(older_s=patience_s, count=1):
            super().shutdown_request(request)
            return
        with self.lock:
            self.open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self.lock:
            self.open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.cut(older_s=self._limits[1])

    def cut(self, *, older_s: float, count: int | None = None) -> int:
        """End the connections that are older, the oldest *count* of them; returns how many."""
        now = time.monotonic()
        with self.lock:
            old = [request for request, begun in self.open.items() if now - begun >= older_s]
            for request in old[:count]:
                del self.open[request]
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # wakes its thread, which closes it
        return len(old[:count])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that disconnects or sends nonsense isn't the operator's task."""


class HttpRequest(BaseHTTPRequestHandler):
    """One request, which `HttpServer.answer` answers."""

    timeout = 30.0  # of a read or a write
    default_request_version = "HTTP/1.0"
    server: HttpServer

    def do_GET(self) -> None:
        try:
            self.server.answer(self)
        except OSError:
            raise
        except Exception:
            log.exception("cannot answer request", path=self.path.partition("?")[0])
            self.send(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error\n")

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET  # noqa: N815

    def version_string(self) -> str:
        return "natsctl"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def end_headers(self) -> None:
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        super().end_headers()

    def begin(self, status: int, content_type: str, headers: Mapping[str, str] = NONE) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": content_type, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def send(
        self,
        status: int,
        body: str | bytes,
        content_type: str = TEXT,
        headers: Mapping[str, str] = NONE,
    ) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.begin(status, content_type, {"Content-Length": str(len(content)), **headers})
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse_method(self, *allowed: str) -> None:
        status = HTTPStatus.METHOD_NOT_ALLOWED
        self.send(status, "method not allowed\n", headers={"Allow": ", ".join(allowed)})

    def last(self) -> None:
        with self.server.lock:
            if self.connection in self.server.open:
                self.server.open[self.connection] = inf

    def result(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
        future = asyncio.run_coroutine_threadsafe(work, loop)
        readable = select.poll()
        readable.register(self.connection, select.POLLIN)
        try:
            while not wait((future,), LOOK_S).done:
                if readable.poll(0) and not self.connection.recv(1, socket.MSG_PEEK):
                    break
            else:
                return future.result()
        except CancelledError:
            pass  # this process ends
        finally:
            future.cancel()
        raise ConnectionAbortedError


def _bindable(address: Address) -> tuple[socket.AddressFamily, Any]:
    if not address.host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return family, ("::" if both else "0.0.0.0", address.port)  # noqa: S104 - as asked for
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    found.sort(key=lambda place: place[0] != socket.AF_INET)
    return found[0][0], found[0][4]
