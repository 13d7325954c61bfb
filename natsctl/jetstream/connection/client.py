"""nats-py's client, made safe to throw away.

natsctl gives every connection a client of its own and never lets one reconnect: what nats-py
carries over from one connection to the next (commands not sent yet, subscriptions, half-dead
tasks) is where ghost writes and silent watches come from. This is the only module that touches
what nats-py keeps private.
"""

import asyncio
import json
import re
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.errors import ProtocolError
from nats.protocol.parser import CRLF_SIZE, Parser

from natsctl.jetstream.connection.headers import parse_headers

Receive = Callable[[bytes, bytes, bytes, bytes | None], None]
"""Takes a message as it came: its subject, reply subject, payload and header block."""


# A server separates words by spaces and tabs only: a subject may have any other byte but a newline.
_MESSAGE = re.compile(rb"MSG[ \t]+([^ \t\n]+)[ \t]+(\d+)[ \t]+(?:([^ \t\n]+)[ \t]+)?()(\d+)\r\n")
_WITH_HEADERS = re.compile(
    rb"HMSG[ \t]+([^ \t\n]+)[ \t]+(\d+)[ \t]+(?:([^ \t\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n"
)

REFUSED_SUBJECT = "invalid publish subject"  # as the server reports it, in lower case


class ReadingStoppedError(NatsError):
    """Nothing is read from the connection any more, though it is open."""

    def __str__(self) -> str:
        return "nats: reading stopped unexpectedly"


class OneTimeClient(Client):
    """A client for one connection, whose close throws away what was not sent."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = (0, 0)
        self._taps: dict[int, Receive] = {}
        self._ps = _Parser(self, self._taps)

    @property
    def encrypted(self) -> bool:
        """Whether the connection is a TLS one; one over web sockets says yes."""
        if not isinstance(self._transport, TcpTransport):
            return True
        writer = self._transport._io_writer  # noqa: SLF001 - no public way to it
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    def abort(self) -> None:
        """Cut the connection now, so that a close has nothing to wait for.

        nats-py's close waits until a frozen peer has read everything, and for ever after a TLS
        handshake that failed.
        """
        if isinstance(self._transport, TcpTransport):
            writer = self._transport._io_writer  # noqa: SLF001 - no public way to it
            if writer is not None:
                writer.transport.abort()
            self._transport = None

    def listen(self) -> None:
        """Take what came in since the last call for a sign of life, as good as a pong.

        Behind a long backlog the pong itself comes late.
        """
        heard = (self.stats["in_msgs"], len(self._ps.buf))
        if heard != self._heard:
            self._heard = heard
            self._pings_outstanding = 0

    async def tap(self, subject: str, receive: Receive, *, queue: str = "") -> Subscription:
        """Subscribe, and have *receive* called with every message, at once and as it came.

        nats-py would make an object of each and take it through a queue to another task.
        *receive* must not raise: nothing would be read any more.
        """
        subscription = await self.subscribe(subject, queue=queue, cb=_tapped)
        self._taps[subscription._id] = receive  # noqa: SLF001 - no public way to it
        return subscription

    def subscribed(self, lowered: str) -> str | None:
        """Return the subject of ours that is this one in lower case; None where none is."""
        ours = (each.subject for each in self._subs.values())
        return next((subject for subject in ours if subject.lower() == lowered), None)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._taps.pop(sid, None)
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
            # the connection is as good as before, but nats-py would close it
            await self._error_cb(NatsError(f"nats: {err_msg}"))
            return
        await super()._process_err(err_msg)

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        # nats-py stops reading if the header block is malformed
        return parse_headers(headers) or None if headers else None

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002
        # nats-py writes what is pending to the dead connection, and leaves its tasks and
        # callbacks behind when that fails
        self._pending.clear()
        self._pending_data_size = 0
        await super()._close(status, do_cbs)

    async def _process_pong(self) -> None:
        # a flush that was cancelled leaves its future behind, and the read loop dies of it
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:
            # it gave up after an error that it only logged
            await self._process_op_err(ReadingStoppedError())


class _Parser(Parser):
    """Splits what a server sends into messages and control lines, exactly as a server reads them.

    The messages of taps go straight to them, everything else goes to nats-py. nats-py's own parser
    takes other white space for a separator too: a subject could end the connection, or send its
    message to another subscription.
    """

    def __init__(self, client: "OneTimeClient", taps: dict[int, Receive]) -> None:
        super().__init__(client)
        self._taps = taps

    def reset(self) -> None:
        super().reset()
        self._awaited = 0  # how many bytes the next frame needs in the buffer, as far as is known

    async def parse(self, data: bytes = b"") -> None:
        self.buf.extend(data)
        while self.buf and len(self.buf) >= self._awaited:
            self._hand_out()
            if self._awaited or not await self._take_one():
                return

    def _hand_out(self) -> None:
        """Give the messages at the front of the buffer to their taps."""
        buffer, at, count = bytes(self.buf), 0, 0
        self._awaited = 0
        while frame := _MESSAGE.match(buffer, at) or _WITH_HEADERS.match(buffer, at):
            subject, sid, reply, header_size, size = frame.groups()
            receive = self._taps.get(int(sid))
            if receive is None:
                break
            start = frame.end()
            end = start + int(size)
            if end + CRLF_SIZE > len(buffer):
                self._awaited = end + CRLF_SIZE - at
                break
            body = start + int(header_size or 0)
            headers = buffer[start:body] if header_size else None
            receive(subject, reply or b"", buffer[body:end], headers)
            at = end + CRLF_SIZE
            count += 1
        del self.buf[:at]
        self.nc.stats["in_msgs"] += count
        self.nc.stats["in_bytes"] += at

    async def _take_one(self) -> bool:
        """Give the first frame to nats-py; return False if it is not complete yet."""
        frame = _MESSAGE.match(self.buf) or _WITH_HEADERS.match(self.buf)
        if frame is None:
            return await self._take_line()
        subject, sid, reply, header_size, size = frame.groups()
        start = frame.end()
        end = start + int(size)
        if end + CRLF_SIZE > len(self.buf):
            self._awaited = end + CRLF_SIZE
            return False
        body = start + int(header_size or 0)
        headers, payload = bytes(self.buf[start:body]), bytes(self.buf[body:end])
        del self.buf[: end + CRLF_SIZE]
        await self.nc._process_msg(int(sid), subject, reply or b"", payload, headers)  # noqa: SLF001 - no public way to it
        return True

    async def _take_line(self) -> bool:
        """Obey a control line; return False if it is not complete yet."""
        line, end, _ = self.buf.partition(b"\r\n")
        if not end:
            return False
        del self.buf[: len(line) + CRLF_SIZE]
        operation, _, rest = str(line, "utf-8", "replace").partition(" ")
        match operation.strip().upper():
            case "PING":
                await self.nc._process_ping()  # noqa: SLF001 - no public way to it
            case "PONG":
                await self.nc._process_pong()  # noqa: SLF001 - no public way to it
            case "INFO":
                await self.nc._process_info(json.loads(rest))  # noqa: SLF001 - no public way to it
            case "-ERR":
                await self.nc._process_err(rest.strip().lower())  # noqa: SLF001 - no public way to it
            case "+OK":
                pass
            case _:
                raise ProtocolError
        return True


async def _tapped(_msg: Msg) -> None:
    """Stand in for the callback that nats-py demands."""
