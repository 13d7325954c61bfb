"""A NATS client without checks, which sends subjects and headers as raw bytes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Stranger:
    """Publishes raw messages. Created by `stranger`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def publish(
        self, subject: bytes, payload: bytes, *, reply: bytes = b"", headers: bytes | None = None
    ) -> None:
        """Send a message. `flush` waits until the server has read it."""
        words = [b"PUB" if headers is None else b"HPUB", subject, *([reply] if reply else ())]
        if headers is not None:
            words.append(b"%d" % len(headers))
        body = (headers or b"") + payload
        self._writer.write(b"%b %d\r\n%b\r\n" % (b" ".join(words), len(body), body))

    async def drain(self) -> None:
        """Wait until most of what was published is on its way."""
        await self._writer.drain()

    async def flush(self) -> None:
        """Wait until the server has read all messages.

        The server reports an error for wildcards, but stores such messages.
        """
        self._writer.write(b"PING\r\n")
        await self._writer.drain()
        while (line := await self._reader.readline()) != b"PONG\r\n":
            assert line, "the server has closed the connection"


@asynccontextmanager
async def stranger(url: str) -> AsyncIterator[Stranger]:
    """Connect to the server at *url* during the context."""
    parsed_url = urlsplit(url)
    reader, writer = await asyncio.open_connection(parsed_url.hostname, parsed_url.port)
    try:
        await reader.readline()  # the server's INFO
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
        yield Stranger(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()
