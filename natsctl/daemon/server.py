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

from natsctl.core.tasks import together
from natsctl.daemon.address import Address
from natsctl.daemon.vitals import Vitals
from natsctl.errors import UsageError
from natsctl.telemetry.health import Verdict

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 64  # at a time; further ones are closed at once
CONNECTION_S = 10.0
ANSWER_S = 5.0  # how long an answer may take
STOP_S = 1.0  # how long answers under way may take at the end
METHODS = ("GET", "HEAD")

# what clients send that makes no sense is no news of ours; it is answered with 400
_UNHEARD = logging.Logger("http", logging.CRITICAL + 1)  # noqa: LOG001 - nobody is to find it


@asynccontextmanager
async def serving(
    address: Address, vitals: Vitals, *, connection_s: float = CONNECTION_S
) -> AsyncIterator[Address]:
    """Answer for as long as the context lasts; gives the address with the port that was taken.

    A connection may stay for at least *connection_s*, and for at most twice as long. Raises
    `UsageError` where nobody can listen there.
    """
    server = web.Server(_Answers(vitals), access_log=None, logger=_UNHEARD, lingering_time=0)

    def accept() -> asyncio.BaseProtocol:
        return _Refusal() if len(server.connections) >= CONNECTIONS_MAX else server()

    listener = await _listening(address, accept)
    bound = Address(address.host, listener.sockets[0].getsockname()[1])
    log.info("answering /livez, /readyz and /metrics on %s", bound)
    try:
        async with together() as group:
            cutting = group.create_task(_cut_late(server, connection_s), name="HTTP deadlines")
            yield bound
            cutting.cancel()
    finally:
        listener.close()
        for connection in server.connections:
            connection.close()  # once it has its answer
        await server.shutdown(STOP_S)


class _Answers:
    """Which question each path is, and the answer."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        if request.method in METHODS:
            try:
                async with asyncio.timeout(ANSWER_S):
                    response = await self._answer(request)
            except Exception:  # whatever it is, who asks is told that there is no answer
                log.exception("no answer to %s", request.path)
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
                page, content_type = await self._vitals.metrics(request.headers.get("Accept", ""))
                return web.Response(body=page, headers={"Content-Type": content_type})
            case _:
                paths = "/livez, /readyz (both with ?verbose) and /metrics are here\n"
                return web.Response(status=HTTPStatus.NOT_FOUND, text=paths)


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
            if connection.transport is not None:
                connection.transport.abort()
        before = now
