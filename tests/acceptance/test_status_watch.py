"""`natsctl status -w` shows what changes: drawn in place on a terminal, else one part a change."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from pathlib import Path

from tests.support.cli.natsctl_command import LIMIT_S, Natsctl
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

GREETINGS = ("run", "-c", "controllers.greetings:Greetings")
SYNCING = "primaries listed, syncing"


async def test_a_pipe_gets_each_state_once(natsctl: Natsctl) -> None:
    async with natsctl.running(*GREETINGS) as daemon:
        await daemon.logged(SYNCING)
        async with natsctl.running("status", "-w") as watching:
            await watching.logged("greetings")
            assert "syncing" in watching.log
            assert await daemon.ends(signal.SIGTERM) == 0
            await watching.logged("no daemon runs it")
            assert await watching.ends(signal.SIGINT) == 130
    headings = [line for line in watching.log.splitlines() if line.startswith("CONTROLLER")]
    states = watching.log.split("CONTROLLER")[1:]
    assert len(headings) == len(states) == len(set(states))


async def test_watched_events_are_lines_of_json(natsctl: Natsctl) -> None:
    async with natsctl.running(*GREETINGS) as daemon:
        await daemon.logged(SYNCING)
        await natsctl.done("put", "greetings/shop", "spec: {text: hi}")
        async with natsctl.running("events", "-w", "-o", "json") as watching:
            await watching.logged('"key":"shop"')  # before or after the command began
            await natsctl.done("put", "greetings/market", "spec: {text: hi}")
            await watching.logged('"key":"market"')
            events = [json.loads(line) for line in watching.log.splitlines()]
    assert [event["key"] for event in events] == ["shop", "market"]


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


async def test_a_server_that_goes_away_is_unknown_and_not_good(
    natsctl: Natsctl, nats_server: NatsServer
) -> None:
    async with natsctl.running("status", "-w", "--timeout", "1") as watching:
        await watching.logged("unknown: no daemon answers")
        nats_server.kill()
        await watching.logged("unknown: not connected to NATS")
        await nats_server.start()
        await watching.logged("unknown: no daemon answers", times=2)


async def test_only_a_table_is_redrawn(natsctl: Natsctl) -> None:
    refused = await natsctl("status", "-w", "-o", "json")
    assert (refused.status, "--watch draws a table" in refused.err) == (2, True)
