"""nats-py's client, made safe to throw away.

natsctl gives every connection a client of its own and never lets one reconnect: what nats-py
carries over from one connection to the next (commands not sent yet, subscriptions, half-dead
tasks) is where ghost writes and silent watches come from. This is the only module that touches
what nats-py keeps private.
"""

import asyncio
import re
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError
from nats.protocol.parser import AWAITING_CONTROL_LINE, CRLF_SIZE, Parser

Receive = Callable[[bytes, bytes, bytes, bytes | None], None]
"""Takes a message as it came: its subject, reply subject, payload and header block."""


_MESSAGE = re.compile(rb"MSG (\S+) (\d+) (?:(\S+) )?()(\d+)\r\n")
_WITH_HEADERS = re.compile(rb"HMSG (\S+) (\d+) (?:(\S+) )?(\d+) (\d+)\r\n")


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

    async def tap(self, subject: str, receive: Receive) -> Subscription:
        """Subscribe, and have *receive* called with every message, at once and as it came.

        nats-py would make an object of each and take it through a queue to another task.
        *receive* must not raise: nothing would be read any more.
        """
        subscription = await self.subscribe(subject, cb=_tapped)
        self._taps[subscription._id] = receive  # noqa: SLF001 - no public way to it
        return subscription

    def subscribed(self, lowered: str) -> str | None:
        """Return the subject of ours that is this one in lower case; None where none is."""
        ours = (each.subject for each in self._subs.values())
        return next((subject for subject in ours if subject.lower() == lowered), None)

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._taps.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        receive = self._taps.get(sid)
        if receive is None:
            await super()._process_msg(sid, subject, reply, data, headers)
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        receive(subject, reply, data, headers)

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
    """nats-py's parser, but the messages of taps at the front of the buffer go straight to them."""

    def __init__(self, client: Client, taps: dict[int, Receive]) -> None:
        super().__init__(client)
        self._taps = taps

    def reset(self) -> None:
        super().reset()
        self._awaited = 0  # how much the buffer must hold for the message of a tap to be whole

    async def parse(self, data: bytes = b"") -> None:
        self.buf.extend(data)
        if len(self.buf) < self._awaited:
            return
        if self.state == AWAITING_CONTROL_LINE:
            self._hand_out()
        if not self._awaited:
            await super().parse()

    def _hand_out(self) -> None:
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


async def _tapped(_msg: Msg) -> None:
    """Stand in for the callback that nats-py demands."""
