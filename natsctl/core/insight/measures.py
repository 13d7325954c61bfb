"""What a controller measured, read when somebody asks."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from natsctl.core.cache.informer import Informer
from natsctl.core.queue.workqueue import QueueStats
from natsctl.core.sync.counters import Counts
from natsctl.core.sync.host import Host
from natsctl.errors import StoreError
from natsctl.model.store import Sequenced

LAG_S = 1.0  # how long a store may take to say how far it is


class CacheMeasures(msgspec.Struct, frozen=True):
    """How a cache is. `failure` says why it has no watch just now, and is empty where it has one.

    `slot` tells it from the controller's others, `kind` says what is in it. `objects` are those
    with a valid state; `invalid` are those whose newest state is none.
    """

    slot: str
    kind: str
    complete: bool
    failure: str
    objects: int
    invalid: int
    revision: int
    restarts: int


class QueueMeasures(msgspec.Struct, frozen=True):
    """A workqueue, and how many workers take keys from it at most."""

    name: str
    workers: int
    stats: QueueStats


class UpkeepMeasures(msgspec.Struct, frozen=True):
    """For how long syncs waited for their own writes, and what the last sweep found.

    `barrier_timeouts` is how often that wait was given up, and the store read instead. `orphans`
    is how many the sweep found, `refused` whether it may not remove them. `undone` is how often
    others undid what was applied to a cluster, `contested` for how many keys they do it again and
    again.
    """

    barrier_waited_s: float
    barrier_timeouts: int
    orphans: int
    refused: bool
    undone: int = 0
    contested: int = 0


class Measures(msgspec.Struct, frozen=True):
    """What a controller measured since it was made; it may have opened nothing yet.

    `synced` says whether it has begun its work; `syncs` is None for what has no sync handler, and
    `upkeep` for what makes no secondaries.
    """

    controller: str
    synced: bool
    caches: tuple[CacheMeasures, ...]
    queues: tuple[QueueMeasures, ...]
    syncs: Counts | None = None
    upkeep: UpkeepMeasures | None = None


def measures_of(
    host: Host, *, workers: int, syncs: Counts | None = None, upkeep: UpkeepMeasures | None = None
) -> Measures:
    """Return the measures of the controller in this host, whose queues have *workers* each."""
    return Measures(
        controller=host.name,
        synced=host.synced.is_set(),
        caches=tuple(_cache_measures(*slot) for slot in host.informers.items()),
        queues=tuple(
            QueueMeasures(name, workers, queue.stats()) for name, queue in host.queues().items()
        ),
        syncs=syncs,
        upkeep=upkeep,
    )


def _cache_measures(slot: str, informer: Informer[Any]) -> CacheMeasures:
    cache = informer.cache
    return CacheMeasures(
        slot=slot,
        kind=cache.kind.name,
        complete=cache.complete.is_set(),
        failure="" if informer.failure is None else str(informer.failure),
        objects=len(cache),
        invalid=len(cache.invalid),
        revision=cache.revision,
        restarts=informer.restarts,
    )


async def lags(
    informers: Mapping[str, Informer[Any]], *, timeout_s: float = LAG_S
) -> dict[str, int]:
    """Return by how many revisions each cache is behind its store, at least.

    Asks every store that can say, all at once; one that does not answer in time is left out, and
    so is one whose cache is not complete.
    """

    async def lag(slot: str, informer: Informer[Any]) -> tuple[str, int] | None:
        store, cache = informer.store, informer.cache
        if not isinstance(store, Sequenced) or not cache.complete.is_set():
            return None
        try:
            async with asyncio.timeout(timeout_s):
                newest = await store.newest_revision()
        except (StoreError, TimeoutError):
            return None
        return slot, max(0, newest - cache.revision)

    found = await asyncio.gather(*(lag(*each) for each in informers.items()))
    return dict(each for each in found if each is not None)
