"""Ctrl-C ends a simulation in several processes, and prints the runs so far."""

import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cli.natsctl_command import LIMIT_S, Natsctl, Running
from tests.support.cli.process_tree import descendants
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
NOTHING_FOUND = (
    r"interrupted: nothing was found in (1 run|\d+ runs) of marking\nnatsctl: interrupted\n"
)


@pytest.fixture
async def simulating(folder: Path) -> AsyncIterator[Running]:
    """A simulation of a million runs in two processes, which wait in the import of their module."""
    (folder / "marking.py").write_text(MARKING)
    (folder / "shops.yaml").write_text("{bucket: shops, key: a, spec: {}}")
    options = ("-c", "marking:Marking", "-f", "shops.yaml", "--runs", "1000000", "-n", "2")
    async with Natsctl(folder).running("simulate", *options) as running:
        yield running


def interrupt(running: Running) -> None:
    """Send Ctrl-C to each process, as a terminal does."""
    for pid in (running.process.pid, *descendants(running.process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)


async def ends_without_finding(running: Running) -> None:
    assert await running.ends() == 128 + signal.SIGINT
    assert re.fullmatch(NOTHING_FOUND, running.log)


async def test_ctrl_c_prints_how_many_runs_found_nothing(simulating: Running, folder: Path) -> None:
    (folder / "go").touch()
    await eventually((folder / "syncs").exists, within_s=LIMIT_S)
    interrupt(simulating)
    await ends_without_finding(simulating)


async def test_ctrl_c_while_the_processes_start_shows_no_traceback(
    simulating: Running, folder: Path
) -> None:
    await eventually((folder / "imports").exists, within_s=LIMIT_S)
    interrupt(simulating)
    (folder / "go").touch()
    await ends_without_finding(simulating)  # a process may end a run before it is interrupted
