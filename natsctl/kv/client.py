"""nats-py's client, made safe to throw away.

natsctl gives every connection a client of its own and never lets one reconnect: what nats-py
carries over from one connection to the next (commands not sent yet, subscriptions, half-dead
tasks) is where ghost writes and silent watches come from. This is the only module that touches
what nats-py keeps private.
"""

import asyncio

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import Error as NatsError


class ReadingStoppedError(NatsError):
    """Nothing is read from the connection any more, though it is open."""

    def __str__(self) -> str:
        return "nats: reading stopped unexpectedly"


class OneTimeClient(Client):
    """A client for one connection, whose close throws away what was not sent."""

    def __init__(self) -> None:
        super().__init__()
        self._heard = (0, 0)

    @property
    def encrypted(self) -> bool:
        """Whether the connection is a TLS one; one over web sockets says yes."""
        if not isinstance(self._transport, TcpTransport):
            return True
        writer = self._transport._io_writer  # noqa: SLF001 - no public way to it
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    def abort(self) -> None:
        """Cut the connection now. nats-py's close waits for a frozen peer to read everything."""
        if isinstance(self._transport, TcpTransport):
            writer = self._transport._io_writer  # noqa: SLF001 - no public way to it
            if writer is not None:
                writer.transport.abort()

    def listen(self) -> None:
        """Take what came in since the last call for a sign of life, as good as a pong.

        Behind a long backlog the pong itself comes late.
        """
        heard = (self.stats["in_msgs"], len(self._ps.buf))
        if heard != self._heard:
            self._heard = heard
            self._pings_outstanding = 0

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
