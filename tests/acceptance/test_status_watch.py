"""`natsctl status -w` shows what changes: drawn in place on a terminal, else one part a change."""

import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from pathlib import Path

from tests.support.cli.natsctl_command import LIMIT_S, Natsctl
from tests.support.eventually import eventually

GREETINGS = ("run", "-c", "controllers.greetings:Greetings")
SYNCING = "primaries listed, syncing"


async def test_a_terminal_is_redrawn_and_restored(natsctl: Natsctl, folder: Path) -> None:
    own_end, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    before, drawn = termios.tcgetattr(other_end), bytearray()
    asyncio.get_running_loop().add_reader(own_end, lambda: drawn.extend(os.read(own_end, 65_536)))
    async with natsctl.running(*GREETINGS) as daemon:
        await daemon.logged(SYNCING)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "natsctl", "status", "-w", "-o", "wide"),
            cwd=folder,
            env=natsctl.environ,
            stdin=other_end,
            stdout=other_end,
            stderr=other_end,
        )
        try:
            await eventually(lambda: b"CONTROLLER" in drawn and b"syncing" in drawn)
            assert await daemon.ends(signal.SIGTERM) == 0
            await eventually(lambda: b"down" in drawn, within_s=LIMIT_S)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            asyncio.get_running_loop().remove_reader(own_end)
    assert b"\x1b[2K" in drawn  # the lines of before are erased, not repeated
    assert termios.tcgetattr(other_end) == before
    os.close(own_end)
    os.close(other_end)
