"""Ctrl-C ends a simulation in several processes, and prints the runs so far."""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cli.natsctl_command import LIMIT_S, ROOT
from tests.support.eventually import eventually

MARKING = """
import multiprocessing
import time
from pathlib import Path

from tests.support.controllers.faulty import FixedNames

if multiprocessing.parent_process() is not None:
    Path("imports").touch()
    while not Path("go").exists():
        time.sleep(0.01)


class Marking(FixedNames):
    async def make(self, key, shop):
        Path("syncs").touch()
        await super().make(key, shop)
"""
# a terminal's Ctrl-C reaches each process of its group; a shell may have set SIGINT to be ignored
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "natsctl", *sys.argv[1:]])
"""

NOTHING_FOUND = r"interrupted: nothing was found in (1 run|\d+ runs) of marking\n"


@pytest.fixture
async def simulating(tmp_path: Path) -> AsyncIterator[Process]:
    """A simulation of a million runs in two processes, which wait in the import of their module."""
    (tmp_path / "marking.py").write_text(MARKING)
    (tmp_path / "shops.yaml").write_text("{bucket: shops, key: a, spec: {}}")
    words = (
        "simulate",
        "-c",
        "marking:Marking",
        "-f",
        "shops.yaml",
        "--runs",
        "1000000",
        "-n",
        "2",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", START, *words),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def output_of(process: Process) -> str:
    """Return what the process printed until its end, which Ctrl-C causes."""
    async with asyncio.timeout(LIMIT_S):
        out, errors = await process.communicate()
    ending = process.returncode, errors.decode()
    assert ending == (128 + signal.SIGINT, "natsctl: interrupted\n")
    return out.decode()


async def test_ctrl_c_prints_how_many_runs_found_nothing(
    simulating: Process, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    await eventually((tmp_path / "syncs").exists, within_s=LIMIT_S)
    os.killpg(simulating.pid, signal.SIGINT)
    assert re.fullmatch(NOTHING_FOUND, await output_of(simulating))


async def test_ctrl_c_while_the_processes_start_shows_no_traceback(
    simulating: Process, tmp_path: Path
) -> None:
    await eventually((tmp_path / "imports").exists, within_s=LIMIT_S)
    os.killpg(simulating.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    # a process may end a run before it handles the interrupt
    assert re.fullmatch(NOTHING_FOUND, await output_of(simulating))
