"""Sends single HTTP requests over the connections of aiohttp's pool.

aiohttp opens, secures, pools and closes the connections and parses the responses. Its sessions are
not used: they build an object with a dozen features for each request, such as cookies, redirects
and form data, which takes more time than everything else that a client does for an apply.
"""

import asyncio
import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from natsctl.kubernetes.access.login import Access
from natsctl.kubernetes.http.response import HttpResponse

PIECE_BYTES = 256 * 1024  # of a body, which are encrypted before other tasks run
BUFFER_BYTES = 256 * 1024  # read ahead from each response

Headers = tuple[tuple[str, str], ...]

_INTERIM = range(100, 200)  # the statuses that another response follows
_LINE = re.compile(r"[^\x00-\x1f\x7f]*")
_TARGET = re.compile(r"[!-~]+")


class _Destination(msgspec.Struct, frozen=True, eq=False):
    """A server as one user: `route` selects connections, `root` starts each request's target."""

    access: Access
    route: aiohttp.ClientRequest
    root: str


class HttpPool:
    """Sends requests over the connections of *connector*.

    A new connection must be established within *connect_timeout_s*.
    """

    def __init__(self, connector: aiohttp.BaseConnector, connect_timeout_s: float) -> None:
        self._connector = connector
        self._timeout = aiohttp.ClientTimeout(connect=connect_timeout_s)
        self._destination: _Destination | None = None
        self._same: tuple[_Destination, bytes] | None = None  # the headers of every request

    async def send(
        self, access: Access, method: str, target: str, headers: Headers, body: bytes | None
    ) -> HttpResponse:
        """Send a request and return the response before its body arrives. Nothing is repeated.

        *target* is the percent-encoded path and query. Raises `ClientError` or `OSError` if there
        is no response.
        """
        destination = self._to(access)
        connection = await self._connect(destination.route)
        try:
            same = self._same_headers(destination)
            start = _start(method, destination.root + target)
            length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
            head = b"%s%s%s%s\r\n" % (start, same, _encoded(headers), length)
            return await _exchange(connection, head, body or b"")
        except BaseException:
            connection.close()
            raise

    def _to(self, access: Access) -> _Destination:
        destination = self._destination
        if destination is None or destination.access is not access:
            destination = self._destination = _destination(access)
        return destination

    async def _connect(self, route: aiohttp.ClientRequest) -> aiohttp.connector.Connection:
        try:
            return await self._connector.connect(route, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {route.url.host}") from error

    def _same_headers(self, destination: _Destination) -> bytes:
        """Return the headers of every request; a connection adds those for a proxy."""
        same = self._same
        if same is None or same[0] is not destination:
            lines = _lines(destination.route.headers.items())
            same = self._same = destination, lines
        return same[1]


def _destination(access: Access) -> _Destination:
    agent = ("User-Agent", f"natsctl/{version('natsctl')}")
    url, parts = URL(access.server, encoded=True), urlsplit(access.server)
    route = aiohttp.ClientRequest(
        "GET",
        url,
        headers=(*access.headers, agent),
        skip_auto_headers=("Accept",),
        loop=asyncio.get_running_loop(),
        ssl=access.tls,
        server_hostname=access.server_name,
        proxy=None if access.proxy is None else URL(access.proxy),
    )
    # a proxy that does not forward a TLS connection needs the server's address in each request
    absolute = access.proxy is not None and not route.is_ssl()
    root = f"{parts.scheme}://{parts.netloc}{parts.path}" if absolute else parts.path
    return _Destination(access, route, root.rstrip("/"))


async def _exchange(
    connection: aiohttp.connector.Connection, head: bytes, body: bytes
) -> HttpResponse:
    protocol, transport = connection.protocol, connection.transport
    if protocol is None or transport is None:
        raise aiohttp.ServerDisconnectedError
    protocol.set_response_params(read_until_eof=True, read_bufsize=BUFFER_BYTES)
    transport.write(head + body[:PIECE_BYTES])
    for start in range(PIECE_BYTES, len(body), PIECE_BYTES):
        await asyncio.sleep(0)
        if not transport.is_closing():  # a server may answer before the end of the request
            transport.write(body[start : start + PIECE_BYTES])
    try:
        message, content = await protocol.read()
        while message.code in _INTERIM:
            message, content = await protocol.read()
    except HttpProcessingError as error:
        raise aiohttp.ClientError(error.message) from error
    return HttpResponse(message.code, message.headers, content, connection)


def _start(method: str, target: str) -> bytes:
    """Return the first line of a request; raises `ValueError` if *target* would end it."""
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is not a percent-encoded path")
    return b"%s %s HTTP/1.1\r\n" % (method.encode(), target.encode())


@lru_cache(maxsize=64)
def _encoded(headers: Headers) -> bytes:
    """Return the lines of headers that hold no secrets; most requests have the same ones."""
    return _lines(headers)


def _lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the lines of headers; raises `ValueError` if a header would end its line."""
    lines = [f"{name}: {value}" for name, value in headers]
    if not all(map(_LINE.fullmatch, lines)):
        raise ValueError("a header contains a control character")
    return "".join(f"{line}\r\n" for line in lines).encode()
