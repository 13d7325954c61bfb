"""Reads the values of objects whose keys come to this process."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from natsctl.core.cache.informer import Informer
from natsctl.core.retry import backoff
from natsctl.core.task_group import for_each
from natsctl.errors import NotFoundError, StoreError
from natsctl.model.store import Applied, Listed, Store, Stored
from natsctl.slices import Slices
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SINGLE_MAX = 2_000  # more values are read by one list of the store instead of one by one
READS_MAX = 32  # values that are read at once
BATCH = 500  # values of a list that are added at once
RETRY_S, RETRY_MAX_S = 0.02, 2.0

Wanted = Callable[[str], bool]


async def read_values(informer: Informer[Any], wanted: Wanted) -> None:
    """Return when the cache has the value of every *wanted* object that it contains.

    The values come from the leader of the store. A value is used only if its revision is the cached
    one: if the object has changed since, the watch brings its value, because the key is kept now. A
    read that fails is repeated with backoff until it succeeds.

    *Assumes* that the cache keeps the wanted keys from now on.
    """
    attempts = 0
    while missing := await _missing(informer, wanted):
        attempts += 1
        if attempts > 1:
            await asyncio.sleep(backoff(attempts - 1, base_s=RETRY_S, limit_s=RETRY_MAX_S))
        try:
            if len(missing) > SINGLE_MAX:
                await _list(informer, set(missing))
            else:
                await _get(informer, missing)
        except StoreError as error:
            kind = informer.cache.kind.name
            log.warning("cannot read values yet", kind=kind, count=len(missing), error=error)


async def _missing(informer: Informer[Any], wanted: Wanted) -> Sequence[str]:
    missing: dict[str, None] = {}
    slices = Slices()
    for key in informer.cache.unread(wanted):
        if key is not None:
            missing[key] = None
        if slices.is_over():
            await slices.pause()
    return list(missing)


async def _get(informer: Informer[Any], keys: Sequence[str]) -> None:
    """Read the objects one by one, several at once."""

    async def read(key: str) -> None:
        stored = await _read(informer.store, key)
        if stored is not None:
            await informer.fill((stored,))

    await for_each(keys, read, workers=READS_MAX)


async def _read(store: Store, key: str) -> Stored | None:
    try:
        return await store.get(key)
    except NotFoundError:
        return None  # the watch brings the deletion


async def _list(informer: Informer[Any], keys: set[str]) -> None:
    """List the store, and add the values of these objects in batches."""
    batch: list[Stored] = []
    async with informer.store.watch() as events:
        async for event in events:
            if isinstance(event, Applied) and event.stored.key in keys:
                batch.append(event.stored)
            if len(batch) >= BATCH or isinstance(event, Listed):
                await informer.fill(batch)
                batch = []
            if isinstance(event, Listed):
                return


async def release_values(informer: Informer[Any]) -> None:
    """Forget the values of objects that the cache does not keep any more."""
    cache = informer.cache
    await informer.release(chain(cache.read_keys(), tuple(cache.invalid)))
