"""Lists the keys of a store whose newest state is a delete marker."""

import asyncio
from collections.abc import Callable

from natsctl.core.retry import backoff
from natsctl.errors import StoreError
from natsctl.model.store import Deleted, Listed, Store
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

RETRY_S, RETRY_MAX_S = 0.1, 5.0


async def deleted_keys(store: Store, wanted: Callable[[str], bool]) -> list[str]:
    """Return the *wanted* keys whose newest state is a deletion.

    A list that fails is repeated with backoff until it succeeds.
    """
    failures = 0
    while True:
        try:
            return await _listed(store, wanted)
        except StoreError as error:
            failures += 1
            log.warning("cannot list deletions yet", kind=store.kind.name, error=error)
            await asyncio.sleep(backoff(failures, base_s=RETRY_S, limit_s=RETRY_MAX_S))


async def _listed(store: Store, wanted: Callable[[str], bool]) -> list[str]:
    keys: dict[str, None] = {}
    async with store.watch() as events:
        async for event in events:
            if isinstance(event, Listed):
                break
            if isinstance(event, Deleted) and wanted(event.key):
                keys[event.key] = None
    return list(keys)
