"""Serves `/livez`, `/readyz` and `/metrics` over HTTP, also while the event loop is blocked.

Probes and Prometheus send few, short requests. So a connection serves one request, the number of
connections is bounded, and every connection has a deadline.

aiohttp reads requests and writes responses. Its sites have no such bounds and do not give access to
their sockets, which the stand-in needs, so this module opens the sockets.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from logging import CRITICAL, Logger
from typing import Any, Protocol

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from natsctl.core.task_group import together
from natsctl.daemon.http.checks import Check, CheckVerdict, Endpoint
from natsctl.daemon.http.scrapes import Scrapes
from natsctl.daemon.observe.watchdog import Stall, StandIn, Watchdog
from natsctl.daemon.settings.address import Address
from natsctl.errors import UsageError
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

CONNECTIONS_MAX = 64
CONNECTION_S = 10.0  # the deadline of a connection
PATIENCE_S = 1.0  # a younger connection does not make room for another one
ANSWER_S = 5.0  # the deadline of a response
STOP_S = 1.0  # the time for responses under way when the server stops
DEAD_S = 60.0  # a process whose event loop is blocked for longer is not live
METHODS = ("GET", "HEAD")

# aiohttp logs an error for each invalid request; an operator cannot do anything about those
_SILENT = Logger("http", CRITICAL + 1)  # noqa: LOG001 - no logging configuration applies to it

Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]
Listen = Callable[[web.Server], Awaitable[asyncio.Server]]


class Pages(Protocol):
    """The content of the three endpoints."""

    @property
    def watchdog(self) -> Watchdog | None:
        """Watches the event loop of the process, if handlers run in it."""
        ...

    async def check(self, endpoint: Endpoint) -> CheckVerdict:
        """Return the verdict behind an endpoint."""
        ...

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type, which depends on *accept*."""
        ...


@asynccontextmanager
async def serving(
    address: Address,
    pages: Pages,
    *,
    connection_s: float = CONNECTION_S,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Address]:
    """Serve the three endpoints while the context lasts; yields the address with the port in use.

    A connection ends after *connection_s* seconds at the latest. If there are `CONNECTIONS_MAX`
    connections, a new one replaces the oldest one, or is closed if none is older than *patience_s*
    seconds. While the event loop is blocked, a thread of the watchdog responds.

    Raises `UsageError` if the process cannot listen on the address.
    """
    listen = partial(_listen, address)
    async with _serving(listen, pages, connection_s=connection_s, patience_s=patience_s) as sockets:
        bound = Address(address.host, sockets[0].getsockname()[1])
        log.info("serving /livez, /readyz and /metrics", address=bound)
        yield bound


@asynccontextmanager
async def _serving(
    listen: Listen, pages: Pages, *, connection_s: float, patience_s: float
) -> AsyncIterator[Sequence[socket.socket]]:
    async with together() as group:
        scrapes = Scrapes(pages.metrics, group)
        server = _probe_server(_endpoints(pages, scrapes), connection_s, patience_s)
        try:
            async with _listening(server, listen) as sockets:
                with ExitStack() as stack:
                    if pages.watchdog is not None:
                        stack.enter_context(pages.watchdog.standing_in(http_stand_in(sockets)))
                    yield sockets
        finally:
            scrapes.close()


def http_stand_in(sockets: Sequence[socket.socket]) -> StandIn:
    """Return a stand-in that responds on these listening sockets while the event loop is blocked.

    `/livez` passes for `DEAD_S`, because a restart would not help yet. Everything else fails. Each
    response names the key that blocks the loop.
    """

    async def respond(request: web.BaseRequest, stall: Stall) -> web.Response:
        endpoint = request.path.strip("/")
        if endpoint == "livez" and stall.duration_s < DEAD_S:
            return _response(HTTPStatus.OK, f"[+]event-loop ok: {stall}\nlivez check passed\n")
        verdict = CheckVerdict(endpoint, (Check("event-loop", str(stall)),))
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, verdict.text())

    async def serve(stall: Stall) -> None:
        server = _probe_server(partial(respond, stall=stall), CONNECTION_S, PATIENCE_S)
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            for original in sockets:
                listen = partial(
                    loop.create_server, sock=socket.socket(fileno=os.dup(original.fileno()))
                )
                await stack.enter_async_context(_listening(server, listen))
            await asyncio.to_thread(stall.over.wait)

    return lambda stall: asyncio.run(serve(stall))


