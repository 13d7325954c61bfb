"""A process with a controller that prints its resident bytes, one number per line.

The first line is printed after the start, and another after the last key of each batch is deleted.

`python -m tests.benchmarks.support.marker_process URL BATCH` runs until it is killed.
"""

import asyncio
import gc
import sys
from pathlib import Path

from natsctl import Controller, ControllerRuntime, connect, primary
from tests.benchmarks.support.dataset import ITEMS


class Reading(Controller):
    """Reads every item and has no secondaries."""

    items = primary(ITEMS)

    def __init__(self, batch: int) -> None:
        self._batch = batch

    async def sync_handler(self, key: str) -> None:
        number = int(key.rpartition("-")[2])
        if self.items.get(key) is None and number % self._batch == self._batch - 1:
            print(resident(), flush=True)


def resident() -> int:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) * 1024


async def main(url: str, batch: int) -> None:
    async with connect(url) as nats:
        runtime = ControllerRuntime(Reading(batch), nats=nats)
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.run())
            await runtime.synced.wait()
            print(resident(), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
