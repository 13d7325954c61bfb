"""A TCP proxy before a server, which tests can cut or freeze."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self
from urllib.parse import urlsplit

from tests.support.servers.ports import free_port
from tests.support.servers.streams import opened


class CutProxy:
    def __init__(self, target: str) -> None:
        self._target = urlsplit(target)
        self._port = free_port()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._held: dict[asyncio.StreamWriter, asyncio.Event] = {}  # clients that get no data
        self._newest: asyncio.StreamWriter | None = None
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def cut(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
        self._listener = None
        for task in self._tasks:
            task.cancel()

    async def heal(self) -> None:
        if self._listener is None:
            listener = socket.create_server(("127.0.0.1", self._port), backlog=100)
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)
            self._listener = listener

    def freeze(self) -> None:
        """Forward no more data; new connections wait, as in a network that drops all packets."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    @contextmanager
    def holding_newest(self) -> Iterator[None]:
        """Forward no data to the client that connected last, while the context lasts."""
        newest, released = self._newest, asyncio.Event()
        assert newest is not None, "no client has connected"
        self._held[newest] = released
        try:
            yield
        finally:
            del self._held[newest]
            released.set()

    def _accept(self, listener: socket.socket) -> None:
        # not asyncio's server: its close leaks a connection that arrives at that moment
        with suppress(BlockingIOError):
            accepted, _ = listener.accept()
            task = asyncio.create_task(self._serve(accepted))
            task.add_done_callback(lambda _: accepted.close())
            self._keep(task)

    async def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError):
            async with opened(sock=accepted) as (reader, writer):
                await self._flowing.wait()
                self._newest = writer
                host, port = self._target.hostname, self._target.port
                async with opened(host, port) as (target_reader, target_writer):
                    to_target = asyncio.create_task(self._forward(reader, target_writer))
                    from_target = asyncio.create_task(self._answer(target_reader, writer))
                    self._keep(to_target, from_target)
                    await asyncio.wait(
                        {to_target, from_target}, return_when=asyncio.FIRST_COMPLETED
                    )
                    to_target.cancel()
                    from_target.cancel()

    def _keep(self, *tasks: asyncio.Task[None]) -> None:
        for task in tasks:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def changed_data(self, data: bytes) -> bytes:
        """Return what a client gets instead of whole lines from the server."""
        return data

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward what the server sends, a whole number of lines at a time, as a subclass likes."""
        if type(self).changed_data is CutProxy.changed_data:
            await self._forward(reader, writer)
            return
        changed, rest = asyncio.StreamReader(), b""
        forwarding = asyncio.create_task(self._forward(changed, writer))
        self._keep(forwarding)
        with suppress(OSError):
            while data := await reader.read(65_536):
                lines, end, rest = (rest + data).rpartition(b"\r\n")
                changed.feed_data(self.changed_data(lines + end))
        forwarding.cancel()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._flowing.wait()
                if writer in self._held:
                    await self._held[writer].wait()
                writer.write(data)
                await writer.drain()
