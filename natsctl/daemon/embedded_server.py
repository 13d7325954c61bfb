"""Runs a private nats-server together with the controllers of one process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from natsctl.jetstream.options import NatsOptions
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:  # importing it takes 11 MB
    from natsctl.jetstream.embedded import EmbeddedServer

log = get_logger(__name__)

DEFAULT_PORT = 4222


@asynccontextmanager
async def private_server(
    store_dir: Path | None, port: int | None
) -> AsyncIterator["EmbeddedServer"]:
    """Run a private nats-server while the context lasts, and log its URL.

    Args:
        store_dir: the folder of its data; None for a folder that is deleted with the server.
        port: its port, 0 for any free port. None means 4222 if that port is free, so that `natsctl`
            finds the server without options; otherwise any free port.

    Raises the errors of `EmbeddedServer`.
    """
    from natsctl.jetstream.embedded import EmbeddedServer  # noqa: PLC0415 - see above

    if port is None and _is_free(DEFAULT_PORT):
        port = DEFAULT_PORT
    async with EmbeddedServer(store_dir, port=port or None) as server:
        has_default_port = server.url.endswith(f":{DEFAULT_PORT}")
        hint = None if has_default_port else f"export NATSCTL_SERVER={server.url}"
        log.info("private nats-server listens", url=server.url, hint=hint)
        yield server


async def while_it_runs(server: "EmbeddedServer", work: Coroutine[None, None, None]) -> None:
    """Run *work*; raises `ConnectError` if the server ends before the work."""
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


def private_options(options: NatsOptions, *servers: str) -> NatsOptions:
    """Return options for a private server: the timeouts stay, the other options do not apply."""
    return NatsOptions(
        servers=servers,
        connect_timeout_s=options.connect_timeout_s,
        request_timeout_s=options.request_timeout_s,
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
