"""Sends single HTTP requests over a pool of connections, and returns each response as it arrives.

aiohttp opens and secures the connections, also through proxies. Its sessions and its parser aren't
used: they build objects with a dozen features for each request, such as cookies, redirects and form
data, which takes more time than everything else that a client does for an apply. httptools parses
the responses. It's the parser of Node.js, and it follows the standard strictly.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from importlib.metadata import version
from urllib.parse import urlsplit

import aiohttp
import httptools
import msgspec
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from yarl import URL

from natsctl.kubernetes.credentials import Access


class ConnectionFailure(msgspec.Struct, frozen=True):
    """The reason why a request has no response.

    `sent` is False if the server can't have received the request. `certificate` is True if the
    server's certificate was rejected.
    """

    reason: str
    sent: bool
    certificate: bool = False


def explain_failure(error: Exception) -> ConnectionFailure:
    """Return the meaning of an aiohttp or OS error; its text has no address and no secret."""
    sent = False
    match error:
        case aiohttp.ClientConnectorCertificateError():
            found = getattr(error.certificate_error, "verify_message", "") or "it is not trusted"
            advice = "set tls_ca to the CA that signed it, or set the CA in the kubeconfig"
            reason = f"its certificate is not accepted ({found}); {advice}"
            return ConnectionFailure(reason, sent=False, certificate=True)
        case aiohttp.ClientConnectorDNSError():
            reason = "the host name is unknown"
        case aiohttp.ConnectionTimeoutError():
            reason = "the connection timed out"
        case aiohttp.ClientHttpProxyError():
            reason = f"the proxy rejects the connection with status {error.status}"
        case aiohttp.ClientProxyConnectionError():
            reason = f"the proxy: {_os_reason(error.os_error)}"
        case aiohttp.ClientConnectorError():
            reason = _os_reason(error.os_error)
        case aiohttp.ServerDisconnectedError():
            sent, reason = True, "the server closed the connection"
        case aiohttp.ClientPayloadError():
            sent, reason = True, "the connection ended within the response"
        case OSError():
            sent, reason = True, _os_reason(error)
        case _:
            sent, reason = True, f"the response is not HTTP ({type(error).__name__})"
    return ConnectionFailure(reason, sent=sent)


def _os_reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return (error.strerror or type(error).__name__).strip()


PIECE_BYTES = 256 * 1024  # of a request's body, which are encrypted before other tasks run
BUFFER_BYTES = 256 * 1024  # of a response, which are kept until somebody reads them
HEAD_MAX_BYTES = 64 * 1024  # of the status and the headers of a response

_INTERIM = range(100, 200)  # the statuses that another response follows


class HttpConnection(asyncio.Protocol):
    """A connection that *link* has opened, with one request at a time and its response.

    After `send` returns, close the connection, or read its body to the end: then *keep* takes the
    connection back if it can send another request. Waiting raises `ClientError` or `OSError` if
    the connection breaks. The parser calls the methods whose names begin with `on_`.

    Attributes:
        status: the HTTP status of the response.
        idle_since: when the last response ended, by the event loop's clock.
    """

    def __init__(self, link: Connection, keep: Callable[["HttpConnection"], None]) -> None:
        opener, transport = link.protocol, link.transport
        if opener is None or transport is None:
            link.close()
            raise aiohttp.ServerDisconnectedError
        self.idle_since = 0.0
        self._link = link
        self._keep = keep
        self._opener: asyncio.BaseProtocol = opener
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._asked = False
        self._paused = False
        self._begin()
        transport.set_protocol(self)

    def _begin(self) -> None:
        self.status = 0
        self._head_bytes = 0
        self._lines: list[tuple[bytes, bytes]] = []
        self._headers: dict[bytes, bytes] = {}
        self._received: list[bytes] = []
        self._received_bytes = 0
        self._error: Exception | None = None
        self._ended = False
        self._keeps_alive = False

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    async def send(self, head: bytes, body: bytes) -> None:
        """Send a request, and return before the body of its response arrives.

        A call that doesn't return closes the connection.
        """
        self._begin()
        self._asked = True
        try:
            transport = self._transport
            transport.write(head + body[:PIECE_BYTES])
            for start in range(PIECE_BYTES, len(body), PIECE_BYTES):
                await asyncio.sleep(0)
                if not transport.is_closing():  # a server may answer before the request ends
                    transport.write(body[start : start + PIECE_BYTES])
            while not self.status:
                await self._change()
        except BaseException:
            self.close()
            raise

    def header(self, name: bytes) -> str:
        """Return a header by its name in small letters; repeated ones are joined by commas."""
        value = self._headers.get(name)
        return value.decode("utf-8", "surrogateescape") if value else ""

    async def read(self, limit: int) -> bytes:
        """Return the body, and end the response.

        Of a body larger than *limit* bytes, it's the first part that exceeds them.
        """
        try:
            body = await self.chunk()
            if self._ended:
                return body  # a small body arrives with the headers
            chunks, size = [body], len(body)
            while size <= limit and (chunk := await self.chunk()):
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks)
        finally:
            self._asked = False
            if self._keeps_alive and self.usable and not self._paused:
                self._keep(self)
            else:
                self.close()

    async def chunk(self) -> bytes:
        """Return the next bytes of the body, or no bytes at its end."""
        while not (self._received or self._ended):
            await self._change()
        received, self._received = self._received, []
        if self._received_bytes >= BUFFER_BYTES:
            self._paused = False
            if self.usable:
                self._transport.resume_reading()
        self._received_bytes = 0
        return received[0] if len(received) == 1 else b"".join(received)

    def close(self) -> None:
        """Close the connection at once, without the handshake that ends TLS.

        A server that doesn't answer would keep the socket open beyond the end of the event loop.
        """
        self._transport.abort()
        self._link.close()

    async def _change(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _notify(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Parse what the server sends; close the connection if nothing was asked or it is wrong."""
        if not self._asked or self._ended:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(error)
            return
        if not self.status:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES:
                self._refuse(httptools.HttpParserError(f"headers above {HEAD_MAX_BYTES} bytes"))

    def _refuse(self, reason: Exception) -> None:
        error = aiohttp.ClientError(str(reason))
        error.__cause__ = reason
        self._lose(error)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._opener.connection_lost(exc)
        error: Exception = aiohttp.ServerDisconnectedError()
        if isinstance(exc, OSError):
            error = aiohttp.ClientOSError(*exc.args)
        error.__cause__ = exc
        self._lose(error)
        self.close()

    def _lose(self, error: Exception) -> None:
        """End a response whose connection was lost; *error* if nothing of it has arrived."""
        framed = self.header(b"content-length") or self.header(b"transfer-encoding")
        if self.status and not framed and isinstance(error, aiohttp.ServerDisconnectedError):
            self._ended = True  # the body of such a response ends with its connection
        elif self.status and not isinstance(error, OSError):
            error = aiohttp.ClientPayloadError("the connection ended within the response")
        if not self._ended:
            self._error = error
        self._notify()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if not self._asked or self._ended:
            raise httptools.HttpParserError("a response to no request")
        status, lines = self._parser.get_status_code(), self._lines
        self._lines = []
        if status not in _INTERIM:
            self.status, self._headers = status, dict(lines)
            if len(self._headers) < len(lines):
                for name in self._headers:
                    values = (value for header, value in lines if header == name)
                    self._headers[name] = b", ".join(values)
            self._notify()

    def on_body(self, body: bytes) -> None:
        self._received.append(body)
        self._received_bytes += len(body)
        if self._received_bytes >= BUFFER_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._notify()

    def on_message_complete(self) -> None:
        if self.status:
            self._ended = True
            self._keeps_alive = self._parser.should_keep_alive()
            self._notify()


