"""TCP connections that are aborted when they are closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def opened(*where: Any, **how: Any) -> AsyncIterator[tuple[Any, Any]]:
    """Open a connection, and abort it at the end."""
    reader, writer = await asyncio.open_connection(*where, **how)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
