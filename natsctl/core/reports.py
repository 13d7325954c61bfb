"""Makes the answers about a controller and its keys from memory: for people and for metrics."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import reduce
from operator import add, attrgetter
from typing import Any

import msgspec

from natsctl.core.counters import Counts
from natsctl.core.host import Host
from natsctl.core.informer import Informer
from natsctl.core.table import Table
from natsctl.core.workqueue import Place, Priority, WorkQueue
from natsctl.errors import InvalidObjectError, StoreError
from natsctl.model import documents
from natsctl.model.bookkeeping import LastingFailure
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.objects import LINK
from natsctl.model.readiness import conditions, ready, reason
from natsctl.model.reports import (
    INVALID,
    LANE_MAX,
    MISSING,
    Branch,
    Explanation,
    KeyPause,
    Lanes,
    PrimarySource,
    Queued,
    QueuedKey,
    QueueStats,
    Status,
)
from natsctl.model.store import CountsEvents, Sequenced, Stored
from natsctl.telemetry.hiding import enumerated, hidden


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
        first = min((failure.since_s for failure in self.failing.values()), default=None)
        return None if first is None else max(0.0, time.time() - first)


def health_of(
    host: Host,
    has: Callable[[str], bool],
    syncs: Counts | None = None,
    errors: Mapping[str, str] | None = None,
) -> Health:
    """Return the health of the keys that this process *has*, which other members do not report.

    A controller that knows better than its history which keys fail names their *errors*.
    """
    failing = host.history.failing.known(has)
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
    has: Callable[[str], bool],
    *,
    workers: int,
    syncs: Counts | None = None,
    errors: Mapping[str, str] | None = None,
    upkeep: UpkeepMeasures | None = None,
) -> Measures:
    """Return the measures of the controller in this host, whose queues have *workers* each.

    The other arguments are as for `health_of`.
    """
    recordings, plan = host.environment.recordings, host.environment.plan
    events: dict[tuple[str, str], int] = {}
    for recorder in host.history.recorders:
        if isinstance(recorder, CountsEvents):
            events |= recorder.counted()
    return Measures(
        controller=host.name,
        synced=host.synced.is_set(),
        caches=tuple(
            CacheMeasures(
                slot=slot,
                kind=informer.table.kind.name,
                synced=informer.table.synced.is_set(),
                failure="" if informer.failure is None else str(informer.failure),
                objects=len(informer.table),
                invalid=len(informer.table.invalid),
                revision=informer.table.revision,
                restarts=informer.restarts,
            )
            for slot, informer in host.informers.items()
        ),
        queues=tuple(
            QueueMeasures(name, workers, queue.stats()) for name, queue in host.queues().items()
        ),
        syncs=syncs,
        upkeep=upkeep,
        planned={} if plan is None else dict(plan.counts),
        paused_keys=host.pausing.count,
        health=health_of(host, has, syncs, errors),
        paused=host.pausing.whole is not None,
        recordings_bytes=0 if recordings is None else recordings.bytes_of(host.name),
        events=events,
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


_LANES = {Place.CLAIMED: "held", Place.READY: "ready", Place.WAITING: "waiting"}
_REASONS = {
    Priority.USER: "change",
    Priority.SECONDARY: "secondary",
    Priority.RETRY: "retry",
    Priority.RESYNC: "resync",
}


def _lanes(queues: Collection[WorkQueue[Any]], failing: Collection[str]) -> Lanes:
    """Return the lanes of several queues together, in time in proportion to `LANE_MAX`."""
    lanes: dict[str, list[QueuedKey]] = {"held": [], "ready": [], "waiting": []}
    for queue in queues:
        for work in queue.first(LANE_MAX):
            seconds, name = abs(queue.now() - work.at), str(work.key)
            if math.isfinite(seconds):  # a key that waits forever has no time
                reason = "delay" if work.place is Place.WAITING else _REASONS[work.priority]
                queued = QueuedKey(name, round(seconds, 3), "retry" if name in failing else reason)
                lanes[_LANES[work.place]].append(queued)
    for lane, keys in lanes.items():
        keys.sort(key=attrgetter("s"), reverse=lane != "waiting")
    return Lanes(**lanes).limited(LANE_MAX)


def explanation_of(host: Host, key: str, table: Table[Any], queue: WorkQueue[str]) -> Explanation:
    """Return the explanation of a key that owns and reads no other objects."""
    stored, invalid, work = table.get(key), table.invalid.get(key), queue.work(key)
    document = (None if stored is None else _document(table.kind, stored)) or {}
    annotations = documents.annotations_of(document)
    domains = {name.rpartition("/")[0] for name in annotations if name.rpartition("/")[2] in LINK}
    pausing, paused, queued = host.pausing, host.pausing.of(key), None
    if work is not None and work.place is Place.WAITING:
        queued = Queued("waiting", round(max(0.0, work.at - queue.now()), 3))
    elif work is not None:
        priority, seconds = work.priority.name.lower(), round(queue.now() - work.at, 3)
        queued = Queued(_LANES[work.place], seconds, priority)
    return Explanation(
        controller=host.name,
        key=key,
        source=source_of(table.kind),
        exists=key in table,
        revision=None if stored is None else stored.revision,
        invalid="" if invalid is None else hidden(str(invalid.error)),
        paused=None
        if paused is None
        else KeyPause(
            reason=hidden(paused.reason),
            since=paused.since,
            until=paused.until,
            by=paused.by,
            controller=paused is pausing.whole,
            pending=pausing.is_pending(key),
        ),
        quarantined=str(pausing.quarantined().get(key, "")),
        queued=queued,
        failures=queue.failures(key),
        failing_since=host.history.failing_since(key),
        external=[
            str(annotations.get(f"{domain}/external-name", "without a name"))
            + (", adopted" if f"{domain}/external-adopted" in annotations else "")
            for domain in sorted(domains)
        ],
        conditions=[hidden(text) for text in conditions(document)],
        syncs=host.history.last_syncs(key),
    )


def status_of(
    host: Host,
    has: Callable[[str], bool],
    count: Callable[[Table[Any]], int],
    *,
    syncs: Counts | None = None,
    errors: Mapping[str, str] | None = None,
    oldest_s: float | None = None,
) -> Status:
    """Return the status of the controller in this host.

    *has* returns whether this process syncs a key, and *count* how many of the cached keys. *syncs*
    counts the unanswered changes, and *oldest_s* is the age of the oldest. *errors* are as for
    `health_of`.
    """
    tables = [informer.table for informer in host.primaries]
    informers = host.informers.values()
    health, queues = health_of(host, has, syncs, errors), host.queues().values()
    if syncs is not None and syncs.unanswered:
        oldest_s = syncs.oldest_s
    keys, stats = sum(map(count, tables)), [queue.stats() for queue in queues]
    columns = zip(*map(msgspec.structs.astuple, stats), strict=True)
    total = QueueStats(*(reduce(add, column) for column in columns))
    oldest_failure_s = health.oldest_failure_s
    ages_s = [age_s for age_s in (oldest_s, oldest_failure_s) if age_s is not None]
    return Status(
        controller=host.name,
        sources=[
            PrimarySource(kind.bucket, kind.keys, kind.name)
            if isinstance(kind, KvKind)
            else PrimarySource("", kind=kind.name)
            for kind in (table.kind for table in tables)
        ],
        state="syncing" if host.synced.is_set() else "listing",
        failure="" if host.failure is None else hidden(str(host.failure)),
        primaries=sum(map(len, tables)),
        keys=keys,
        invalid=dict(health.invalid) if keys else invalid_of(host),  # a standby warns of all
        failing={key: failure.error for key, failure in health.failing.items()},
        failing_since={
            key: datetime.fromtimestamp(failure.since_s, UTC)
            for key, failure in health.failing.items()
        },
        syncs=host.history.syncs,
        failures=host.history.failures,
        watch_restarts=sum(informer.restarts for informer in informers),
        queue=msgspec.structs.replace(total, longest_s=max(each.longest_s for each in stats)),
        lanes=_lanes(queues, health.failing),
        unanswered=None if syncs is None else syncs.unanswered,
        oldest_unanswered_s=max(ages_s, default=None),
        oldest_failure_s=oldest_failure_s,
        overdue=len(health.overdue),
        unhealthy=health.unhealthy,
        concerns=[text for each in informers for text in getattr(each.store, "concerns", ())],
        missing_kinds=[informer.table.kind.name for informer in informers if informer.absent],
        paused={
            key: hidden(str(pause)) for key, pause in host.pausing.pauses().items() if has(key)
        },
        paused_controller=host.pausing.whole,
        quarantined=dict(health.quarantined),
    )


def source_of(kind: Kind[Any]) -> str:
    """Return what names an object before its key: its bucket, or its kind in a cluster."""
    return kind.bucket if isinstance(kind, KvKind) else kind.name


FINALIZERS_MAX = 5  # that a text names


Beyond = Callable[[Document], Iterable[Branch]]
"""Returns the things outside of stores that a primary's document names."""


