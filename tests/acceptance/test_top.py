"""`natsctl top` shows controllers and failing keys live on a terminal."""

import re
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.cli.natsctl_command import Natsctl, Running
from tests.support.cli.terminal_session import TerminalSession, at_a_terminal
from tests.support.eventually import eventually

Daemon = Callable[..., Awaitable[Running]]

JOBS = """
from natsctl import Controller, Object, kv, primary

class Job(Object, frozen=True):
    spec: str = ""

class Jobs(Controller):
    jobs = primary(kv(Job, bucket="jobs"))
    syncs = 0

    async def sync_handler(self, key):
        self.syncs += 1
        if self.jobs.get(key).spec == "fail":
            raise ValueError("no luck today")
"""

SHOWN, HIDDEN = "\x1b[?1049h", "\x1b[?1049l"  # the screen of full-screen programs
CURSOR = "\x1b[?25h"  # shows the cursor again
ENTER = "\r"
COLOURS = {*range(30, 39), *range(40, 49), *range(90, 98), *range(100, 108)}


@pytest.fixture
async def failing(natsctl: Natsctl, daemon: Daemon, folder: Path) -> Natsctl:
    """A controller that fails to sync one key."""
    (folder / "jobs.py").write_text(JOBS)
    await daemon("jobs:Jobs")
    await natsctl.done("put", "jobs", "broken", "spec: fail")

    async def fails() -> bool:
        return bool((await natsctl("status", "-o", "json")).json[0]["failing"])

    await eventually(fails)
    return natsctl


async def test_a_user_finds_a_failing_key_and_resyncs_it(failing: Natsctl) -> None:
    async with at_a_terminal("top", folder=failing.folder, environ=failing.environ) as terminal:
        await terminal.shows("jobs", "syncing", "ValueError: no luck today")
        terminal.type(ENTER)
        await terminal.shows("controller jobs", "broken", "failing")
        terminal.type(ENTER)
        await terminal.shows("broken of jobs, in", "after", "failures in a row")
        terminal.type("r")
        await terminal.shows("1 key of jobs queued in")
        await quits(terminal)
    assert SHOWN in terminal.output

    async def is_recorded() -> bool:
        explained = (await failing("explain", "broken", "-o", "json")).json[0]
        assert "manual" in {sync["operation"] for sync in explained["syncs"]}
        messages = [e["message"] for e in explained["events"] if e["reason"] == "TopResync"]
        assert len(messages) == 1
        return "in natsctl top: 1 key of jobs queued in" in messages[0]

    await eventually(is_recorded)


async def quits(terminal: TerminalSession) -> None:
    """Quit; the terminal is as it was before."""
    terminal.type("q")
    assert await terminal.ends() == 0
    assert terminal.settings == terminal.before
    await eventually(lambda: HIDDEN in terminal.output and CURSOR in terminal.output)


async def test_without_colours_no_colour_is_written(failing: Natsctl) -> None:
    environ = {**failing.environ, "NO_COLOR": "1"}
    async with at_a_terminal("top", folder=failing.folder, environ=environ) as terminal:
        await terminal.shows("jobs", "ValueError: no luck today")
        await quits(terminal)
    styles = re.findall(r"\x1b\[([0-9;]+)m", terminal.output)
    assert styles
    assert not COLOURS & {int(number) for style in styles for number in style.split(";")}


async def test_a_signal_restores_the_terminal(failing: Natsctl) -> None:
    async with at_a_terminal("top", folder=failing.folder, environ=failing.environ) as terminal:
        await terminal.shows("jobs")
        terminal.process.send_signal(signal.SIGTERM)
        await terminal.ends()
        assert terminal.settings == terminal.before
        await eventually(lambda: HIDDEN in terminal.output)


async def test_without_a_terminal_the_command_names_another_one(natsctl: Natsctl) -> None:
    result = await natsctl("top")
    assert result.status == 2
    assert "natsctl top needs a terminal: natsctl status shows the same once" in result.err


async def test_a_missing_extra_is_reported_with_the_install_command(folder: Path) -> None:
    (folder / "textual.py").write_text('raise ModuleNotFoundError("x", name="textual")')
    environ = {**Natsctl(folder).environ, "PYTHONPATH": f"{folder}:{Path.cwd()}"}
    async with at_a_terminal("top", folder=folder, environ=environ) as terminal:
        assert await terminal.ends() == 2
        await eventually(lambda: "pip install 'natsctl[console]'\r\n" in terminal.output)
    assert "natsctl top needs the extra console (textual is missing)" in terminal.output
    assert terminal.output.count("\n") == 1
