"""The guided tour ends with success, and the commands that it suggests work."""

import asyncio
import fcntl
import os
import pty
import sys
import termios
from pathlib import Path

from tests.support.cli.doc_page import RunCommand
from tests.support.cli.doc_reader import Reader
from tests.support.cli.natsctl_command import LIMIT_S, ROOT
from tests.support.servers.nats_server import NatsServer


async def tour(folder: Path) -> str:
    """Run the tour and return its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controllers.demo"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(2 * LIMIT_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_the_tour_ends_with_success_and_its_suggested_commands_work(
    folder: Path, nats_server: NatsServer
) -> None:
    output = await tour(folder)
    assert "owner nobody does not exist, and no delete marker proves its deletion" in output
    assert "Route.routes/stray deleted" in output
    _, _, after = output.partition("Try this next:")
    commands = [line.strip() for line in after.splitlines() if line.startswith("    natsctl ")]
    commands.remove("natsctl console")  # a test of the console runs it
    starts = [line for line in commands if line.startswith(("natsctl run ", "natsctl dev "))]
    assert len(starts) == 2
    for start in starts:
        async with Reader(folder, nats_server.url, {}) as reader:
            await reader.run(RunCommand(0, start, "… primaries listed, syncing …"))
            for line in commands:
                if line not in starts:
                    once = " --once" if " watch " in line else ""
                    await reader.run(RunCommand(0, line + once, "…"))


async def test_the_tour_opens_the_console_at_a_terminal(folder: Path) -> None:
    """Answer the question in a terminal, and end the console with Ctrl-C."""
    own_end, other_end = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controllers.demo"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "BROWSER": "true"},
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(other_end)
    output = bytearray()
    answers = {b"Open the console?": b"y\n", b"token=": b"\x03"}
    async with asyncio.timeout(2 * LIMIT_S):
        while part := await asyncio.to_thread(read, own_end):
            output += part
            for question in [text for text in answers if text in output]:
                os.write(own_end, answers.pop(question))
        status = await process.wait()
    os.close(own_end)
    assert (status, answers) == (0, {}), output.decode()
    assert b"Try this next:" in output


def read(terminal: int) -> bytes:
    """Return the next output, or nothing at the end."""
    try:
        return os.read(terminal, 65_536)
    except OSError:  # EIO is the end
        return b""
