"""The controller of the soak: it writes a secondary and a status for each primary.

Its metrics show the blocks that Python's allocator has in use after a garbage collection.
"""

import gc
import sys

from prometheus_client import Gauge

from natsctl import Controller, kv, primary, secondary
from tests.benchmarks.support.dataset import ITEMS, Item


class Copy(Item, frozen=True):
    """The secondary of an item."""


def _blocks() -> int:
    gc.collect()
    return sys.getallocatedblocks()


Gauge("soak_allocated_blocks", "Blocks that Python's allocator has in use.").set_function(_blocks)


class Soaking(Controller):
    """Applies a copy of every item, and updates the status of every fifth."""

    workers = 8
    items = primary(ITEMS)
    copies = secondary(kv(Copy, bucket="copies", history=1))

    async def sync_handler(self, key: str) -> float | None:
        item = self.items.get(key)
        if item is None:
            return None
        await self.copies.apply(key, Copy(spec=item.spec))
        if key.endswith(("1", "5")):
            await self.items.update_status(key, {"replicas": item.spec.replicas})
        return None
