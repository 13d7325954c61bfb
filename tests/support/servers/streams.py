"""TCP connections that are aborted when they are closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def opened(*address: Any, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    reader, writer = await asyncio.open_connection(*address, **options)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
