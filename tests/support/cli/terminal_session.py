"""A user at a terminal: types keys, and reads what a program writes."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.support.eventually import eventually

LIMIT_S = 90.0
CONTROLS = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")


class TerminalSession:
    """A program on a pseudo-terminal of 80 columns and 24 lines."""

    def __init__(self, process: asyncio.subprocess.Process, own_end: int, other_end: int) -> None:
        self.process = process
        self._own_end, self._other_end = own_end, other_end
        self._output = bytearray()
        self._seen = 0
        self.before = termios.tcgetattr(other_end)

    def read(self) -> None:
        """Read what the program has written."""
        with suppress(BlockingIOError, OSError):
            self._output += os.read(self._own_end, 65_536)

    @property
    def output(self) -> str:
        """Everything that the program wrote."""
        return self._output.decode(errors="replace")

    @property
    def settings(self) -> list[object]:
        """The settings of the terminal now."""
        return termios.tcgetattr(self._other_end)

    def type(self, keys: str) -> None:
        """Type keys; texts that were drawn before do not count for `shows` any more."""
        self._seen = len(self._output)
        os.write(self._own_end, keys.encode())

    async def shows(self, *texts: str) -> None:
        """Wait until the program has drawn all texts since the last keys."""

        def are_drawn() -> bool:
            drawn = CONTROLS.sub("", self._output[self._seen :].decode(errors="replace"))
            assert self.process.returncode is None, self.output
            return all(text in drawn for text in texts)

        await eventually(are_drawn, within_s=LIMIT_S)

    async def ends(self) -> int:
        """Wait until the program ends, and return its status."""
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


@asynccontextmanager
async def at_a_terminal(
    *words: str, folder: Path, environ: Mapping[str, str]
) -> AsyncIterator[TerminalSession]:
    """Run natsctl on a terminal during the context, and kill it at the end if it still runs."""
    own_end, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    os.set_blocking(own_end, False)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "natsctl", *words),
        cwd=folder,
        env={**environ, "TERM": "xterm-256color"},
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
    )
    session = TerminalSession(process, own_end, other_end)
    loop = asyncio.get_running_loop()
    loop.add_reader(own_end, session.read)
    try:
        yield session
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(own_end)
        os.close(own_end)
        os.close(other_end)
