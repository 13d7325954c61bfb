"""The guided tour ends with success, and the commands that it suggests work."""

import asyncio
import os
import sys
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
    starts = [line for line in commands if line.startswith(("natsctl run ", "natsctl dev "))]
    assert len(starts) == 2
    for start in starts:
        async with Reader(folder, nats_server.url, {}) as reader:
            await reader.run(RunCommand(0, start, "… primaries listed, syncing …"))
            for line in commands:
                if line not in starts:
                    once = " --once" if " watch " in line else ""
                    await reader.run(RunCommand(0, line + once, "…"))
