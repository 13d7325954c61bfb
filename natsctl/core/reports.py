"""Makes the answers about a controller and its keys from memory: for people and for metrics."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from natsctl.core.counters import Counts
from natsctl.core.host import Host
from natsctl.core.informer import Informer
from natsctl.core.workqueue import Place, Priority, WorkQueue
from natsctl.errors import InvalidObjectError, StoreError
from natsctl.model import documents
from natsctl.model.bookkeeping import LastingFailure
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.readiness import ready, reason
from natsctl.model.reports import (
    INVALID,
    LANE_MAX,
    MISSING,
    Branch,
    Lanes,
    Queued,
    QueuedKey,
    QueueStats,
)
from natsctl.model.store import Sequenced, Stored
from natsctl.slices import in_slices
from natsctl.telemetry.hiding import Secrets, enumerated, hidden

FINALIZERS_MAX = 5  # that a text names
LAG_S = 1.0  # how long a store may take to return its newest revision

Beyond = Callable[[Document], Iterable[Branch]]
"""Returns the things outside of stores that a primary's document names."""


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


_texts = WeakKeyDictionary[InvalidObjectError, tuple[object, str]]()
"""The masked texts, with the secrets that were known then: to mask 100,000 takes seconds."""


def _text_of(error: InvalidObjectError) -> str:
    known, text = _texts.get(error, (None, ""))
    if known != Secrets.known:
        text = hidden(str(error))
        _texts[error] = Secrets.known, text
    return text


def invalid_of(host: Host) -> dict[str, str]:
    """Return why the newest state of each invalid primary is invalid, by key."""
    return {
        key: _text_of(invalid.error)
        for informer in host.primaries
        for key, invalid in informer.table.invalid.items()
    }


async def mask_errors(host: Host) -> None:
    """Mask the errors of all invalid primaries in slices, so that `invalid_of` takes no time."""
    for informer in host.primaries:
        errors = [invalid.error for invalid in informer.table.invalid.values()]
        await in_slices(errors, _text_of)


async def lags(informers: Mapping[str, Informer[Any]]) -> dict[str, int]:
    """Return by how many revisions each table is behind its store, by slot.

    Asks all stores that have a newest revision at the same time. The result lacks the slots whose
    store does not answer within `LAG_S`, and those whose table is not synced.
    """
    lags = dict[str, int]()

    async def ask(slot: str, informer: Informer[Any]) -> None:
        store, table = informer.store, informer.table
        if isinstance(store, Sequenced) and table.synced.is_set():
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(LAG_S):
                    newest = await store.newest_revision()
                lags[slot] = max(0, newest - table.revision)

    await asyncio.gather(*(ask(*each) for each in informers.items()))
    return lags


_LANES = {Place.CLAIMED: "held", Place.READY: "ready", Place.WAITING: "waiting"}
_REASONS = {
    Priority.USER: "change",
    Priority.SECONDARY: "secondary",
    Priority.RETRY: "retry",
    Priority.RESYNC: "resync",
}


def queued_in(queue: WorkQueue[str], key: str) -> Queued | None:
    """Return the place of a key in the queue; None if it isn't there."""
    work = queue.work(key)
    if work is None:
        return None
    if work.place is Place.WAITING:
        return Queued("waiting", round(max(0.0, work.at - queue.now()), 3))
    seconds = round(queue.now() - work.at, 3)
    return Queued(_LANES[work.place], seconds, work.priority.name.lower())


def lanes_of(queues: Collection[WorkQueue[Any]], failing: Collection[str]) -> Lanes:
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


def source_of(kind: Kind[Any]) -> str:
    """Return what names an object before its key: its bucket, or its kind in a cluster."""
    return kind.bucket if isinstance(kind, KvKind) else kind.name


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
        branches += tuple(beyond(document_of(kind, newest) or {}))
    if invalid is not None:
        text = hidden(str(invalid.error))
        root = msgspec.structs.replace(root, ready=INVALID, reason=text)
    return msgspec.structs.replace(root, branches=branches)


def _branch(kind: Kind[Any], stored: Stored) -> Branch:
    document = document_of(kind, stored)
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
    finalizers = [*map(str, documents.finalizers_of(document or {}))]
    if not finalizers or not documents.metadata_of(document or {}).get("deletionTimestamp"):
        return ""
    return hidden(f"held by {enumerated(finalizers, FINALIZERS_MAX)}")


def document_of(kind: Kind[Any], stored: Stored) -> Document | None:
    """Return the object as a document; None if it's none."""
    try:
        return None if kind.plain else documents.parse(stored.value)
    except InvalidObjectError:
        return None
