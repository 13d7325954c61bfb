"""A nats-py client for a single connection, which closes without sending pending commands.

natsctl makes a new client for every connection and never lets one reconnect. nats-py keeps unsent
commands, subscriptions and tasks across a reconnect, which can cause writes after a failure was
reported and watches that receive nothing. Only this module uses nats-py's private attributes.
"""

import asyncio
import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, cast

from nats.aio import transport
from nats.aio.client import DEFAULT_BUFFER_SIZE, Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import ConnectionClosedError, ProtocolError
from nats.errors import Error as NatsError
from nats.protocol.parser import CRLF_SIZE, Parser

STATUS: Final = "Status"


def parse_headers(raw: bytes) -> dict[str, str]:
    """Return the headers of a block; `Status` holds the status of the first line."""
    first, *lines = raw.decode(errors="replace").split("\r\n")
    pairs = (line.partition(":") for line in lines if ":" in line)
    headers = {name.strip(): value.strip() for name, _, value in pairs}
    _, _, status = first.partition(" ")
    return {STATUS: status, **headers} if status else headers


RawMessage: TypeAlias = tuple[bytes, bytes, bytes, bytes | None]
"""A message: subject, reply subject, payload and header block."""

Receive = Callable[[Sequence[RawMessage]], None]
"""Receives the messages of a subscription that were read from the socket together."""

Parse = Callable[[bytes, int], int]
"""Takes a subscription's messages of one form from the socket's bytes at a position.

Returns the position behind them; the other messages go to `Receive`, one by one.
"""


# Only spaces and tabs separate words. A subject may have any other byte except a newline.
# Both expressions have the groups subject, subscription, reply, header size and size.
_MESSAGE = re.compile(rb"MSG[ \t]+([^ \t\n]+)[ \t]+(\d+)[ \t]+(?:([^ \t\n]+)[ \t]+)?()(\d+)\r\n")
_WITH_HEADERS = re.compile(
    rb"HMSG[ \t]+([^ \t\n]+)[ \t]+(\d+)[ \t]+(?:([^ \t\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n"
)

READ_MAX = 65_536  # bytes of a read after which other tasks run before the next one
REFUSED_SUBJECT = "invalid publish subject"  # as the server reports it, in lower case


class ReadingStoppedError(NatsError):
    """The client no longer reads from a connection that is open."""

    def __str__(self) -> str:
        return "nats: reading stopped unexpectedly"


