"""The guided tour ends with success, and the commands that it suggests work."""

import io
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from controllers.demo import offer_console
from tests.support.cli import forked_command
from tests.support.cli.doc_page import RunCommand
from tests.support.cli.doc_reader import Reader
from tests.support.cli.forked_process import FORKS
from tests.support.cli.natsctl_command import ROOT
from tests.support.servers.nats_server import NatsServer

LEADS_ITS_TERMINAL = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
TOUR = (  # its arguments are the command that runs natsctl
    f"{LEADS_ITS_TERMINAL}import controllers.demo as tour; tour.NATSCTL = sys.argv[1:]; tour.main()"
)


class Tour(NamedTuple):
    """A tour at a terminal that has ended, and the questions that it did not ask."""

    status: int
    output: str
    unasked: list[str]


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Tour:
    """Take the tour: let it open the console, and end the console with Ctrl-C."""
    own_end, other_end = pty.openpty()
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            TOUR,
            sys.executable,
            "-IS",
            str(forked_command.__file__),
            "natsctl",
        ],
        cwd=tmp_path_factory.mktemp("tour"),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BROWSER": "true",
            forked_command.VARIABLE: FORKS.address,
        },
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        start_new_session=True,
    ) as process:
        os.close(other_end)
        answers = {"Open the console?": "y\n", "token=": "\x03"}
        try:
            output = converse(own_end, answers)
        except BaseException:
            process.kill()
            raise
    return Tour(process.returncode, output, list(answers))


def converse(terminal: int, answers: dict[str, str]) -> str:
    """Answer each question once, and return the output when the last process has ended."""
    output = b""
    with os.fdopen(terminal, "r+b", buffering=0) as opened, suppress(OSError):  # EIO is the end
        while part := opened.read(65_536):
            output += part
            for question in [text for text in answers if text.encode() in output]:
                opened.write(answers.pop(question).encode())
    return output.decode().replace("\r\n", "\n")


def test_the_tour_ends_with_success_and_collects_an_orphan(tour: Tour) -> None:
    assert tour.status == 0, tour.output
    assert "owner nobody does not exist, and no delete marker proves its deletion" in tour.output
    assert "Route.routes/stray deleted" in tour.output


async def test_the_suggested_commands_of_the_tour_work(
    tour: Tour, folder: Path, nats_server: NatsServer
) -> None:
    _, _, after = tour.output.partition("Try this next:")
    commands = [line.strip() for line in after.splitlines() if line.startswith("    natsctl ")]
    commands.remove("natsctl console")  # a test of the console runs it
    starts = [line for line in commands if line.startswith("natsctl run ")]
    assert len(starts) == 2
    typed = [line for line in commands if line not in starts]
    for start, lines in ((starts[0], typed), (starts[1], typed[:2])):
        async with Reader(folder, nats_server.url, {}) as reader:
            await reader.run(RunCommand(0, start, "… primaries listed, syncing …"))
            for line in lines:
                shown = "…shop…" if " -w " in line else "…"
                await reader.run(RunCommand(0, line, shown))


def test_the_tour_opens_the_console_at_a_terminal(tour: Tour) -> None:
    assert tour.unasked == [], tour.output


def test_the_tour_asks_no_question_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    offer_console()
    assert capsys.readouterr().out == ""
