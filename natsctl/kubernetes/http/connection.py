"""One HTTP/1.1 connection: sends requests, and returns each response as it arrives.

httptools parses the responses. It is the parser of Node.js, and it follows the standard strictly.
"""

import asyncio
import zlib
from collections.abc import Callable, Sequence

import aiohttp
import httptools
from aiohttp.connector import Connection

PIECE_BYTES = 256 * 1024  # of a request's body, which are encrypted before other tasks run
BUFFER_BYTES = 256 * 1024  # of a response, which are kept until somebody reads them
UNPACKED_BYTES = 1024 * 1024  # of a compressed response, which are unpacked at a time
HEAD_MAX_BYTES = 64 * 1024  # of the status and the headers of a response

_INTERIM = range(100, 200)  # the statuses that another response follows
_GZIP = 16 + zlib.MAX_WBITS


class HttpResponse:
    """A response whose body may not have arrived yet. Abort it, or read its body to the end.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, connection: "HttpConnection") -> None:
        self.status = 0
        self._connection = connection
        self._headers: dict[bytes, bytes] = {}
        self._received: list[bytes] = []
        self._received_bytes = 0
        self._error: Exception | None = None
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._unpacking: _Unpacking | None = None

    def header(self, name: bytes) -> str:
        """Return a header by its name in small letters; repeated ones are joined by commas."""
        value = self._headers.get(name)
        return value.decode("utf-8", "surrogateescape") if value else ""

    async def read(self, limit: int) -> bytes:
        """Return the body; of a body larger than *limit* bytes, the first part that exceeds them.

        This ends the response. Raises `ClientError` or `OSError` if the connection breaks.
        """
        try:
            body = await self.chunk()
            if self._ended and self._unpacking is None:
                return body  # a small body arrives with the headers
            chunks, size = [body], len(body)
            while size <= limit and (chunk := await self.chunk()):
                chunks.append(chunk)
                size += len(chunk)
            return b"".join(chunks)
        finally:
            self._connection.release()

    async def chunk(self) -> bytes:
        """Return the next bytes of the body, or no bytes at its end; raises errors as `read`."""
        unpacking = self._unpacking
        while True:
            if unpacking is None:
                data = self._take()
            else:
                data = unpacking.unpack(unpacking.pending or self._take())
            if data:
                return data
            if self._ended and not self._received:
                if unpacking is not None:
                    unpacking.end()
                return b""
            if not self._received:
                await self.change()

    def abort(self) -> None:
        """Close the connection at once, without the closing handshake of TLS."""
        self._connection.abort()

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """Begin the response, whose headers have arrived."""
        self.status = status
        by_name = self._headers = {name.lower(): value for name, value in headers}
        if len(by_name) < len(headers):
            for name in by_name:
                by_name[name] = b", ".join(
                    field_value for header, field_value in headers if header.lower() == name
                )
        if b"content-encoding" in by_name and self.header(b"content-encoding").lower() == "gzip":
            self._unpacking = _Unpacking()
        self._notify()

    def add(self, data: bytes) -> bool:
        """Add a part of the body; return whether as much is kept as should be."""
        self._received.append(data)
        self._received_bytes += len(data)
        self._notify()
        return self._received_bytes >= BUFFER_BYTES

    def end(self) -> None:
        """Note that the body is complete."""
        self._ended = True
        self._notify()

    def lose(self, error: Exception) -> None:
        """End a response whose connection was lost; *error* if nothing of it has arrived."""
        if self._ended:
            return
        framed = self.header(b"content-length") or self.header(b"transfer-encoding")
        if self.status and not framed and isinstance(error, aiohttp.ServerDisconnectedError):
            self.end()  # the body of such a response ends with its connection
            return
        if self.status and not isinstance(error, OSError):
            error = aiohttp.ClientPayloadError("the connection ended within the response")
        self._error = error
        self._notify()

    def _take(self) -> bytes:
        received = self._received
        if not received:
            return b""
        self._received = []
        if self._received_bytes >= BUFFER_BYTES:
            self._connection.resume()
        self._received_bytes = 0
        return received[0] if len(received) == 1 else b"".join(received)

    async def change(self) -> None:
        """Wait until more has arrived; raises the error that ended the connection."""
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


class _Unpacking:
    """Unpacks a compressed body, not much at a time."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_GZIP)

    @property
    def pending(self) -> bytes:
        """The bytes that must be unpacked before others."""
        return self._inflater.unconsumed_tail

    def unpack(self, packed: bytes) -> bytes:
        """Return the first unpacked bytes of *packed*; raises `ClientError` if it is invalid."""
        try:
            return self._inflater.decompress(packed, UNPACKED_BYTES)
        except zlib.error as error:
            raise aiohttp.ClientError("the response is not compressed correctly") from error

    def end(self) -> None:
        """Raise `ClientPayloadError` if the body is not complete."""
        if not self._inflater.eof:
            raise aiohttp.ClientPayloadError("the compressed response is not complete")


