"""`start_process` ends a program whose start is cancelled."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from natsctl.start_process import start_process
from tests.support.eventually import eventually

TURNS = 8  # of the event loop; a start takes fewer
END_S = 60.0
SCRIPT = "echo $$ >> pids; sleep 3600 & echo $! >> pids; wait"
PIPE = asyncio.subprocess.PIPE


def is_alive(pid: int) -> bool:
    """Return whether a process runs, and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def have_ended(pids: list[str]) -> bool:
    return not any(is_alive(int(pid)) for pid in pids)


async def test_a_start_that_is_cancelled_ends_with_its_program(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    for turns in range(TURNS):
        starting = asyncio.create_task(
            start_process("/bin/sh", "-c", SCRIPT, cwd=tmp_path, stdin=PIPE, stdout=PIPE)
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        if not starting.done():
            starting.cancel()
        await asyncio.wait((starting,), timeout=END_S)
        if starting.cancelled():
            noted = pids.read_text().split() if pids.exists() else []
            await eventually(partial(have_ended, noted))
        else:
            process = starting.result()
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate(b"")


async def test_a_program_that_does_not_exist_raises_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await start_process("no-such-program")
