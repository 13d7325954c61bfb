"""Keeps the history of a program with event streams and dynamic watchers, under one name."""

from collections.abc import AsyncIterator, Callable, Hashable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from natsctl.core.cache.informer import Informer
from natsctl.core.insight.explain import Explanation, Status, queued
from natsctl.core.objects.sync import Sync
from natsctl.core.recording.document import Recording
from natsctl.core.recording.noted_stores import NotedManifestStores, NotedStores
from natsctl.core.recording.recordings import (
    BYTES_MAX,
    ReconcilerCall,
    Recordings,
    current_recordings,
)
from natsctl.core.recording.writing import recording_of
from natsctl.core.sync.history import SyncHistory
from natsctl.core.sync.journal import FAILING_MAX
from natsctl.core.workqueue import Work, WorkQueue
from natsctl.errors import NotFoundError
from natsctl.model.discovery import Cluster
from natsctl.model.store import ManifestStores, Stores
from natsctl.telemetry.classification import classify

P = TypeVar("P", bound=object)
K = TypeVar("K", bound=Hashable)

KeyOf = Callable[[Any], str]

PLACES_MAX = 10_000  # of a queue, in which a key is looked up


class ProgramHistory(SyncHistory):
    """The history of the event streams and the dynamic watchers of one program.

    `natsctl run` keeps it for a class around a `Resource` or a `DynamicWatcher`. Another program
    keeps it with `keep_recordings`.

    Attributes:
        informers: the informers of its resources by name.
    """

    def __init__(self, controller: str) -> None:
        super().__init__(controller, failed="event failed")
        self.informers: MutableMapping[str, Informer[Any]] = WeakValueDictionary()
        self._others: MutableMapping[str, object] = WeakValueDictionary()
        self._queues: MutableMapping[WorkQueue[Any], KeyOf] = WeakKeyDictionary()
        self._failing: dict[str, int] = {}  # the failures in a row, by key

    @asynccontextmanager
    async def running(self, stores: Stores | None) -> AsyncIterator[None]:
        """Keep the history of what runs in the context; record events in *stores*."""
        self.recorder = current_recordings.get()
        token = current_history.set(self)
        try:
            if stores is None:
                yield
                return
            async with stores.recorder(self.controller) as recorder:
                self.recorders = (recorder,)
                yield
        finally:
            current_history.reset(token)

    def succeeded(
        self, run: Sync, now: float, *, failed: bool, after_s: float | None = None
    ) -> None:
        """See `SyncHistory.succeeded`; counts the writes of the event."""
        run.count_writes()
        self._failing.pop(run.key, None)
        super().succeeded(run, now, failed=failed, after_s=after_s)

    def failed(
        self,
        run: Sync,
        error: BaseException,
        now: float,
        *,
        failures: int,
        log_failure: bool = False,
    ) -> None:
        """See `SyncHistory.failed`; the stream or the dynamic watcher logs the failure."""
        if classify(error).failed:
            self._failing.pop(run.key, None)
            self._failing[run.key] = failures
            if len(self._failing) > FAILING_MAX:
                del self._failing[next(iter(self._failing))]
        super().failed(run, error, now, failures=failures, log_failure=log_failure)

    def slot_of(self, informer: Informer[Any]) -> str:
        """Return the name of an informer: its kind, with a number if there are several."""
        return _name_of(self.informers, informer, informer.cache.kind.name)

    def name_of(self, part: object, noun: str) -> str:
        """Return the name of another part: the *noun*, with a number if there are several."""
        return _name_of(self._others, part, noun)

    def follow(self, queue: WorkQueue[K], key_of: Callable[[K], str]) -> None:
        """Explain the places of keys in a work queue too; *key_of* returns the key of an entry."""
        self._queues[queue] = key_of

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.controller

    @property
    def recordings(self) -> Recordings | None:
        """The recordings of this process; None if it keeps none."""
        return self.recorder if isinstance(self.recorder, Recordings) else None

    def recording(self, key: str, *, masked: bool = True) -> Recording | None:
        """Return the recording of the last failed event of the key, or else of its last event.

        A *masked* recording has no secrets. Returns None if there is no recording.
        """
        recordings = self.recordings
        kept = None if recordings is None else recordings.newest(self.controller, key)
        if kept is None or kept.delivery is None or kept.delivery.kind is None:
            return None
        return recording_of(
            kept,
            dict(self.informers),
            kept.delivery.kind,
            surface="dynamic" if isinstance(kept.delivery, ReconcilerCall) else "resource",
            masked=masked,
        )

    def written(self, key: str, *, masked: bool = True) -> bytes:
        """Return the recording of a key for a file; raises `NotFoundError` if there is none."""
        recording = self.recording(key, masked=masked)
        if recording is None:
            raise NotFoundError(f"{self.controller} has no recording of {key}")
        return recording.encoded()

    def noted(self, nats: Stores) -> Stores:
        """Return the same stores in NATS; the calls that an event makes there are recorded."""
        return NotedStores(nats)

    def noted_cluster(self, kube: ManifestStores) -> Cluster:
        """Return the same cluster; the calls that an event makes there are recorded."""
        return NotedManifestStores(kube)

    def explain(self, key: str) -> Explanation:
        """Return the state of the object of a key, and its last events."""
        caches = [informer.cache for informer in self.informers.values()]
        states = [state for cache in caches if (state := cache.get(key)) is not None]
        return Explanation(
            controller=self.controller,
            key=key,
            exists=any(key in cache for cache in caches),
            revision=max((state.revision for state in states), default=None),
            queued=queued(self._work(key)),
            failures=self._failing.get(key, 0),
            syncs=self.journal.last_syncs(key),
        )

    def _work(self, key: str) -> Work[Any] | None:
        for queue, key_of in self._queues.items():
            for work in queue.first(PLACES_MAX):
                if key_of(work.key) == key:
                    return work
        return None

    @property
    def sync_counts(self) -> tuple[int, int]:
        """The numbers of events and of failed events since the start."""
        return self.journal.syncs, self.journal.failures

    def status(self) -> Status:
        """Return the state of the program as a whole."""
        return Status(
            controller=self.controller,
            failing=self.journal.failing(),
            syncs=self.journal.syncs,
            failures=self.journal.failures,
        )


current_history: ContextVar[ProgramHistory | None] = ContextVar("current_history", default=None)
"""The history of the program that runs in this context; None keeps none."""


@contextmanager
def keep_recordings(
    name: str, *, bytes_max: int = BYTES_MAX, everything: bool = False
) -> Iterator[ProgramHistory]:
    """Record the failed events of each key that the program in the context handles.

    Args:
        name: the name of the program in recordings.
        bytes_max: the memory of all recordings; the oldest are dropped at the limit.
        everything: record the last five events of every key, whether they fail or not.

    Example:
        with keep_recordings("hosts") as history:
            nats = history.noted(nats)
            async with Resource(kind, nats) as resource:
                ...
            Path("failed.json").write_bytes(history.written("gw.berlin"))
    """
    history = ProgramHistory(name)
    history.recorder = Recordings(bytes_max, everything=everything)
    token = current_history.set(history)
    try:
        yield history
    finally:
        current_history.reset(token)


def _name_of(names: MutableMapping[str, P], part: P, noun: str) -> str:
    for name, known in names.items():
        if known is part:
            return name
    numbered = (noun if number == 1 else f"{noun} {number}" for number in count(1))
    name = next(name for name in numbered if name not in names)
    names[name] = part
    return name
