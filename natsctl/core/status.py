"""Which keys of a controller need somebody: one count for metrics, commands and pages."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from natsctl.core.counters import Counts
from natsctl.core.failing import LastingFailure
from natsctl.core.host import Host
from natsctl.core.informer import Informer
from natsctl.core.workqueue import QueueStats
from natsctl.errors import StoreError
from natsctl.model.store import CountsEvents, Sequenced
from natsctl.telemetry.hiding import hidden


class Health(msgspec.Struct, frozen=True):
    """The keys of this process that are not as they should be.

    Attributes:
        failing: since when each failing key fails, also before this process, and its last error.
        invalid: why the newest state of each invalid primary is invalid.
        quarantined: why each quarantined key is not synced.
        overdue: keys whose change has waited for more than `OVERDUE_S`, and that do not fail.
    """

    failing: Mapping[str, LastingFailure]
    invalid: Mapping[str, str]
    quarantined: Mapping[str, str]
    overdue: frozenset[str]

    @property
    def unhealthy(self) -> int:
        """The number of keys that need somebody; a key with two troubles counts once."""
        return len(self.overdue.union(self.failing, self.invalid, self.quarantined))

    @property
    def oldest_failure_s(self) -> float | None:
        """Seconds since the first failure of the key that has failed the longest."""
        first = min((failure.since_s for failure in self.failing.values()), default=None)
        return None if first is None else max(0.0, time.time() - first)


def health_of(
    host: Host,
    has: Callable[[str], bool],
    syncs: Counts | None = None,
    errors: Mapping[str, str] | None = None,
) -> Health:
    """Return the health of the keys that this process *has*, which other members do not report.

    A controller that knows better than its journal which keys fail names their *errors*.
    """
    failing = host.journal.failing.known(has)
    if errors is not None:
        now = time.time()
        failing = {
            key: LastingFailure(failing[key].since_s if key in failing else now, error)
            for key, error in errors.items()
        }
    late = () if syncs is None else syncs.late
    return Health(
        failing=failing,
        invalid={key: error for key, error in invalid_of(host).items() if has(key)},
        quarantined={
            key: str(deaths) for key, deaths in host.pausing.quarantined().items() if has(key)
        },
        overdue=frozenset(
            key for key in late if key not in failing and host.pausing.of(key) is None
        ),
    )


def invalid_of(host: Host) -> dict[str, str]:
    """Return why the newest state of each invalid primary is invalid, by key."""
    return {
        key: hidden(str(invalid.error))
        for informer in host.primaries
        for key, invalid in informer.table.invalid.items()
    }


LAG_S = 1.0  # how long a store may take to return its newest revision


class CacheMeasures(msgspec.Struct, frozen=True):
    """The measures of a table."""

    slot: str  # the name of the table within the controller
    kind: str
    synced: bool  # whether the table has seen a complete list
    failure: str  # why the table has no watch at the moment; empty if it has one
    objects: int  # the number of objects with a valid state
    invalid: int  # the number of objects whose newest state is invalid
    revision: int  # the revision up to which the table shows all writes
    restarts: int  # how often its watch was established again


class QueueMeasures(msgspec.Struct, frozen=True):
    """The measures of a work queue, and the number of workers that take keys from it."""

    name: str
    workers: int
    stats: QueueStats


class UpkeepMeasures(msgspec.Struct, frozen=True):
    """The measures of a controller with secondaries."""

    barrier_waited_s: float  # by syncs, until the tables showed their own last writes
    barrier_timeouts: int  # how often such a wait ended with a read from the store
    orphans: int  # the number of orphans in the last GC cycle
    refused: bool  # true if the GC cycle may not remove them
    undone: int = 0  # how often other writers changed an applied object back
    contested: int = 0  # the number of keys with objects that other writers change back repeatedly


class Measures(msgspec.Struct, frozen=True):
    """The measures of a controller since its creation.

    `synced` is true once the syncs have begun. `syncs` is None without a sync handler, and `upkeep`
    is None without secondaries. Before the stores are open there are no `caches`. `planned` counts
    the changes that a controller would have made that only plans, by action and kind. `paused` is
    whether the whole controller is paused. `recordings_bytes` is the memory of its recordings.
    `health` is that of the keys that this process syncs.
    `events` are the counts of its events by system and outcome, see `CountsEvents`.
    """

    controller: str
    synced: bool
    caches: tuple[CacheMeasures, ...]
    queues: tuple[QueueMeasures, ...]
    syncs: Counts | None = None
    upkeep: UpkeepMeasures | None = None
    planned: Mapping[tuple[str, str], int] = {}
    paused_keys: int = 0
    health: Health = Health({}, {}, {}, frozenset())
    paused: bool = False
    recordings_bytes: int = 0
    events: Mapping[tuple[str, str], int] = {}


def measures_of(
    host: Host,
    health: Health,
    *,
    workers: int,
    syncs: Counts | None = None,
    upkeep: UpkeepMeasures | None = None,
) -> Measures:
    """Return the measures of the controller in this host, whose queues have *workers* each."""
    recordings = host.recorder
    return Measures(
        controller=host.name,
        synced=host.synced.is_set(),
        caches=tuple(_cache_measures(*slot) for slot in host.informers.items()),
        queues=tuple(
            QueueMeasures(name, workers, queue.stats()) for name, queue in host.queues().items()
        ),
        syncs=syncs,
        upkeep=upkeep,
        planned={} if host.plan is None else dict(host.plan.counts),
        paused_keys=host.pausing.count,
        health=health,
        paused=host.pausing.whole is not None,
        recordings_bytes=0 if recordings is None else recordings.bytes_of(host.name),
        events=_events(host),
    )


def _events(host: Host) -> dict[tuple[str, str], int]:
    counts = dict[tuple[str, str], int]()
    for recorder in host.history.recorders:
        if isinstance(recorder, CountsEvents):
            counts |= recorder.counted()
    return counts


def _cache_measures(slot: str, informer: Informer[Any]) -> CacheMeasures:
    table = informer.table
    return CacheMeasures(
        slot=slot,
        kind=table.kind.name,
        synced=table.synced.is_set(),
        failure="" if informer.failure is None else str(informer.failure),
        objects=len(table),
        invalid=len(table.invalid),
        revision=table.revision,
        restarts=informer.restarts,
    )


async def lags(informers: Mapping[str, Informer[Any]]) -> dict[str, int]:
    """Return by how many revisions each table is behind its store, by slot.

    Asks all stores that have a newest revision at the same time. The result lacks the slots whose
    store does not answer within `LAG_S`, and those whose table is not synced.
    """

    async def lag(slot: str, informer: Informer[Any]) -> tuple[str, int] | None:
        store, table = informer.store, informer.table
        if not isinstance(store, Sequenced) or not table.synced.is_set():
            return None
        try:
            async with asyncio.timeout(LAG_S):
                newest = await store.newest_revision()
        except (StoreError, TimeoutError):
            return None
        return slot, max(0, newest - table.revision)

    lags = await asyncio.gather(*(lag(*slot) for slot in informers.items()))
    return dict(slot_lag for slot_lag in lags if slot_lag is not None)