def _endpoints(pages: Pages, scrapes: Scrapes) -> Handler:
    async def respond(request: web.BaseRequest) -> web.Response:
        match request.path:
            case "/livez":
                return _verdict_response(await pages.check("livez"), request)
            case "/readyz":
                return _verdict_response(await pages.check("readyz"), request)
            case "/metrics":
                page, content_type = await scrapes.page(request.headers.get("Accept", ""))
                return web.Response(body=page, headers={"Content-Type": content_type})
            case _:
                paths = "/livez, /readyz (both with ?verbose) and /metrics"
                return _response(HTTPStatus.NOT_FOUND, f"not found; this server has {paths}\n")

    return respond


def _verdict_response(verdict: CheckVerdict, request: web.BaseRequest) -> web.Response:
    status = HTTPStatus.OK if verdict.passed else HTTPStatus.SERVICE_UNAVAILABLE
    return _response(status, verdict.text(verbose="verbose" in request.query))


def _response(status: HTTPStatus, text: str) -> web.Response:
    return web.Response(status=status, text=text, headers={"Cache-Control": "no-store"})


class BoundedServer(web.Server):
    """Bounds the number of connections, and the time of each that waits for a request.

    A connection ends after *connection_s* seconds. If there are *connections_max* connections, a
    new one replaces the oldest one, or is closed if none is older than *patience_s* seconds. A
    connection is exempt while it is `busy`.
    """

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        connections_max: int,
        connection_s: float,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> None:
        super().__init__(handler, handler_cancellation=True, access_log=None, **options)
        self._connections_max = connections_max
        self._connection_s = connection_s
        self._patience_s = patience_s
        self._deadlines: dict[RequestHandler, asyncio.TimerHandle] = {}  # the oldest first

    @contextmanager
    def busy(self, request: web.BaseRequest) -> Iterator[None]:
        """Let the connection of a request last during the context; it has a new deadline then."""
        handler = request.protocol
        self._forget(handler)
        try:
            yield
        finally:
            if isinstance(handler.transport, asyncio.Transport):
                self._limit(handler, handler.transport)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Set the deadline of the connection; close it if there are too many."""
        super().connection_made(handler, transport)
        if len(self.connections) > self._connections_max and not self._make_room():
            transport.abort()
        else:
            self._limit(handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forget the deadline of the connection."""
        super().connection_lost(handler, exc)
        self._forget(handler)

    def _limit(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[handler] = loop.call_later(self._connection_s, transport.abort)

    def _forget(self, handler: RequestHandler) -> None:
        if handler in self._deadlines:
            self._deadlines.pop(handler).cancel()

    def _make_room(self) -> bool:
        """Close the oldest connection; returns False if it is too young."""
        oldest, deadline = next(iter(self._deadlines.items()), (None, None))
        if oldest is None or deadline is None:
            return False
        left_s = deadline.when() - asyncio.get_running_loop().time()
        if self._connection_s - left_s < self._patience_s:
            return False
        self._deadlines.pop(oldest).cancel()
        if isinstance(oldest.transport, asyncio.WriteTransport):
            oldest.transport.abort()
        return True


def _probe_server(handler: Handler, connection_s: float, patience_s: float) -> BoundedServer:
    """Return a server with a request per connection, and with a deadline of each response."""

    async def respond(request: web.BaseRequest) -> web.Response:
        if request.method not in METHODS:
            response = _response(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed\n")
            response.headers["Allow"] = ", ".join(METHODS)
        else:
            try:
                async with asyncio.timeout(ANSWER_S):
                    response = await handler(request)
            except Exception:
                log.exception("cannot answer request", path=request.path)
                response = _response(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error\n")
        response.headers["Server"] = "natsctl"
        response.force_close()
        return response

    return BoundedServer(
        respond,
        connections_max=CONNECTIONS_MAX,
        connection_s=connection_s,
        patience_s=patience_s,
        logger=_SILENT,
        lingering_time=0,
    )


@asynccontextmanager
async def _listening(server: web.Server, listen: Listen) -> AsyncIterator[Sequence[socket.socket]]:
    """Accept connections while the context lasts, and end those under way within `STOP_S`."""
    listener = await listen(server)
    try:
        yield listener.sockets
    finally:
        listener.close()
        server.pre_shutdown()
        await server.shutdown(STOP_S)


async def _listen(address: Address, server: web.Server) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(server, address.host or None, address.port)
    except (OSError, UnicodeError) as error:
        reason = reason_of(error)
        raise UsageError(f"cannot listen on {address}: {reason}; choose another address") from error


def reason_of(error: OSError | UnicodeError) -> str:
    """Return the reason without the words that asyncio and Python put around it."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    return getattr(error, "strerror", None) or str(error)
