"""A process with a controller that says how much memory it has, before and after: one line each.

`python -m tests.benchmarks.forgetting URL COUNT`: the first line comes when it has started, the
second when COUNT keys have been made and deleted.
"""

import asyncio
import gc
import sys
from pathlib import Path

from natsctl import Controller, ControllerRuntime, connect, primary
from tests.benchmarks.data import ITEMS, key

SETTLE_S = 2.0


class Forgetting(Controller):
    """Reads every item and makes nothing."""

    items = primary(ITEMS)

    def __init__(self, last: str) -> None:
        self.last_gone = asyncio.Event()
        self._last = last

    async def sync_handler(self, key: str) -> None:
        if self.items.get(key) is None and key == self._last:
            self.last_gone.set()


def resident() -> int:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) * 1024


async def main(url: str, last: str) -> None:
    async with connect(url) as nats:
        controller = Forgetting(last)
        runtime = ControllerRuntime(controller, nats=nats)
        async with asyncio.TaskGroup() as group:
            group.create_task(runtime.run())
            await runtime.synced.wait()
            print(resident(), flush=True)
            await controller.last_gone.wait()
            await asyncio.sleep(SETTLE_S)
            print(resident(), flush=True)
            runtime.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], key(int(sys.argv[2]) - 1)))