class HttpConnection(asyncio.Protocol):
    """A connection that *link* has opened, with one request at a time.

    *release* takes a connection back that can send another request. The parser calls the methods
    whose names begin with `on_`.

    Attributes:
        idle_since: when the last response ended, by the event loop's clock.
    """

    def __init__(self, link: Connection, release: Callable[["HttpConnection"], None]) -> None:
        opener, transport = link.protocol, link.transport
        if opener is None or transport is None:
            link.close()
            raise aiohttp.ServerDisconnectedError
        self.idle_since = 0.0
        self._link = link
        self._opener: asyncio.BaseProtocol = opener
        self._transport = transport
        self._release = release
        self._parser = httptools.HttpResponseParser(self)
        self._response: HttpResponse | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._complete = self._keeps_alive = self._paused = False
        self._head_bytes = 0
        transport.set_protocol(self)

    @property
    def usable(self) -> bool:
        """True if the connection is still open."""
        return not self._transport.is_closing()

    async def send(self, head: bytes, body: bytes) -> HttpResponse:
        """Send a request, and return the response before its body arrives.

        Raises `ClientError` or `OSError` if there is no response. A call that does not return
        closes the connection.
        """
        response = self._response = HttpResponse(self)
        self._complete, self._head_bytes, self._headers = False, 0, []
        try:
            transport = self._transport
            transport.write(head + body[:PIECE_BYTES])
            for start in range(PIECE_BYTES, len(body), PIECE_BYTES):
                await asyncio.sleep(0)
                if not transport.is_closing():  # a server may answer before the request ends
                    transport.write(body[start : start + PIECE_BYTES])
            while not response.status:
                await response.change()
        except BaseException:
            self.close()
            raise
        return response

    def release(self) -> None:
        """Give the connection back after a response, or close it if it cannot be used again."""
        self._response = None
        if self._complete and self._keeps_alive and self.usable and not self._paused:
            self._release(self)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection, with the closing handshake of TLS."""
        self._link.close()

    def abort(self) -> None:
        """Close the connection at once, without the closing handshake of TLS."""
        self._transport.abort()
        self._link.close()

    def resume(self) -> None:
        """Read on, after the response has kept as much as it should."""
        self._paused = False
        if self.usable:
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Parse what the server sends; close the connection if nothing was asked or it is wrong."""
        response = self._response
        if response is None or self._complete:
            self.close()
            return
        try:
            self._parser.feed_data(data)
            if not response.status:
                self._check_head(len(data))
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            invalid = aiohttp.ClientError(str(error))
            invalid.__cause__ = error
            response.lose(invalid)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response under way."""
        self._opener.connection_lost(exc)
        if self._response is not None:
            error: Exception = aiohttp.ServerDisconnectedError()
            if isinstance(exc, OSError):
                error = aiohttp.ClientOSError(*exc.args)
            error.__cause__ = exc
            self._response.lose(error)
        self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin the response; raises `HttpParserError` for one that answers no request."""
        if self._response is None or self._complete:
            raise httptools.HttpParserError("a response to no request")
        status, headers = self._parser.get_status_code(), self._headers
        self._headers = []
        if status not in _INTERIM:
            self._response.start(status, headers)

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        if self._response is not None and self._response.add(body) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """End the response, unless another one follows it."""
        if self._response is not None and self._response.status:
            self._complete = True
            self._keeps_alive = self._parser.should_keep_alive()
            self._response.end()

    def _check_head(self, received_bytes: int) -> None:
        self._head_bytes += received_bytes
        if self._head_bytes > HEAD_MAX_BYTES:
            raise httptools.HttpParserError(f"headers above {HEAD_MAX_BYTES} bytes")
