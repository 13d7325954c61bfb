"""A private nats-server beside the controllers of one process."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

from natsctl.jetstream.embedded import EmbeddedServer

log = logging.getLogger(__name__)

USUAL_PORT = 4222


@asynccontextmanager
async def private_server(store_dir: Path | None, port: int | None) -> AsyncIterator[EmbeddedServer]:
    """Start a private nats-server, and say in the log how to reach it.

    Args:
        store_dir: where it keeps its data; None is a folder that goes with it.
        port: where it listens, 0 for any free port; None is 4222 where that is free, so that
            `natsctl` reaches it without being told where it is.

    Raises as `EmbeddedServer` does.
    """
    if port is None and _free(USUAL_PORT):
        port = USUAL_PORT
    async with EmbeddedServer(store_dir, port=port or None) as server:
        here = server.url.endswith(f":{USUAL_PORT}")
        advice = "" if here else f"; reach it with: export NATSCTL_SERVER={server.url}"
        log.info("a private nats-server listens on %s%s", server.url, advice)
        yield server


async def while_it_runs(server: EmbeddedServer, work: Coroutine[None, None, None]) -> None:
    """Run *work*; raises `ConnectError` where the server ends before it."""
    task, failed = asyncio.create_task(work), asyncio.create_task(server.failed())
    try:
        await asyncio.wait((task, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        failed.cancel()
        task.cancel()
        await asyncio.wait((task, failed))
    if failed.cancelled() or not task.cancelled():
        return task.result()
    raise failed.result()


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