class OneTimeClient(Client):
    """A client for one connection. Closing the client discards commands that are not sent."""

    def __init__(self) -> None:
        super().__init__()
        self._received = 0
        self._ps = self._parser = _Parser(self)

    @property
    def encrypted(self) -> bool:
        """True if the connection uses TLS, and for every connection over web sockets."""
        if not isinstance(self._transport, TcpTransport):
            return True
        writer = self._transport._io_writer  # noqa: SLF001 - no public way to it
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    async def _connect_to_server(self, s: Any) -> None:
        if s.uri.scheme in {"ws", "wss"}:
            for name in ("aiohttp", "multidict"):
                setattr(transport, name, importlib.import_module(name))
            await super()._connect_to_server(s)
            return
        self._transport = _Transport()  # type: ignore[no-untyped-call]  # nats-py has no types there
        limit_s = self.options["connect_timeout"]
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, limit_s)

    def abort(self) -> None:
        """Abort the connection, so that `close` does not wait.

        Otherwise nats-py's `close` waits until the server has read everything, even if the server
        is frozen, and it never returns after a failed TLS handshake.
        """
        if isinstance(self._transport, TcpTransport):
            writer = self._transport._io_writer  # noqa: SLF001 - no public way to it
            if writer is not None:
                writer.transport.abort()
            self._transport = None

    @property
    def traffic(self) -> int:
        return self._parser.received

    def count_traffic_as_pong(self) -> None:
        """Reset the count of unanswered pings if data arrived since the last call.

        The pong itself arrives late if a long backlog precedes it.
        """
        if self.traffic != self._received:
            self._received = self.traffic
            self._pings_outstanding = 0

    async def subscribe_raw(
        self,
        subject: str,
        receive: Receive,
        *,
        parser: Callable[[bytes], Parse | None] | None = None,
        queue: str = "",
    ) -> Subscription:
        """Subscribe, and call *receive* with the raw parts of the messages as they are read.

        This skips nats-py's message object, queue and task. *receive* must not raise, because the
        client would stop reading. *parser* gets the subscription's id, and returns a function that
        takes most messages itself.
        """
        subscription = await self.subscribe(subject, queue=queue, cb=_ignore)
        sid = b"%d" % subscription._id  # noqa: SLF001 - no public way to it
        self._parser.receivers[sid] = receive, None if parser is None else parser(sid)
        return subscription

    def subscribed(self, lowered: str) -> str | None:
        subjects = (subscription.subject for subscription in self._subs.values())
        return next((subject for subject in subjects if subject.lower() == lowered), None)

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        # nats-py sends a ping before pending commands, so `flush` would not wait for them
        with _closed():
            if self._transport is not None and self._pending:
                self._transport.writelines(self._pending)
                self._pending, self._pending_data_size = [], 0
            await super()._send_ping(future)

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # noqa: FBT001, FBT002
        with _closed():
            return await super()._flush_pending(force_flush)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._parser.drop(b"%d" % sid)
        super()._remove_sub(sid, max_msgs)

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        # nats-py stops reading if a subject is not UTF-8
        return Msg(
            _client=self,
            subject=str(subject, "utf-8", "replace"),
            reply=str(reply, "utf-8", "replace"),
            data=data,
            headers=headers,
            _sid=sid,
        )

    async def _process_err(self, err_msg: str) -> None:
        if REFUSED_SUBJECT in err_msg:
            # the connection still works, but nats-py would close it
            await self._error_cb(NatsError(f"nats: {err_msg}"))
            return
        await super()._process_err(err_msg)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        # nats-py stops reading if the header block is malformed
        return parse_headers(headers) or None if headers else None

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002
        # nats-py writes pending commands to the dead connection; if that fails, its tasks and
        # callbacks stay
        self._pending.clear()
        self._pending_data_size = 0
        self._parser.receivers.clear()  # the socket may bring more until it's closed
        await super()._close(status, do_cbs)

    async def _process_pong(self) -> None:
        # a cancelled flush leaves its future behind, which would end the read loop
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _read_loop(self) -> None:
        if isinstance(self._transport, TcpTransport):
            stream = cast("asyncio.StreamReader", self._transport._io_reader)  # noqa: SLF001 - no public way to it
            self._parser.listen(stream, cast("_Transport", self._transport).socket)
        await super()._read_loop()
        if self.is_connected:
            # the read loop ended after an error that nats-py only logs
            await self._process_op_err(ReadingStoppedError())


class _Transport(TcpTransport):
    """A transport whose loss isn't logged as a warning by the event loop.

    asyncio's streams keep a half-closed connection open, which TLS can't, and the event loop warns
    of that at every end of the connection, unless the streams know that they're over TLS.
    """

    @property
    def socket(self) -> asyncio.Transport:
        writer = cast("asyncio.StreamWriter", self._io_writer)
        return cast("asyncio.Transport", writer.transport)

    async def connect_tls(self, *args: Any, **options: Any) -> None:
        await super().connect_tls(*args, **options)
        protocol: Any = self.socket.get_protocol()
        if protocol is not None:  # else the connection is lost already
            protocol._over_ssl = True  # noqa: SLF001 - no public way to it


