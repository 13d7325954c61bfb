"""Which objects were deleted, as far as their store remembers."""

import asyncio
import logging
from collections.abc import Callable

from natsctl.core.queue.retry import backoff
from natsctl.errors import StoreError
from natsctl.model.store import Deleted, Listed, Store

log = logging.getLogger(__name__)

AGAIN_S, AGAIN_MAX_S = 0.1, 5.0


async def deleted(store: Store, wanted: Callable[[str], bool]) -> list[str]:
    """Return the *wanted* keys whose newest state is a deletion.

    Lists the store once, and again, later and later, until that succeeds.
    """
    failures = 0
    while True:
        try:
            return await _listed(store, wanted)
        except StoreError as error:
            failures += 1
            log.warning("the deletions of %s cannot be listed yet: %s", store.kind.name, error)
            await asyncio.sleep(backoff(failures, base_s=AGAIN_S, limit_s=AGAIN_MAX_S))


async def _listed(store: Store, wanted: Callable[[str], bool]) -> list[str]:
    found: dict[str, None] = {}
    async with store.watch() as events:
        async for event in events:
            if isinstance(event, Listed):
                break
            if isinstance(event, Deleted) and wanted(event.key):
                found[event.key] = None
    return list(found)
