"""A controller that writes one byte for each sync, to count those of several processes."""

import os

from natsctl import Controller, primary
from tests.benchmarks.support.dataset import ITEMS

DONE = "COUNTED_DONE"
"""The variable with the path of the file that grows by a byte for each sync."""


class Counting(Controller):
    """Reads its object, and counts."""

    items = primary(ITEMS)
    workers = 1

    async def start(self) -> None:
        self.file = os.open(os.environ[DONE], os.O_WRONLY | os.O_APPEND)

    async def sync_handler(self, key: str) -> float | None:
        if self.items.get(key) is not None:
            os.write(self.file, b".")
        return None
