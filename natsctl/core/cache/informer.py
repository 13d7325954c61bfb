"""Keep a cache equal to a store, and tell subscribers what changed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Generic, TypeVar

from natsctl.core.cache.cache import Cache, IndexFunc, Invalid
from natsctl.core.cache.invalid_log import InvalidLog
from natsctl.core.queue.retry import backoff
from natsctl.core.task_group import together
from natsctl.errors import StoreError, StoreMissingError
from natsctl.model.kinds import Kind
from natsctl.model.store import Change, Listed, Listing, Sequenced, Store, WatchEvent
from natsctl.telemetry.logger import unbind_sync
from natsctl.telemetry.tracing import Span, watch_span

log = logging.getLogger(__name__)

T = TypeVar("T")
OnChange = Callable[[Change[T]], None]

CATCH_UP_S = 5.0
HEALTHY_S = 30.0  # a watch that lived this long starts its backoff afresh
BACKOFF_S = 0.05
BACKOFF_MAX_S = 5.0
BATCH = 500  # changes told before other tasks get their turn
ABSENT = "absent"  # the incarnation of a kind that the store does not have


class Informer(Generic[T]):
    """One watch, one cache, any number of subscribers.

    Subscribers are plain functions and must not block: they put keys on a queue. One that raises
    is logged and harms no other.

    If the kind is optional and the store does not have it, the cache is complete and empty,
    `absent` is true, and the informer keeps looking for the kind. *on_appeared* is called when the
    kind is there and its objects are cached.
    """

    def __init__(
        self,
        store: Store,
        kind: Kind[T],
        *,
        indexes: Mapping[str, IndexFunc[T]] | None = None,
        on_invalid: Callable[[Invalid], None] | None = None,
        on_listed: Callable[[], None] | None = None,
        on_appeared: Callable[[], None] | None = None,
    ) -> None:
        self.store = store
        self.restarts = 0
        self.failure: StoreError | None = None  # why there is no watch just now
        self.absent = False  # whether the store does not have this optional kind
        self.telling = False  # whether there are cached changes still to be told
        self._on_invalid = on_invalid
        self._invalid_log = InvalidLog(kind)
        self._on_listed = on_listed
        self._on_appeared = on_appeared
        self.cache = Cache(kind, indexes, self._report)
        self._subscribers: tuple[OnChange[T], ...] = ()

    @contextmanager
    def subscribe(self, on_change: OnChange[T]) -> Iterator[None]:
        """Call *on_change* for what is cached now and for every later change."""
        for key in list(self.cache.keys()):
            stored = self.cache.get(key)
            on_change(Change(self.cache.kind, key, None, stored, initial=True))
        self._subscribers = (*self._subscribers, on_change)
        try:
            yield
        finally:
            remaining = list(self._subscribers)
            remaining.remove(on_change)
            self._subscribers = tuple(remaining)

    async def run(self, *, over: Callable[[StoreError], bool] | None = None) -> None:
        """Watch until cancelled; start over, later and later, when the watch breaks.

        A failure that is the end, as *over* says, is raised; by default none is.
        """
        unbind_sync()
        with closing(self._invalid_log):
            await self._run(over)

    async def _run(self, over: Callable[[StoreError], bool] | None) -> None:
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            started = clock()
            try:
                with self._span() as establishing:
                    async with self.store.watch() as events:
                        await self._follow(events, establishing)
            except StoreError as error:
                if self.cache.kind.optional and isinstance(error, StoreMissingError):
                    self._disappeared(error)
                else:
                    self.failure = error
                    if over is not None and over(error):
                        raise
                    log.warning("watch of %s broke: %s", self.cache.kind.name, error)
            failures = 1 if clock() - started > HEALTHY_S else failures + 1
            self.restarts += not self.absent
            await asyncio.sleep(backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S))

    def _span(self) -> Span:
        return watch_span(self.cache.kind.name, lambda: {"natsctl.watch.restarts": self.restarts})

    def _disappeared(self, error: StoreMissingError) -> None:
        """Show no objects of a kind that the store does not have, until the kind is there."""
        self.failure = None
        if self.absent:
            return
        self.absent = True
        log.info("%s is optional and not there yet: %s", self.cache.kind.name, error)
        for event in (Listing(ABSENT), Listed(0)):
            for change in self.cache.apply(event):
                self._tell(change, self._subscribers)

    def _listed(self) -> None:
        if self._on_listed is not None:
            self._on_listed()
        if self.absent:
            self.absent = False
            log.info("%s is there now", self.cache.kind.name)
            if self._on_appeared is not None:
                self._on_appeared()

    async def _follow(self, events: AsyncIterator[WatchEvent], establishing: Span) -> None:
        told = 0
        async for event in events:
            self.failure = None
            subscribers = self._subscribers  # who comes later was told what is cached by now
            for change in self.cache.apply(event):
                self._tell(change, subscribers)
                told += 1
                if told % BATCH == 0:
                    self.telling = True
                    await asyncio.sleep(0)
                    self.telling = False
            if isinstance(event, Listed):
                establishing.end()
                self._listed()

    def _tell(self, change: Change[T], subscribers: Iterable[OnChange[T]]) -> None:
        for on_change in subscribers:
            if on_change not in self._subscribers:
                continue  # it has unsubscribed meanwhile
            try:
                on_change(change)
            except Exception:
                log.exception("a subscriber failed on %s %s", self.cache.kind.name, change.key)

    def _report(self, invalid: Invalid) -> None:
        self._invalid_log.add(invalid)
        if self._on_invalid is not None and not invalid.illegal:
            self._on_invalid(invalid)


async def catch_up(informers: Iterable[Informer[Any]], *, limit_s: float = CATCH_UP_S) -> None:
    """Wait until each cache has passed the newest write that its store's leader has now.

    So whoever leads from here on acts on nothing older than what the one before it wrote. A store
    that cannot say how far it is, as a cluster cannot, is not waited for. What is not there within
    *limit_s* is said in the log, and no longer waited for.
    """
    async with together() as group:
        for informer in informers:
            group.create_task(_caught_up(informer, limit_s), name="catching up")


async def _caught_up(informer: Informer[Any], limit_s: float) -> None:
    if not isinstance(informer.store, Sequenced):
        return
    try:
        async with asyncio.timeout(limit_s):
            await informer.cache.passed(await informer.store.newest_revision())
    except (StoreError, TimeoutError) as error:
        name = informer.cache.kind.name
        why = str(error) or f"not within {limit_s:g} s"
        log.warning("%s may be behind its store: %s", name, why)
