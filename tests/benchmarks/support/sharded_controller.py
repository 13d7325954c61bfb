"""A controller whose syncs wait, as those that talk to something slow do; it notes each one."""

import asyncio
import os
import time

from natsctl import Controller, primary
from tests.benchmarks.support.dataset import ITEMS

DONE = "SHARDED_DONE"
"""The variable that names the file where the time of each sync goes, a line each."""

SYNC_S = 0.005


class Sharded(Controller):
    """One worker in each process, so that what is measured is what another process adds."""

    items = primary(ITEMS)
    workers = 1

    async def start(self) -> None:
        self.file = os.open(os.environ[DONE], os.O_WRONLY | os.O_APPEND)

    async def sync_handler(self, key: str) -> float | None:
        await asyncio.sleep(SYNC_S)
        os.write(self.file, f"{time.monotonic():.6f}\n".encode())
        return None
