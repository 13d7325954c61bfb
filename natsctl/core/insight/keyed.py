"""The base class of a controller that syncs each key of its primaries."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from natsctl.core.insight.explain import Explanation, Status, explanation_of, status_of
from natsctl.core.insight.hosted import Hosted
from natsctl.core.insight.tree import Beyond, Branch, tree
from natsctl.core.objects.primary import Primary
from natsctl.core.pausing.pause_reports import PauseReports
from natsctl.core.retry import RateLimit, RetryPolicy
from natsctl.core.sync.counters import OVERDUE_S, Counts
from natsctl.core.sync.host import Hook, Host
from natsctl.core.sync.keys import KeyQueue
from natsctl.core.sync.loop import SyncHandler, SyncLoop
from natsctl.core.workqueue import WorkQueue
from natsctl.model.recorder import EventType


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
        self._loop = SyncLoop(
            handler, queue=queue, retry=retry, pausing=host.pausing, on_held_back=on_held_back
        )
        self._keys = KeyQueue(self._loop)
        host.pausing.report_to(PauseReports(self.name, holds=self.holds, event=self.event))

    @property
    @abstractmethod
    def _primary(self) -> Primary[Any]:
        """The primaries; raises `UsageError` before the stores are open."""

    def event(self, key: str, type: EventType, reason: str, message: str) -> None:  # noqa: A002 - the field's word
        """Record an event about *key*, for people."""
        self._host.history.event(key, type, reason, message)

    def holds(self, key: str) -> bool:
        """See `Hosted.holds`."""
        return self._keys.holds(key)

    def hold_only(self, keys: Collection[str]) -> None:
        """See `Hosted.hold_only`."""
        self._keys.hold_only(keys)

    def resync(self, *keys: str) -> int:
        """See `Hosted.resync`."""
        return self._keys.resync(self._primary, keys)

    def explain(self, key: str) -> Explanation:
        """See `Hosted.explain`."""
        return explanation_of(self._host, key, self._primary.informer.cache, self._loop.queue)

    def tree(self, key: str, beyond: Beyond = lambda _: ()) -> Branch:
        """See `Hosted.tree`."""
        return tree(key, self._primary.informer, beyond=beyond)

    def status(self) -> Status:
        """See `Hosted.status`."""
        return status_of(self._host, self.holds, self._keys.count, syncs=self._counts())

    def _counts(self) -> Counts:
        now, queue = asyncio.get_running_loop().time(), self._loop.queue
        counts = self._loop.counters.read(now, queue.unanswered())
        if counts.oldest_s <= OVERDUE_S:
            return counts
        return msgspec.structs.replace(counts, late=queue.unanswered_since(now - OVERDUE_S))
