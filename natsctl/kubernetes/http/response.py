"""A response of a server: its status, its headers, and its body as it arrives."""

import aiohttp
import msgspec
from aiohttp.connector import Connection
from multidict import CIMultiDictProxy


class HttpResponse(msgspec.Struct, frozen=True, eq=False):
    """A response whose body may not have arrived yet. Close it, or read its body to the end."""

    status: int
    headers: CIMultiDictProxy[str]
    content: aiohttp.StreamReader
    connection: Connection

    async def read(self, limit: int) -> bytes:
        """Return the body; of a body larger than *limit* bytes, the first part that exceeds them.

        This closes the response.
        """
        chunks, size = [], 0
        try:
            if self.content.is_eof():  # a small body arrives with the headers
                chunks.append(self.content.read_nowait())
            else:
                while chunk := await self.content.readany():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > limit:
                        self.abort()
                        break
        finally:
            self.connection.release()  # the pool closes it unless the body was read to its end
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def abort(self) -> None:
        """Close the connection at once, without the closing handshake of TLS."""
        if self.connection.transport is not None:
            self.connection.transport.abort()
        self.connection.close()
