"""Explains the state of a key, and reports the status of a controller, from memory."""

import asyncio
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import add, attrgetter
from typing import Any

import msgspec

from natsctl.core.counters import Counts
from natsctl.core.history import SyncRecord
from natsctl.core.host import Host
from natsctl.core.pauses import Pausing
from natsctl.core.status import health_of, invalid_of
from natsctl.core.table import Table
from natsctl.core.workqueue import Place, Priority, QueueStats, Work, WorkQueue
from natsctl.errors import InvalidObjectError
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.kinds import Kind, KvKind
from natsctl.model.objects import LINK
from natsctl.model.pause import Pause
from natsctl.model.readiness import conditions
from natsctl.telemetry.hiding import hidden

LANE_MAX = 20
"""Keys in each lane."""

_seconds = attrgetter("s")

_LANES = {Place.CLAIMED: "held", Place.READY: "ready", Place.WAITING: "waiting"}
_REASONS = {
    Priority.USER: "change",
    Priority.SECONDARY: "secondary",
    Priority.RETRY: "retry",
    Priority.RESYNC: "resync",
}


class QueuedKey(msgspec.Struct, frozen=True):
    """A key in a work queue.

    Attributes:
        key: the key.
        s: seconds for which the key has been held or ready, or until it becomes ready.
        reason: `retry` after a failure; `delay` for a key that waits for another reason; else
            `change` of the primary or a request, `secondary` for a changed secondary, or `resync`.
    """

    key: str
    s: float
    reason: str


class Lanes(msgspec.Struct, frozen=True):
    """Up to `LANE_MAX` keys of each place in the work queues."""

    held: list[QueuedKey] = []  # the longest first
    ready: list[QueuedKey] = []  # the longest first
    waiting: list[QueuedKey] = []  # the next one first

    def limited(self, count: int) -> "Lanes":
        """Return the lanes with at most *count* keys each."""
        return Lanes(self.held[:count], self.ready[:count], self.waiting[:count])


def lanes_of(queues: Collection[WorkQueue[Any]], failing: Callable[[str], bool]) -> Lanes:
    """Return the lanes of several queues together; *failing* returns whether a key's sync failed.

    Takes time in proportion to `LANE_MAX` and the number of queues.
    """
    lanes: dict[str, list[QueuedKey]] = {"held": [], "ready": [], "waiting": []}
    for queue in queues:
        for lane, queued in _keys(queue, failing):
            lanes[lane].append(queued)
    return Lanes(
        held=sorted(lanes["held"], key=_seconds, reverse=True),
        ready=sorted(lanes["ready"], key=_seconds, reverse=True),
        waiting=sorted(lanes["waiting"], key=_seconds),
    ).limited(LANE_MAX)


def _keys(queue: WorkQueue[Any], failing: Callable[[str], bool]) -> Iterator[tuple[str, QueuedKey]]:
    now = queue.now()
    for work in queue.first(LANE_MAX):
        seconds = abs(now - work.at)
        if math.isfinite(seconds):  # a key that waits forever has no time
            name = str(work.key)
            reason = "delay" if work.place is Place.WAITING else _REASONS[work.priority]
            queued = QueuedKey(name, round(seconds, 3), "retry" if failing(name) else reason)
            yield _LANES[work.place], queued


class Queued(msgspec.Struct, frozen=True):
    """The place of a key in the work queue.

    Attributes:
        place: `waiting`, `ready` or `held`.
        s: seconds until a waiting key becomes ready, or for which a key has been ready or held.
        priority: the priority of a key that is ready or held; empty for a waiting key.
    """

    place: str
    s: float
    priority: str = ""


