"""Which connections are still open, at the end of all calls."""

import asyncio
import socket
from contextlib import suppress
from types import TracebackType
from typing import Self
from weakref import WeakSet

END_S = 2.0  # how long connections have to end once nothing is sent or read any more

AddressInfo = tuple[int, int, int, str, tuple[object, ...]]


class Sockets:
    """Makes the sockets of connections, and ends those that are left.

    A TLS connection that is closed stays until the other side agrees; one who does not answer
    would keep it, and the loop would end before it. Used as `async with Sockets() as sockets`,
    around all that makes connections.
    """

    def __init__(self) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()

    def make(self, address: AddressInfo) -> socket.socket:
        """Return a new socket for a connection to this address, as `getaddrinfo` gives it."""
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cut all that are open, and wait until the loop has closed them; `END_S` at most."""
        for made in self._open():
            with suppress(OSError):
                made.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                while self._open():  # noqa: ASYNC110 - the loop tells nobody of it
                    await asyncio.sleep(0)

    def _open(self) -> list[socket.socket]:
        return [made for made in self._made if made.fileno() != -1]
