"""Reads the body of a response, and closes a response whose body is not read."""

import aiohttp


def abort(response: aiohttp.ClientResponse) -> None:
    """Close the connection at once, without the closing handshake of TLS."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body; of a body larger than *limit* bytes, the first part that exceeds them."""
    chunks, size = [], 0
    while chunk := await response.content.readany():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            abort(response)
            break
    return b"".join(chunks)