class KeyPause(Pause, frozen=True, kw_only=True):
    """The pause of a key.

    Attributes:
        controller: whether the whole controller is paused.
        pending: whether a sync was held back; the key is synced when it is resumed.
    """

    controller: bool = False
    pending: bool = False


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one key of a controller, and the reasons for that state.

    Attributes:
        controller: the name of the controller.
        key: the key.
        source: the bucket of its object, or the kind of an object in a cluster; empty if unknown.
        exists: whether the object exists, valid or not, as cached.
        revision: the revision of its last valid state; None if it has none.
        invalid: why the newest revision is invalid; empty if it is valid.
        paused: the pause of the key or of its controller; None if neither is paused.
        quarantined: why the key is quarantined; empty if it isn't.
        queued: the place in the work queue; None if the key isn't in the queue.
        failures: failed syncs since the last successful one.
        failing_since: the time of the first of them, also in an earlier process; None if it doesn't
            fail.
        external: the names of its external resources; an adopted one is named as such.
        conditions: the conditions of its status, such as `Ready=False NotOwned: …`.
        syncs: the last syncs, oldest first.
        owned: the keys of the objects that the key owns, by kind.
        held: owned objects that are being deleted, and the finalizers that hold them.
        reads: objects and selections whose changes enqueue the key as well.
        contested: owned objects that another writer keeps changing back.
        garbage_held: why objects of a deleted key are not collected; empty if they are.
    """

    controller: str
    key: str
    source: str = ""
    exists: bool
    revision: int | None = None
    invalid: str = ""
    paused: KeyPause | None = None
    quarantined: str = ""
    queued: Queued | None = None
    failures: int = 0
    failing_since: datetime | None = None
    external: list[str] = []
    conditions: list[str] = []
    syncs: list[SyncRecord] = []
    owned: dict[str, list[str]] = {}
    held: list[str] = []
    reads: list[str] = []
    contested: list[str] = []
    garbage_held: str = ""

    @property
    def present(self) -> bool:
        """True if the key has an object, owns an object, or is in the queue."""
        paused = self.paused is not None and not self.paused.controller
        return bool(
            self.exists or self.invalid or any(self.owned.values()) or self.queued or paused
        )

    def held_back(self, reason: str) -> "Explanation":
        """Return the explanation with the *reason* why garbage collection is held.

        The explanation does not change if the object exists or owns nothing.
        """
        if self.exists or not any(self.owned.values()):
            return self
        return msgspec.structs.replace(self, garbage_held=hidden(reason))


class PrimarySource(msgspec.Struct, frozen=True):
    """Where primaries are: the bucket, empty for a cluster, and the pattern of their keys.

    `kind` is the name of their kind; empty if an older daemon answers.
    """

    bucket: str
    keys: str = ">"
    kind: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a controller.

    Attributes:
        controller: the name of the controller.
        sources: where its primaries are; empty until the tables exist.
        state: `starting`, `listing` until every table is synced, then `syncing`.
        failure: why a table has no watch at the moment; empty if every table has one.
        primaries: the number of primaries; None until the tables exist.
        keys: the number of primaries that this process syncs; None until the tables exist.
        invalid: the reason, by key, for each primary whose newest revision is invalid.
        failing: the error, by key, of each key whose last sync failed.
        failing_since: the time of the first of its failures in a row, by failing key; also if that
            was in an earlier process.
        paused: the pause, by key, of each paused key; without the pause of the controller.
        quarantined: the reason, by key, for each quarantined key.
        paused_controller: the pause of the whole controller; None if it is not paused.
        contested: the fields and the other writers, by key, of objects that are changed back again
            and again.
        syncs: the number of syncs since the start.
        failures: the number of failed syncs since the start.
        watch_restarts: how often a watch was established again.
        queue: the measures of the work queue; None until the tables exist.
        lanes: keys in the work queue; None until the tables exist.
        unanswered: changes that wait for a successful sync, without those of keys that are held;
            None if it is not known.
        oldest_unanswered_s: seconds since the first of them, or since the first failure of a key
            that still fails; None if there are none.
        oldest_failure_s: seconds since the first failure of a key that still fails; None if none.
        overdue: the number of keys whose change has waited for more than five minutes, and that
            neither fail nor are paused.
        unhealthy: the number of keys that fail, are invalid, quarantined or overdue.
        missing_kinds: the optional kinds that the cluster does not have.
        installation: the id of the NATS system, which labels objects in a cluster; empty until it
            is known.
        garbage_held: why garbage collection waits for an operator; empty if it does not wait.
        concerns: what buckets delete too early or keep too long, with advice.
    """

    controller: str
    sources: list[PrimarySource] = []
    state: str = "starting"
    failure: str = ""
    primaries: int | None = None
    keys: int | None = None
    invalid: dict[str, str] = {}
    failing: dict[str, str] = {}
    failing_since: dict[str, datetime] = {}
    paused: dict[str, str] = {}
    paused_controller: Pause | None = None
    quarantined: dict[str, str] = {}
    contested: dict[str, str] = {}
    syncs: int = 0
    failures: int = 0
    watch_restarts: int = 0
    queue: QueueStats | None = None
    lanes: Lanes | None = None
    unanswered: int | None = None
    oldest_unanswered_s: float | None = None
    oldest_failure_s: float | None = None
    overdue: int = 0
    unhealthy: int = 0
    concerns: list[str] = []
    missing_kinds: list[str] = []
    installation: str = ""
    garbage_held: str = ""

    @property
    def synced(self) -> bool:
        """True if every table is synced and the syncs have begun."""
        return self.state == "syncing"


