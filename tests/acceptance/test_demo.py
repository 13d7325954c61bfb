"""The guided tour: it comes to its end, and what it says to try next works."""

import asyncio
import os
import sys
from pathlib import Path

from tests.support.cli.doc_page import RunCommand
from tests.support.cli.doc_reader import Reader
from tests.support.cli.natsctl_command import LIMIT_S, ROOT
from tests.support.servers.nats_server import NatsServer


async def tour(folder: Path) -> str:
    """Take the tour, and return what it shows."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "controllers.demo"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(2 * LIMIT_S):
        shown, _ = await process.communicate()
    assert process.returncode == 0
    return shown.decode()


async def test_the_tour_ends_well_and_what_it_says_to_try_next_works(
    folder: Path, nats_server: NatsServer
) -> None:
    shown = await tour(folder)
    assert "owner nobody does not exist, and no delete marker proves its deletion" in shown
    assert "Route.routes/stray deleted" in shown
    _, _, after = shown.partition("Try this next:")
    typed = [line.strip() for line in after.splitlines() if line.startswith("    natsctl ")]
    starts = [line for line in typed if line.startswith(("natsctl run ", "natsctl dev "))]
    assert len(starts) == 2
    for start in starts:
        async with Reader(folder, nats_server.url, {}) as reader:
            await reader.run(RunCommand(0, start, "… primaries listed, syncing …"))
            for line in typed:
                if line not in starts:
                    once = " --once" if " watch " in line else ""
                    await reader.run(RunCommand(0, line + once, "…"))
