"""Runs a private nats-server, and restarts controllers when their source files change."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from natsctl.errors import ConnectError
from natsctl.jetstream.options import NatsOptions
from natsctl.start_process import start_process
from natsctl.telemetry.hiding import enumerated
from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:  # importing it takes 11 MB
    from natsctl.jetstream.embedded import EmbeddedServer

log = get_logger(__name__)

DEFAULT_PORT = 4222
STOP_S = 30.0  # how long the program may take to stop before it's killed
SHOWN_MAX = 3  # changed files in a log line


@asynccontextmanager
async def private_server(
    store_dir: Path | None, port: int | None
) -> AsyncIterator["EmbeddedServer"]:
    """Run a private nats-server while the context lasts, and log its URL.

    Its data is in a folder that's deleted with the server, unless *store_dir* is given. Without a
    *port*, it's 4222 if that's free, so that `natsctl` finds the server without options. Otherwise,
    and with port 0, it's any free one. Raises the errors of `EmbeddedServer`.
    """
    from natsctl.jetstream.embedded import EmbeddedServer  # noqa: PLC0415 - see above

    async with AsyncExitStack() as stack:
        server = None
        if port is None and _is_free(DEFAULT_PORT):
            try:
                default = EmbeddedServer(store_dir, port=DEFAULT_PORT)
                server = await stack.enter_async_context(default)
            except ConnectError:
                if _is_free(DEFAULT_PORT):
                    raise
        if server is None:  # another program has that port, or was faster
            any_port = EmbeddedServer(store_dir, port=port or None)
            server = await stack.enter_async_context(any_port)
        hint = None if server.port == DEFAULT_PORT else f"export NATSCTL_SERVER={server.url}"
        log.info("private nats-server listens", url=server.url, hint=hint)
        yield server


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


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
    """Return options for a private server: the timeouts stay, the other options don't apply."""
    return NatsOptions(
        servers=servers,
        connect_timeout_s=options.connect_timeout_s,
        request_timeout_s=options.request_timeout_s,
    )


async def reloading(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
    """Run *command*, and restart it after every change of a Python file under *folder*.

    Runs until cancelled. The program is stopped with SIGTERM. A program that ends by itself, for
    example because of a syntax error, is started again after the next change. Its standard input is
    a pipe that ends when this process ends.
    """
    from watchfiles import PythonFilter, awatch  # noqa: PLC0415 - an extra

    changes: asyncio.Queue[set[str]] = asyncio.Queue()

    async def watch() -> None:
        async for batch in awatch(folder, watch_filter=PythonFilter()):
            changes.put_nowait({path for _, path in batch})

    watching = asyncio.create_task(watch(), name="watch of files")
    await asyncio.sleep(0)  # the watch begins before the program starts
    try:
        while not watching.done():
            changed = await _run(command, environ, changes)
            names = sorted(path.removeprefix(f"{folder}/") for path in changed)
            log.info("restarting after a change", files=enumerated(names, SHOWN_MAX))
        await watching
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


async def _run(
    command: Sequence[str], environ: Mapping[str, str], changes: "asyncio.Queue[set[str]]"
) -> set[str]:
    process = await start_process(*command, stdin=asyncio.subprocess.PIPE, env=environ)
    changed = asyncio.create_task(changes.get())
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait((changed, ended), return_when=asyncio.FIRST_COMPLETED)
        if not changed.done():
            hint = "save a change to start the controllers again"
            log.error("the controllers ended", status=ended.result(), hint=hint)
        return await changed
    finally:
        changed.cancel()
        if not ended.done():
            process.terminate()
            await asyncio.wait((ended,), timeout=STOP_S)
        if not ended.done():
            log.warning("killing controllers that did not stop in time", timeout_s=STOP_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait((ended,))