IDLE_S = 60.0  # pools use it as `idle_s`

Headers = tuple[tuple[str, str], ...]

_LINE = re.compile(r"[^\x00-\x1f\x7f]*")
_TARGET = re.compile(r"[!-~]+")


class _Destination(msgspec.Struct, eq=False):
    """A server as one user: `route` opens connections, `root` starts each request's target.

    `lines` has the headers of every request. Requests to a destination with the same `key` object
    may use the same connections.
    """

    access: Access
    route: aiohttp.ClientRequest
    root: str
    key: ConnectionKey
    lines: bytes


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
        self._idle = deque[HttpConnection]()  # the longest unused first
        self._idle_timer: asyncio.TimerHandle | None = None

    async def send(
        self, access: Access, method: str, target: str, headers: Headers, body: bytes | None
    ) -> HttpConnection:
        """Send a request and return before the body of its response arrives. Nothing is repeated.

        *target* is the percent-encoded path and query. Raises `ClientError` or `OSError` if there
        is no response.
        """
        destination = self._destination
        if destination is None or destination.access is not access:
            destination = self._change_destination(access)
        target = destination.root + target
        if not _TARGET.fullmatch(target):
            raise ValueError(f"{target!r} is not a percent-encoded path")
        length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
        start, own_headers = f"{method} {target} HTTP/1.1\r\n".encode(), _encoded(headers)
        connection = self._unused() or await self._connect(destination)
        head = b"%s%s%s%s\r\n" % (start, destination.lines, own_headers, length)
        await connection.send(head, body or b"")
        return connection

    def _change_destination(self, access: Access) -> _Destination:
        before, destination = self._destination, _destination(access, self._destination)
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
        destination.lines = _lines(route.headers.items())  # connecting adds those for a proxy
        return HttpConnection(link, partial(self._keep_connection, destination.key))

    def _unused(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _keep_connection(self, key: ConnectionKey, connection: HttpConnection) -> None:
        if self._destination is None or key is not self._destination.key:
            connection.close()
            return
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._idle_s, self._close_unused)

    def _close_unused(self) -> None:
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
        headers=(*access.headers, agent, ("Accept-Encoding", "identity")),
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
    return _Destination(access, route, root.rstrip("/"), key, _lines(route.headers.items()))


@lru_cache(maxsize=64)
def _encoded(headers: Headers) -> bytes:
    return _lines(headers)


def _lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the lines of headers; raises `ValueError` if a header would end its line."""
    lines = [f"{name}: {value}" for name, value in headers]
    if not all(map(_LINE.fullmatch, lines)):
        raise ValueError("a header contains a control character")
    return "".join(f"{line}\r\n" for line in lines).encode()
