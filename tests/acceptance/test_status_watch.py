"""`natsctl status -w` shows what changes: drawn in place on a terminal, else one part a change."""

import os
import signal
from pathlib import Path

from tests.support.cli.natsctl_command import Natsctl
from tests.support.cli.terminal_session import at_a_terminal
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


async def test_a_terminal_is_redrawn_and_restored(folder: Path, nats_server: NatsServer) -> None:
    natsctl = Natsctl(folder, nats_server.url)
    environ = {**natsctl.environ, "PATH": os.environ["PATH"]}
    words = ("status", "-w", "-o", "wide")
    async with natsctl.running(*GREETINGS) as daemon:
        await daemon.logged(SYNCING)
        async with at_a_terminal(*words, folder=folder, environ=environ) as session:
            await session.shows("CONTROLLER", "greetings", "syncing")
            assert await daemon.ends(signal.SIGTERM) == 0
            await session.shows("down")
            session.process.send_signal(signal.SIGINT)
            assert await session.ends() == 130
            assert session.settings == session.before


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