def explanation_of(host: Host, key: str, table: Table[Any], queue: WorkQueue[str]) -> Explanation:
    """Return the explanation of a key that owns and reads no other objects."""
    stored, invalid = table.get(key), table.invalid.get(key)
    document = {} if stored is None else _document(stored.value)
    return Explanation(
        controller=host.name,
        key=key,
        source=source_of(table.kind),
        exists=key in table,
        revision=None if stored is None else stored.revision,
        invalid="" if invalid is None else hidden(str(invalid.error)),
        paused=_paused(host.pausing, key),
        quarantined=str(host.pausing.quarantined().get(key, "")),
        queued=queued(queue.work(key)),
        failures=queue.failures(key),
        failing_since=host.journal.failing_since(key),
        external=_external(document),
        conditions=[hidden(text) for text in conditions(document)],
        syncs=host.journal.last_syncs(key),
    )


def _document(value: bytes) -> Document:
    try:
        return documents.parse(value)
    except InvalidObjectError:
        return {}


def _external(document: Document) -> list[str]:
    annotations = documents.annotations_of(document)
    domains = {name.rpartition("/")[0] for name in annotations if name.rpartition("/")[2] in LINK}
    return [
        str(annotations.get(f"{domain}/external-name", "without a name"))
        + (", adopted" if f"{domain}/external-adopted" in annotations else "")
        for domain in sorted(domains)
    ]


def _paused(pausing: Pausing, key: str) -> KeyPause | None:
    pause = pausing.of(key)
    if pause is None:
        return None
    return KeyPause(
        reason=hidden(pause.reason),
        since=pause.since,
        until=pause.until,
        by=pause.by,
        controller=pause is pausing.whole,
        pending=pausing.is_pending(key),
    )


def queued(work: Work[Any] | None) -> Queued | None:
    """Return the place of a key in a work queue; None if the queue does not have it."""
    if work is None:
        return None
    now = asyncio.get_running_loop().time()
    if work.place is Place.WAITING:
        return Queued("waiting", round(max(0.0, work.at - now), 3))
    place = "held" if work.place is Place.CLAIMED else "ready"
    return Queued(place, round(now - work.at, 3), work.priority.name.lower())


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
    informers, journal = host.informers.values(), host.journal
    health, queues = health_of(host, has, syncs, errors), host.queues().values()
    if syncs is not None and syncs.unanswered:
        oldest_s = syncs.oldest_s
    keys = sum(map(count, tables))
    oldest_failure_s = health.oldest_failure_s
    ages_s = [age_s for age_s in (oldest_s, oldest_failure_s) if age_s is not None]
    return Status(
        controller=host.name,
        sources=[_source(table.kind) for table in tables],
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
        syncs=journal.syncs,
        failures=journal.failures,
        watch_restarts=sum(informer.restarts for informer in informers),
        queue=_combined([queue.stats() for queue in queues]),
        lanes=lanes_of(queues, health.failing.__contains__),
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


def _source(kind: Kind[Any]) -> PrimarySource:
    if isinstance(kind, KvKind):
        return PrimarySource(kind.bucket, kind.keys, kind.name)
    return PrimarySource("", kind=kind.name)


def _combined(queues: Sequence[QueueStats]) -> QueueStats:
    """Return the statistics of several queues as if they were one."""
    columns = zip(*map(msgspec.structs.astuple, queues), strict=True)
    total = QueueStats(*(reduce(add, column) for column in columns))
    return msgspec.structs.replace(total, longest_s=max(stats.longest_s for stats in queues))
