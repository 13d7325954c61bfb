"""Sends single HTTP requests over a pool of connections.

aiohttp opens and secures the connections, also through proxies. Its sessions and its parser are not
used: they build objects with a dozen features for each request, such as cookies, redirects and form
data, which takes more time than everything else that a client does for an apply.
"""

import asyncio
import re
from collections import deque
from collections.abc import Iterable
from functools import lru_cache, partial
from importlib.metadata import version
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from natsctl.kubernetes.access.login import Access
from natsctl.kubernetes.http.connection import HttpConnection, HttpResponse

IDLE_S = 60.0  # pools use it as `idle_s`

Headers = tuple[tuple[str, str], ...]

_LINE = re.compile(r"[^\x00-\x1f\x7f]*")
_TARGET = re.compile(r"[!-~]+")


class _Destination(msgspec.Struct, frozen=True, eq=False):
    """A server as one user: `route` opens connections, `root` starts each request's target.

    Requests to a destination with the same `key` object may use the same connections.
    """

    access: Access
    route: aiohttp.ClientRequest
    root: str
    key: ConnectionKey


class HttpPool:
    """Sends requests over connections that *connector* opens, and uses each one repeatedly.

    A new connection must be established within *connect_timeout_s*, and is closed if no request
    uses it for *idle_s*. Closing the connector closes all connections.
    """

    def __init__(
        self,
        connector: aiohttp.BaseConnector,
        connect_timeout_s: float,
        *,
        idle_s: float = IDLE_S,
    ) -> None:
        self._connector = connector
        self._idle_s = idle_s
        self._timeout = aiohttp.ClientTimeout(connect=connect_timeout_s)
        self._loop = asyncio.get_running_loop()
        self._destination: _Destination | None = None
        self._same = b""  # the headers of every request to that destination
        self._idle = deque[HttpConnection]()  # the longest unused first
        self._idle_timer: asyncio.TimerHandle | None = None

    async def send(
        self, access: Access, method: str, target: str, headers: Headers, body: bytes | None
    ) -> HttpResponse:
        """Send a request and return the response before its body arrives. Nothing is repeated.

        *target* is the percent-encoded path and query. Raises `ClientError` or `OSError` if there
        is no response.
        """
        destination = self._destination
        if destination is None or destination.access is not access:
            destination = self._change_destination(access)
        start = _start(method, destination.root + target)
        length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
        own_headers = _encoded(headers)
        connection = self._unused() or await self._connect(destination)
        head = b"%s%s%s%s\r\n" % (start, self._same_headers(destination), own_headers, length)
        return await connection.send(head, body or b"")

    def _change_destination(self, access: Access) -> _Destination:
        before, destination = self._destination, _destination(access, self._destination)
        self._same = _lines(destination.route.headers.items())
        self._destination = destination
        if before is not None and before.key is not destination.key:
            while self._idle:
                self._idle.pop().close()
        return destination

    async def _connect(self, destination: _Destination) -> HttpConnection:
        route = destination.route
        try:
            link = await self._connector.connect(route, [], self._timeout)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {route.url.host}") from error
        if destination is self._destination:
            self._same = _lines(route.headers.items())  # connecting adds those for a proxy
        return HttpConnection(link, partial(self._keep_connection, destination.key))

    def _same_headers(self, destination: _Destination) -> bytes:
        """Return the headers of every request to a destination, also to one before a change."""
        if destination is self._destination:
            return self._same
        return _lines(destination.route.headers.items())

    def _unused(self) -> HttpConnection | None:
        """Return the connection that was used last, if one is open."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _keep_connection(self, key: ConnectionKey, connection: HttpConnection) -> None:
        """Keep a connection for the next request to the destination."""
        if self._destination is None or key is not self._destination.key:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._idle_s, self._close_unused)

    def _close_unused(self) -> None:
        """Close the connections that were not used for so long."""
        self._idle_timer, now = None, self._loop.time()
        while self._idle and self._idle[0].idle_since + self._idle_s <= now:
            self._idle.popleft().close()
        if self._idle:
            due = self._idle[0].idle_since + self._idle_s
            self._idle_timer = self._loop.call_at(due, self._close_unused)


def _destination(access: Access, before: _Destination | None) -> _Destination:
    agent = ("User-Agent", f"natsctl/{version('natsctl')}")
    url, parts = URL(access.server, encoded=True), urlsplit(access.server)
    route = aiohttp.ClientRequest(
        "GET",
        url,
        headers=(*access.headers, agent, ("Accept-Encoding", "gzip")),
        skip_auto_headers=("Accept",),
        loop=asyncio.get_running_loop(),
        ssl=access.tls,
        server_hostname=access.server_name,
        proxy=None if access.proxy is None else URL(access.proxy),
    )
    # a proxy that does not forward a TLS connection needs the server's address in each request
    absolute = access.proxy is not None and not route.is_ssl()
    root = f"{parts.scheme}://{parts.netloc}{parts.path}" if absolute else parts.path
    key = route.connection_key
    if before is not None and before.key == key and not absolute:
        key = before.key
    return _Destination(access, route, root.rstrip("/"), key)


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
