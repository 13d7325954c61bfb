"""The base class of a controller that runs in a host: its stop and its reports."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from natsctl.core.counters import OVERDUE_S, Counts
from natsctl.core.host import Hook, Host
from natsctl.core.loop import KeyLoop, SyncHandler
from natsctl.core.readers import Primary
from natsctl.core.record.document import Recording, Surface
from natsctl.core.record.writing import recording_of
from natsctl.core.reports import Beyond, Measures, explanation_of, status_of, tree
from natsctl.core.retry import RateLimit, RetryPolicy
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import UsageError
from natsctl.model.reports import Branch, Explanation, Status
from natsctl.model.store import EventType


class Hosted(ABC):
    """A controller that runs in a `host`.

    `synced` is set when every table is synced and the syncs have begun.
    """

    name: str
    version: str = ""
    surface: Surface = "controller"

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

    @abstractmethod
    def measures(self) -> Measures:
        """Return all measures since the start."""

    @abstractmethod
    def status(self) -> Status:
        """Return the state of the controller as a whole."""


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

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record an event about *key*, for people."""
        self.host.history.event(key, type, reason, message)

    def holds(self, key: str) -> bool:
        return self._loop.own.has(key)

    def hold_only(self, keys: Collection[str]) -> None:
        self._loop.own.only(keys)

    def resync(self, *keys: str) -> int:
        return self._loop.resync(keys)

    def explain(self, key: str) -> Explanation:
        return explanation_of(self.host, key, self._primary.informer.table, self._loop.queue)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        return tree(key, self._primary.informer, beyond=beyond)

    def status(self) -> Status:
        return status_of(self.host, self.holds, self._loop.count, syncs=self._counts())

    def _counts(self) -> Counts:
        now, queue = asyncio.get_running_loop().time(), self._loop.queue
        unanswered = queue.unanswered()
        counts = self._loop.counters.read(now, unanswered.values())
        if counts.oldest_s <= OVERDUE_S:
            return counts
        late = [key for key, changed in unanswered.items() if changed < now - OVERDUE_S]
        return msgspec.structs.replace(counts, late=late)
