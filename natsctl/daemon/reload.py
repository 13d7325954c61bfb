"""Running a program anew whenever its source changes."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from watchfiles import PythonFilter, awatch

log = logging.getLogger(__name__)

STOP_S = 30.0  # how long the program may take to stop before it is killed
SHOWN_MAX = 3


async def reloading(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> None:
    """Keep *command* running as the Python files under *folder* are, until cancelled.

    It is stopped (SIGTERM) and started again after every change. One that ends by itself, for
    example by a syntax error, is started again after the next change. Its standard input is a
    pipe from here, whose end tells it that this process is gone.
    """
    changes: asyncio.Queue[set[str]] = asyncio.Queue()
    watching = asyncio.create_task(_watch(folder, changes), name="watch of files")
    await asyncio.sleep(0)  # it watches from here on
    try:
        while not watching.done():
            changed = await _run(command, environ, changes)
            log.info("%s changed: starting again", _shown(changed, folder))
        await watching
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


async def _watch(folder: Path, changes: "asyncio.Queue[set[str]]") -> None:
    async for found in awatch(folder, watch_filter=PythonFilter()):
        changes.put_nowait({path for _, path in found})


async def _run(
    command: Sequence[str], environ: Mapping[str, str], changes: "asyncio.Queue[set[str]]"
) -> set[str]:
    """Run the program until something changes; return what did."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, start_new_session=True, env=environ
    )
    changed = asyncio.create_task(changes.get())
    ended = asyncio.create_task(process.wait())
    try:
        await asyncio.wait((changed, ended), return_when=asyncio.FIRST_COMPLETED)
        if not changed.done():
            log.error(
                "the controllers ended (status %d): save a change to start again", ended.result()
            )
        return await changed
    finally:
        changed.cancel()
        await _stop(process, ended)


async def _stop(process: asyncio.subprocess.Process, ended: "asyncio.Task[int]") -> None:
    if not ended.done():
        process.terminate()
        await asyncio.wait((ended,), timeout=STOP_S)
    if not ended.done():
        log.warning("the controllers did not stop within %g s and are killed", STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.wait((ended,))


def _shown(changed: Iterable[str], folder: Path) -> str:
    names = sorted(os.path.relpath(path, folder) for path in changed)
    more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
    return ", ".join(names[:SHOWN_MAX]) + more