def tree(
    key: str,
    primary: Informer[Any],
    owned: Iterable[tuple[Kind[Any], Stored]] = (),
    beyond: Beyond = lambda _: (),
) -> Branch:
    """Return the primary *key*, which need not exist, with the objects that it owns.

    *owned* are its objects in stores; *beyond* returns things outside of stores.
    """
    branches = tuple(_branch(kind, stored) for kind, stored in owned)
    table, kind = primary.table, primary.table.kind
    newest, invalid = table.newest(key), table.invalid.get(key)
    if newest is None:
        bucket = kind.bucket if isinstance(kind, KvKind) else ""
        root = Branch(kind=kind.name, key=key, bucket=bucket, ready=MISSING)
    else:
        root = _branch(kind, newest)
        branches += tuple(beyond(_document(kind, newest) or {}))
    if invalid is not None:
        text = hidden(str(invalid.error))
        root = msgspec.structs.replace(root, ready=INVALID, reason=text)
    return msgspec.structs.replace(root, branches=branches)


def _branch(kind: Kind[Any], stored: Stored) -> Branch:
    document = _document(kind, stored)
    created = documents.metadata_of(document or {}).get("creationTimestamp")
    return Branch(
        kind=kind.name,
        key=stored.key,
        bucket=kind.bucket if isinstance(kind, KvKind) else "",
        ready=ready(document),
        reason=held_by(document) or reason(document),
        revision=stored.revision,
        created=created if isinstance(created, str) else "",
    )


def held_by(document: Document | None) -> str:
    """Return which finalizers hold an object that is being deleted; empty if none does."""
    finalizers = documents.finalizers_of(document or {})
    if not finalizers or not documents.metadata_of(document or {}).get("deletionTimestamp"):
        return ""
    return hidden(f"held by {enumerated(finalizers, FINALIZERS_MAX)}")


def _document(kind: Kind[Any], stored: Stored) -> Document | None:
    try:
        return None if kind.plain else documents.parse(stored.value)
    except InvalidObjectError:
        return None
