"""Starts a program in a new session, and kills it if the start is cancelled."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

END_S = 5.0  # the wait for the end of a killed program


async def start_process(*words: str, **options: Any) -> asyncio.subprocess.Process:
    """Start a program, with the options of `asyncio.create_subprocess_exec`.

    A call that is cancelled kills the program and its children. (asyncio alone may wait forever for
    the end of a program whose start is cancelled.) Raises `OSError` if the program can't be run.
    """
    create = asyncio.create_subprocess_exec(*words, start_new_session=True, **options)
    starting = asyncio.create_task(create)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdin is not None:
            process.stdin.close()
        await asyncio.wait((asyncio.create_task(process.communicate()),), timeout=END_S)
        raise
