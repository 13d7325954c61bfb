"""The base class of a controller that runs in a host: its stop and its reports."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import reduce
from operator import add
from typing import Any

import msgspec

from natsctl.core.counters import Counts
from natsctl.core.host import Hook, Host
from natsctl.core.loop import KeyLoop, SyncHandler
from natsctl.core.readers import Primary
from natsctl.core.record.document import Recording, Surface
from natsctl.core.record.recordings import recording_of
from natsctl.core.reports import (
    Beyond,
    CacheMeasures,
    Health,
    Measures,
    QueueMeasures,
    document_of,
    invalid_of,
    lanes_of,
    queued_in,
    source_of,
    tree,
)
from natsctl.core.retry import RateLimit, RetryPolicy
from natsctl.core.table import Table
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import UsageError
from natsctl.model import documents
from natsctl.model.bookkeeping import LastingFailure
from natsctl.model.kinds import KvKind
from natsctl.model.objects import LINK
from natsctl.model.readiness import conditions
from natsctl.model.reports import (
    Branch,
    Explanation,
    KeyPause,
    PrimarySource,
    QueueStats,
    Status,
)
from natsctl.model.store import CountsEvents, EventType
from natsctl.telemetry.hiding import hidden


class Hosted(ABC):
    """A controller that runs in a `host`.

    `synced` is set when every table is synced and the syncs have begun.
    """

    name: str
    version: str = ""
    surface: Surface = "controller"
    workers: int = 1

    def __init__(self, host: Host) -> None:
        self.synced = host.synced
        self.host = host

    @abstractmethod
    async def run(self) -> None:
        """Work until `stop`; returns when the syncs that have begun have ended.

        Raises the error that prevents the start, or that ends the controller for good.
        """

    @abstractmethod
    def opened(self) -> AbstractAsyncContextManager[None]:
        """Open the stores and keep the tables equal to them, without syncing anything."""

    def stop(self) -> None:
        """Begin no more syncs; `run` returns when the syncs that have begun have ended."""
        self.host.stop()

    async def complete(self) -> None:
        """Wait until every table is synced."""
        await self.host.tables_synced()

    @property
    def idle(self) -> bool:
        """True if the syncs have begun and no key is ready, held, or waiting for a retry."""
        return self.host.idle

    def recording(self, key: str, *, masked: bool) -> Recording | None:
        """Return the recording of the last failed sync of the key, or else of its last sync.

        A *masked* recording has no secrets. Returns None if there is no recording.
        """
        recorder = self.host.environment.recordings
        kept = None if recorder is None else recorder.newest(self.name, key)
        if kept is None:
            return None
        delivered = None if kept.delivery is None else kept.delivery.kind
        return recording_of(
            kept,
            self.host.informers,
            delivered or self.host.primaries[0].table.kind,
            surface=self.surface,
            masked=masked,
            version=self.version,
            settings=self.replay_settings,
        )

    @property
    def replay_settings(self) -> Mapping[str, object]:
        return {}

    @abstractmethod
    def holds(self, key: str) -> bool:
        """Return whether this process syncs the key now, and not another one."""

    @abstractmethod
    def hold_only(self, keys: Collection[str]) -> None:
        """Sync no other keys than these; call this before the controller runs."""

    @abstractmethod
    def resync(self, *keys: str) -> int:
        """Sync these keys soon; without keys, sync all keys after more urgent ones.

        Keys of other processes are ignored. Returns how many keys are enqueued.
        """

    @abstractmethod
    def explain(self, key: str) -> Explanation:
        """Return the state of a key, its place in the queue and its last syncs."""

    @abstractmethod
    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """Return the object with the objects that it owns, in stores and *beyond* them."""

    # ---- what the answers are made of

    def _counts(self) -> Counts | None:
        """Return the counts of syncs and of unanswered changes; None without a sync handler."""
        return None

    def _errors(self) -> Mapping[str, str] | None:
        """Return why which keys fail, if the controller knows better than its history."""
        return None

    def _count(self, table: Table[Any]) -> int:
        """Return how many of the cached keys this process syncs."""
        return len(table)

    def _oldest_s(self, counts: Counts | None) -> float | None:
        """Return the age of the oldest unanswered change; None if there is none."""
        return None if counts is None or not counts.unanswered else counts.oldest_s

    def _health(self, counts: Counts | None) -> Health:
        """Return the health of the keys that this process holds; others report the others."""
        host, has, errors = self.host, self.holds, self._errors()
        failing = host.history.failing.known(has)
        if errors is not None:
            now = time.time()
            failing = {
                key: LastingFailure(failing[key].since_s if key in failing else now, error)
                for key, error in errors.items()
            }
        quarantined = host.pausing.quarantined()
        late = () if counts is None else counts.late
        return Health(
            failing=failing,
            invalid={key: error for key, error in invalid_of(host).items() if has(key)},
            quarantined={key: str(deaths) for key, deaths in quarantined.items() if has(key)},
            overdue=frozenset(
                key for key in late if key not in failing and host.pausing.of(key) is None
            ),
        )

    # ---- answers

    def measures(self) -> Measures:
        """Return all measures since the start, for metrics and health checks."""
        host, counts = self.host, self._counts()
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
                QueueMeasures(name, self.workers, queue.stats())
                for name, queue in host.queues().items()
            ),
            syncs=counts,
            planned={} if plan is None else dict(plan.counts),
            paused_keys=host.pausing.count,
            health=self._health(counts),
            paused=host.pausing.whole is not None,
            recordings_bytes=0 if recordings is None else recordings.bytes_of(host.name),
            events=events,
        )

    def status(self) -> Status:
        """Return the state of the controller as a whole."""
        host, counts = self.host, self._counts()
        tables, informers = [informer.table for informer in host.primaries], host.informers.values()
        health, queues = self._health(counts), host.queues().values()
        keys, stats = sum(map(self._count, tables)), [queue.stats() for queue in queues]
        columns = zip(*map(msgspec.structs.astuple, stats), strict=True)
        total = QueueStats(*(reduce(add, column) for column in columns))
        oldest_failure_s = health.oldest_failure_s
        ages_s = (self._oldest_s(counts), oldest_failure_s)
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
            lanes=lanes_of(queues, health.failing),
            unanswered=None if counts is None else counts.unanswered,
            oldest_unanswered_s=max((it for it in ages_s if it is not None), default=None),
            oldest_failure_s=oldest_failure_s,
            overdue=len(health.overdue),
            unhealthy=health.unhealthy,
            concerns=[text for each in informers for text in getattr(each.store, "concerns", ())],
            missing_kinds=[informer.table.kind.name for informer in informers if informer.absent],
            paused={
                key: hidden(str(pause))
                for key, pause in host.pausing.pauses().items()
                if self.holds(key)
            },
            paused_controller=host.pausing.whole,
            quarantined=dict(health.quarantined),
        )

    def _explain(self, key: str, table: Table[Any], queue: WorkQueue[str]) -> Explanation:
        """Return the explanation of a key that owns and reads no other objects."""
        stored, invalid, host = table.get(key), table.invalid.get(key), self.host
        document = (None if stored is None else document_of(table.kind, stored)) or {}
        annotations = documents.annotations_of(document)
        links = [name.rpartition("/") for name in annotations]
        pausing, paused = host.pausing, host.pausing.of(key)
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
            queued=queued_in(queue, key),
            failures=queue.failures(key),
            failing_since=host.history.failing_since(key),
            external=[
                str(annotations.get(f"{domain}/external-name", "without a name"))
                + (", adopted" if f"{domain}/external-adopted" in annotations else "")
                for domain in sorted({domain for domain, _, name in links if name in LINK})
            ],
            conditions=[hidden(text) for text in conditions(document)],
            syncs=host.history.last_syncs(key),
        )


class KeyedController(Hosted):
    """A controller with one work queue, which has the keys of its primaries."""

    def __init__(
        self,
        handler: SyncHandler,
        *,
        start: Hook,
        clean: Hook,
        stop_timeout_s: float,
        retry: RetryPolicy,
        rate_limit: RateLimit | None,
        failed: str = "sync failed",
        on_held_back: Callable[[str], Awaitable[float | None]] | None = None,
    ) -> None:
        queue = WorkQueue[str](pace=rate_limit)
        host = Host(
            self.name,
            lambda: {self.name: queue},
            start=start,
            clean=clean,
            stop_timeout_s=stop_timeout_s,
            failed=failed,
        )
        super().__init__(host)
        self._loop = KeyLoop(handler, host, queue, retry=retry, on_held_back=on_held_back)
        host.pausing.event = self.event

    @property
    def _primary(self) -> Primary[Any]:
        try:
            return self._loop.primary
        except AttributeError:
            raise UsageError(f"{self.name} has not opened its store yet: run it first") from None

    def _check_idle(self) -> None:
        """Raise `UsageError` while workers sync: one may have the key that is to be synced now."""
        if self._loop.queue.answers:
            raise UsageError(f"{self.name} runs: call resync, which waits until the key is free")

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record an event about *key*, for people."""
        self.host.history.event(key, type, reason, message)

    def holds(self, key: str) -> bool:
        return self._loop.has(key)

    def hold_only(self, keys: Collection[str]) -> None:
        self._loop.hold_only(keys)

    def resync(self, *keys: str) -> int:
        return self._loop.resync(keys)

    def explain(self, key: str) -> Explanation:
        return self._explain(key, self._primary.informer.table, self._loop.queue)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        return tree(key, self._primary.informer, beyond=beyond)

    def _count(self, table: Table[Any]) -> int:
        return self._loop.count(table)

    def _counts(self) -> Counts:
        now = asyncio.get_running_loop().time()
        return self._loop.counters.read(now, self._loop.queue.unanswered())
