"""Answering over HTTP how the process is: `/livez`, `/readyz` and `/metrics`.

For probes and for Prometheus, who come seldom and ask briefly: a connection is for one request,
there are a few at a time, and none is kept waiting.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

from aiohttp import web

from natsctl.core.task_group import together
from natsctl.daemon.http.scrapes import Scrapes
from natsctl.daemon.http.stand_in import http_stand_in
from natsctl.daemon.http.vitals import Verdict, Vitals
from natsctl.daemon.settings.address import Address
from natsctl.errors import UsageError
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

CONNECTIONS_MAX = 64  # at a time; further ones are closed at once
CONNECTION_S = 10.0
PATIENCE_S = 1.0  # with one that is in the way of another
ANSWER_S = 5.0  # how long an answer may take
STOP_S = 1.0  # how long answers under way may take at the end
METHODS = ("GET", "HEAD")

# what clients send that makes no sense is no news of ours; it is answered with 400
_UNHEARD = logging.Logger("http", logging.CRITICAL + 1)  # noqa: LOG001 - nobody is to find it


@asynccontextmanager
async def serving(
    address: Address,
    vitals: Vitals,
    *,
    connection_s: float = CONNECTION_S,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Address]:
    """Answer for as long as the context lasts; gives the address with the port that was taken.

    A connection may stay for at least *connection_s*, and for at most twice as long; where there
    are as many as there may be, the oldest makes room for a new one, once it has stayed for
    *patience_s*. So whoever is slow keeps nobody out. While the event loop is blocked, a thread of
    the watchdog answers. Raises `UsageError` if nobody can listen there.
    """
    async with together() as group:
        scrapes = Scrapes(vitals.metrics, group)
        answers = _Answers(vitals, scrapes)
        server = web.Server(answers, access_log=None, logger=_UNHEARD, lingering_time=0)
        listener = await _listening(address, _Door(server, patience_s))
        bound = Address(address.host, listener.sockets[0].getsockname()[1])
        log.info("serving /livez, /readyz and /metrics", address=bound)
        cutting = group.create_task(_cut_late(server, connection_s), name="HTTP deadlines")
        try:
            with vitals.watchdog.standing_in(http_stand_in(listener.sockets)):
                yield bound
        finally:
            cutting.cancel()
            listener.close()
            for connection in server.connections:
                connection.close()  # once it has its answer
            await server.shutdown(STOP_S)
            scrapes.close()


class _Answers:
    """Which question each path is, and the answer."""

    def __init__(self, vitals: Vitals, scrapes: Scrapes) -> None:
        self._vitals = vitals
        self._scrapes = scrapes

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        if request.method in METHODS:
            try:
                async with asyncio.timeout(ANSWER_S):
                    response = await self._answer(request)
            except Exception:  # whatever it is, who asks is told that there is no answer
                log.exception("cannot answer request", path=request.path)
                response = web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="no answer\n")
        else:
            response = web.Response(
                status=HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": ", ".join(METHODS)}
            )
        response.headers["Server"] = "natsctl"
        response.force_close()
        return response

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        match request.path:
            case "/livez":
                return _told(self._vitals.live(), request)
            case "/readyz":
                return _told(self._vitals.ready(), request)
            case "/metrics":
                page, content_type = await self._scrapes.page(request.headers.get("Accept", ""))
                return web.Response(body=page, headers={"Content-Type": content_type})
            case _:
                paths = "/livez, /readyz (both with ?verbose) and /metrics are here\n"
                return web.Response(status=HTTPStatus.NOT_FOUND, text=paths)


class _Door:
    """Lets in as many connections as there may be at a time."""

    def __init__(self, server: web.Server, patience_s: float) -> None:
        self._server = server
        self._patience_s = patience_s
        self._clock = asyncio.get_running_loop().time
        self._let_in: dict[asyncio.BaseProtocol, float] = {}  # since when, the oldest first

    def __call__(self) -> asyncio.BaseProtocol:
        there = set(self._server.connections)
        now = self._clock()
        self._let_in = {at: since for at, since in self._let_in.items() if at in there}
        if len(there) >= CONNECTIONS_MAX and not self._make_room(now):
            return _Refusal()
        connection = self._server()
        self._let_in[connection] = now
        return connection

    def _make_room(self, now: float) -> bool:
        """Cut the oldest off where it has had its time, and say whether it was."""
        oldest, since = next(iter(self._let_in.items()), (None, now))
        if oldest is None or now - since < self._patience_s:
            return False
        _abort(oldest)
        del self._let_in[oldest]
        return True


class _Refusal(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _told(verdict: Verdict, request: web.BaseRequest) -> web.Response:
    status = HTTPStatus.OK if verdict.passed else HTTPStatus.SERVICE_UNAVAILABLE
    text = verdict.text(verbose="verbose" in request.query)
    return web.Response(status=status, text=text, headers={"Cache-Control": "no-store"})


async def _listening(
    address: Address, accept: Callable[[], asyncio.BaseProtocol]
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(accept, address.host or None, address.port)
    except (OSError, UnicodeError) as error:
        reason = _reason(error)
        raise UsageError(f"cannot listen on {address}: {reason}; choose another address") from error


def _reason(error: OSError | UnicodeError) -> str:
    """Return what is the matter, without what asyncio and Python say around it."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    return getattr(error, "strerror", None) or str(error)


async def _cut_late(server: web.Server, connection_s: float) -> None:
    """Cut off whoever has had its connection for too long, however it is used."""
    before = set(server.connections)
    while True:
        await asyncio.sleep(connection_s)
        now = set(server.connections)
        for connection in before & now:
            _abort(connection)
        before = now


def _abort(connection: asyncio.BaseProtocol) -> None:
    transport = getattr(connection, "transport", None)
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()