@contextmanager
def _closed() -> Iterator[None]:
    """Raise `ConnectionClosedError` for uvloop's error about a socket that is closed."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionClosedError from error


class _Parser(Parser):
    """Splits the server's data into messages and control lines by the server's own rules.

    Messages of raw subscriptions go to their receivers, and everything else goes to nats-py.
    nats-py's parser also splits at other white space, so a subject with such a character could end
    the connection or misdirect its message.

    Bytes for receivers don't wait for nats-py's read loop, which would cost a turn of the event
    loop: the socket's stream gives them to the parser, and the read loop gets what's left.
    """

    def __init__(self, client: "OneTimeClient") -> None:
        super().__init__(client)
        self.received = 0  # bytes
        # by the id of a subscription, as the server sends it
        self.receivers: dict[bytes, tuple[Receive, Parse | None]] = {}
        self._parse: Parse | None = None  # of the subscription that had a message last
        self._stream: asyncio.StreamReader | None = None
        self._is_passing = False  # whether nats-py's read loop has bytes that it hasn't passed on

    def listen(
        self, stream: asyncio.StreamReader, socket: asyncio.ReadTransport | None = None
    ) -> None:
        """Take what arrives on the connection before nats-py's read loop does.

        uvloop reads up to 8 MB in one turn of the event loop, which would stall it. So after a
        large read the *socket* is read again in the next turn.
        """
        feed, loop = stream.feed_data, asyncio.get_running_loop()

        def resume() -> None:
            if socket is not None and not socket.is_closing():
                socket.resume_reading()

        def feed_data(data: bytes) -> None:
            rest = data if self._is_passing else self._take(bytes(data))
            if rest:
                self._is_passing = True
                feed(rest)
            elif len(data) > READ_MAX and socket is not None and not socket.is_closing():
                socket.pause_reading()
                loop.call_soon(resume)

        self._stream = stream
        self._is_passing = bool(stream._buffer)  # type: ignore[attr-defined]  # noqa: SLF001 - no public way to it
        stream.feed_data = feed_data  # type: ignore[assignment,method-assign]

    def drop(self, sid: bytes) -> None:
        self.receivers.pop(sid, None)
        self._parse = None

    def reset(self) -> None:
        super().reset()
        self._awaited = 0  # bytes that the buffer needs for the next frame; 0 if unknown

    def _take(self, data: bytes) -> bytes:
        """Give messages to their receivers; return the bytes from the first one of nats-py on."""
        self.received += len(data)
        if self.buf:
            self.buf.extend(data)
            if len(self.buf) < self._awaited:
                return b""
            data = bytes(self.buf)
            self.buf.clear()
        position = self._receive_raw(data)
        if position == len(data):
            return b""
        rest = data[position:]
        if not self._awaited and b"\r\n" in rest:
            return rest
        self.buf.extend(rest)
        return b""

    async def parse(self, data: bytes = b"") -> None:
        """Process what nats-py's read loop has read, in its order."""
        while rest := self._take(data):
            self.buf.extend(rest)
            await self._pass_on()
            data = b""
        if self._stream is not None:
            self._is_passing = bool(self._stream._buffer)  # type: ignore[attr-defined]  # noqa: SLF001 - no public way to it

    def _receive_raw(self, buffer: bytes) -> int:
        """Give messages to their receivers until one has none, and return its position."""
        length, position = len(buffer), 0
        batches: dict[bytes, tuple[Receive, list[RawMessage]]] = {}
        self._awaited = 0
        while True:
            if self._parse is not None:
                position = self._parse(buffer, position)
            frame = _frame(buffer, position) if position < length else None
            if frame is None:
                break
            subject, sid, reply, header_size, size = frame.groups()
            begin = frame.end()
            end = begin + int(size)
            if end + CRLF_SIZE > length:
                self._awaited = end + CRLF_SIZE - position
                break
            receiver = self.receivers.get(sid)
            if receiver is None:
                break
            headers = None
            if header_size:
                body = begin + int(header_size)
                headers, begin = buffer[begin:body], body
            message = subject, reply or b"", buffer[begin:end], headers
            position = end + CRLF_SIZE
            receive, self._parse = receiver
            if self._parse is not None:
                receive((message,))
            elif sid in batches:
                batches[sid][1].append(message)
            else:
                batches[sid] = receive, [message]
        for receive, messages in batches.values():
            receive(messages)
        return position

    async def _pass_on(self) -> None:
        """Pass the first message or control line, which is whole, to nats-py."""
        frame = _frame(self.buf, 0)
        if frame is None:
            await self._control()
            return
        subject, sid, reply, header_size, size = frame.groups()
        start = frame.end()
        end = start + int(size)
        body = start + int(header_size or 0)
        headers, payload = bytes(self.buf[start:body]), bytes(self.buf[body:end])
        del self.buf[: end + CRLF_SIZE]
        await self.nc._process_msg(int(sid), subject, reply or b"", payload, headers)  # noqa: SLF001 - no public way to it

    async def _control(self) -> None:
        line, _, _ = self.buf.partition(b"\r\n")
        del self.buf[: len(line) + CRLF_SIZE]
        operation, _, arguments = str(line, "utf-8", "replace").partition(" ")
        match operation.strip().upper():
            case "PING":
                await self.nc._process_ping()  # noqa: SLF001 - no public way to it
            case "PONG":
                await self.nc._process_pong()  # noqa: SLF001 - no public way to it
            case "INFO":
                await self.nc._process_info(json.loads(arguments))  # noqa: SLF001 - no public way to it
            case "-ERR":
                await self.nc._process_err(arguments.strip().lower())  # noqa: SLF001 - no public way to it
            case "+OK":
                pass
            case _:
                raise ProtocolError


def _frame(buffer: bytes | bytearray, position: int) -> re.Match[bytes] | None:
    return _MESSAGE.match(buffer, position) or _WITH_HEADERS.match(buffer, position)


async def _ignore(_msg: Msg) -> None:
    """Do nothing; nats-py requires a callback."""
