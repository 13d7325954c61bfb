"""Waiting until a cache shows what was written before now, by whoever it was."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from natsctl.core.cache.informer import Informer
from natsctl.core.task_group import together
from natsctl.errors import StoreError
from natsctl.model.store import Sequenced

log = logging.getLogger(__name__)

CATCH_UP_S = 5.0


async def catch_up(informers: Iterable[Informer[Any]], *, limit_s: float = CATCH_UP_S) -> None:
    """Wait until each cache has passed the newest write that its store's leader has now.

    So whoever leads from here on acts on nothing older than what the one before it wrote. A store
    that cannot say how far it is, as a cluster cannot, is not waited for. What is not there within
    *limit_s* is said in the log, and no longer waited for.
    """
    async with together() as group:
        for informer in informers:
            group.create_task(_caught_up(informer, limit_s), name="catching up")


async def _caught_up(informer: Informer[Any], limit_s: float) -> None:
    if not isinstance(informer.store, Sequenced):
        return
    try:
        async with asyncio.timeout(limit_s):
            await informer.cache.passed(await informer.store.newest_revision())
    except (StoreError, TimeoutError) as error:
        name = informer.cache.kind.name
        why = str(error) or f"not within {limit_s:g} s"
        log.warning("%s may be behind its store: %s", name, why)
