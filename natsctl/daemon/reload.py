"""Restarts a program when its source files change."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from watchfiles import PythonFilter, awatch

from natsctl.start_process import start_process
from natsctl.telemetry.hiding import enumerated
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

STOP_S = 30.0  # how long the program may take to stop before it is killed
SHOWN_MAX = 3  # changed files in a log line


async def reloading(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
    """Run *command*, and restart it after every change of a Python file under *folder*.

    Runs until cancelled. The program is stopped with SIGTERM. A program that ends by itself, for
    example because of a syntax error, is started again after the next change. Its standard input is
    a pipe that ends when this process ends.
    """
    changes: asyncio.Queue[set[str]] = asyncio.Queue()
    watching = asyncio.create_task(_watch(folder, changes), name="watch of files")
    await asyncio.sleep(0)  # the watch begins before the program starts
    try:
        while not watching.done():
            changed = await _run(command, environ, changes)
            log.info("restarting after a change", files=_file_names(changed, folder))
        await watching
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


async def _watch(folder: Path, changes: "asyncio.Queue[set[str]]") -> None:
    async for batch in awatch(folder, watch_filter=PythonFilter()):
        changes.put_nowait({path for _, path in batch})


async def _run(
    command: Sequence[str], environ: Mapping[str, str], changes: "asyncio.Queue[set[str]]"
) -> set[str]:
    """Run the program until a file changes; return the paths of the changed files."""
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
        await _stop(process, ended)


async def _stop(process: asyncio.subprocess.Process, ended: "asyncio.Task[int]") -> None:
    if not ended.done():
        process.terminate()
        await asyncio.wait((ended,), timeout=STOP_S)
    if not ended.done():
        log.warning("killing controllers that did not stop in time", timeout_s=STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait((ended,))


def _file_names(changed: set[str], folder: Path) -> str:
    names = sorted(os.path.relpath(path, folder) for path in changed)
    return enumerated(names, SHOWN_MAX)
