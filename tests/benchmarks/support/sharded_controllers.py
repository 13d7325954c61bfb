"""Controllers that write each of their syncs to a file, to count those of several processes."""

import asyncio
import os
import time

from natsctl import Controller, primary
from tests.benchmarks.support.dataset import ITEMS

DONE = "SHARDED_DONE"
"""The variable with the path of the file."""

SYNC_S = 0.005


class Counting(Controller):
    """Reads its object, and writes a byte."""

    items = primary(ITEMS)
    workers = 1  # so more processes and not more workers raise the rate

    async def start(self) -> None:
        self.file = os.open(os.environ[DONE], os.O_WRONLY | os.O_APPEND)

    async def sync_handler(self, key: str) -> float | None:
        if self.items.get(key) is not None:
            os.write(self.file, b".")
        return None


class Waiting(Counting):
    """Waits as for a slow API, and writes a line with the time of each sync."""

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.sleep(SYNC_S)
        os.write(self.file, f"{time.monotonic():.6f}\n".encode())
        return None
