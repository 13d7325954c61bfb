"""A supervisor restarts a process that dies, and ends all if a restart does not help."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from natsctl.daemon.observe.log_relay import LogRelay
from natsctl.daemon.processes import child
from natsctl.daemon.processes.child import Command
from natsctl.daemon.processes.supervisor import ProcessError, Supervisor
from natsctl.daemon.settings.settings import LogSettings
from natsctl.start_process import start_process
from tests.support.eventually import eventually

REPORTS = """
import json, os, signal, sys, time
options = json.loads(sys.argv[1])
def report(**fields):
    os.write(options["reports"], json.dumps(fields).encode() + b"\\n")
"""
SERVES = f"{REPORTS}\nreport(type='ChildFailed', status=2, texts=[options['socket']]); sys.exit(2)"
WORKS = f"{REPORTS}\nreport(type='Loaded'); report(type='Running'); time.sleep(3600)"
FAILS = (
    f"{REPORTS}\nreport(type='ChildFailed', status=2, texts=['natsctl: error: no']); sys.exit(2)"
)
ENDS_WHILE_IT_LOADS = f"{REPORTS}\nsys.exit(1)"
STOPS_WITH_AN_ERROR = f"""{REPORTS}
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
report(type='Loaded'); report(type='Running'); time.sleep(3600)
"""


def program(source: str) -> Command:
    return lambda options: [sys.executable, "-c", source, options.text()]


@asynccontextmanager
async def supervised(source: str, count: int = 2) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(count, LogRelay(LogSettings()), stop_timeout_s=1.0)
    task = asyncio.create_task(supervisor.run(program(source)))
    try:
        yield supervisor
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def error_of(source: str, *, serves: bool = True) -> ProcessError:
    supervisor = Supervisor(2, LogRelay(LogSettings()), stop_timeout_s=1.0, serves=serves)
    with pytest.raises(ProcessError) as raised:
        await supervisor.run(program(source))
    return raised.value


def all_run(supervisor: Supervisor) -> Callable[[], bool]:
    return lambda: all(state.socket is not None for state in supervisor.states())


async def test_all_processes_run() -> None:
    async with supervised(WORKS, count=3) as supervisor:
        await eventually(all_run(supervisor))
        assert [state.number for state in supervisor.states()] == [1, 2, 3]


@pytest.mark.parametrize(("serves", "name"), [(True, "1.sock"), (False, "")])
async def test_a_process_serves_pages_only_if_its_supervisor_needs_them(
    *, serves: bool, name: str
) -> None:
    error = await error_of(SERVES, serves=serves)
    assert [Path(text).name for text in error.texts] == [name]


async def test_a_killed_process_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with supervised(WORKS) as supervisor:
        await eventually(all_run(supervisor))
        second = re.search(r"process started process=2 pid=(\d+)", caplog.text)
        assert second is not None
        os.kill(int(second[1]), signal.SIGKILL)
        await eventually(lambda: supervisor.states()[1].restarts == 1)
        await eventually(all_run(supervisor))
    assert "process ended process=2 status=SIGKILL" in caplog.text
    assert supervisor.states()[0].restarts == 0


async def test_an_error_while_the_first_process_loads_ends_all_and_is_raised_once() -> None:
    error = await error_of(FAILS)
    assert (error.status, error.texts) == (2, ("natsctl: error: no",))


async def test_the_error_of_a_process_that_ends_before_it_is_observed_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start_late(*words: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start_process(*words, **options)
        await process.wait()
        return process

    monkeypatch.setattr(child, "start_process", start_late)
    error = await error_of(FAILS)
    assert (error.status, error.texts) == (2, ("natsctl: error: no",))


async def test_a_process_that_ends_before_it_works_ends_all() -> None:
    assert (await error_of(ENDS_WHILE_IT_LOADS)).status == 1


async def test_a_stop_that_fails_in_one_process_is_raised() -> None:
    with pytest.raises(ProcessError):
        async with supervised(STOPS_WITH_AN_ERROR) as supervisor:
            await eventually(all_run(supervisor))
