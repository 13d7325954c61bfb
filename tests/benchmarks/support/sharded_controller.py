"""A controller whose syncs wait like those of a slow API; it records the time of each sync."""

import asyncio
import os
import time

from natsctl import Controller, primary
from tests.benchmarks.support.dataset import ITEMS

DONE = "SHARDED_DONE"
"""The variable with the path of the file that receives the time of each sync, one per line."""

SYNC_S = 0.005


class Sharded(Controller):
    """Has one worker, so that more processes and not more workers raise the rate."""

    items = primary(ITEMS)
    workers = 1

    async def start(self) -> None:
        self.file = os.open(os.environ[DONE], os.O_WRONLY | os.O_APPEND)

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.sleep(SYNC_S)
        os.write(self.file, f"{time.monotonic():.6f}\n".encode())
        return None
