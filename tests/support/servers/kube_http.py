"""HTTP servers in the place of a kube-apiserver, and HTTP proxies before it."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from tests.support.eventually import eventually

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Web:
    """A server on 127.0.0.1 that answers requests with *handler* and records them."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.connections: set[asyncio.Transport] = set()
        self.busiest = 0  # the maximum of concurrent requests
        self.url = ""
        self._busy = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.raw_path}")
        self.headers.append(dict(request.headers))
        assert request.transport is not None
        self.connections.add(request.transport)
        self._busy += 1
        self.busiest = max(self.busiest, self._busy)
        try:
            return await self.handler(request)
        finally:
            self._busy -= 1


@asynccontextmanager
async def answering(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    """Run a `Web` server, with TLS if given. Pending requests are cancelled at the end."""
    served = Web(handler)
    server = web.Server(served.answer, handler_cancellation=True)  # type: ignore[arg-type]
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    try:
        await site.start()
        host, port = runner.addresses[0][:2]
        served.url = f"{'https' if context else 'http'}://{host}:{port}"
        yield served
    finally:
        await runner.cleanup()


def in_turn(*answers: web.Response | Handler) -> Handler:
    """Return a handler that gives these responses in turn, and repeats the last."""
    remaining: list[web.Response | Handler] = list(answers)

    async def handle(request: web.Request) -> web.StreamResponse:
        answer = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        return await answer(request)

    return handle


async def reset(request: web.Request) -> web.StreamResponse:
    """Abort the connection without a response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(request: web.Request) -> web.StreamResponse:
    """Never send a response."""
    await asyncio.Event().wait()
    return web.Response()


def lines(*chunks: bytes, then: Handler | None = None) -> Handler:
    """Return a handler that streams these pieces, and then calls *then* or ends."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if then is not None:
            await then(request)
        return response

    return handle


class ConnectProxy:
    """An HTTP proxy that connects every client to 127.0.0.1, for any requested host.

    `asked` are the requested hosts and ports, `credentials` the values of Proxy-Authorization.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.credentials: list[str] = []
        self.url = ""
        self.through: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Drop every connection."""
        for writer in self.through:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.through.add(writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                port = self._asked((await reader.readuntil(b"\r\n\r\n")).decode())
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self.through.discard(writer)
            writer.transport.abort()

    def _asked(self, head: str) -> int:
        request, *fields = head.splitlines()
        self.asked.append(request.split()[1])
        named = (field.partition(": ") for field in fields)
        self.credentials += [
            value for name, _, value in named if name.lower() == "proxy-authorization"
        ]
        return int(self.asked[-1].rpartition(":")[2])


@asynccontextmanager
async def proxying() -> AsyncIterator[ConnectProxy]:
    """Run a `ConnectProxy`."""
    proxy = ConnectProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy
    finally:
        server.close()
        proxy.cut()
        await eventually(lambda: not proxy.through)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward what arrives, and close the other connection at the end."""
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
