"""Keeps a table equal to a store, and notifies subscribers of changes."""

import asyncio
import math
import random
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, Generic, TypeVar

from natsctl.core.retry import backoff, up_to_a_tenth
from natsctl.core.table import IndexFunc, Invalid, Keeping, Table
from natsctl.core.task_group import for_each, together
from natsctl.errors import NotFoundError, StoreError, StoreMissingError
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind
from natsctl.model.store import (
    Applied,
    Batch,
    Change,
    Deleted,
    Listed,
    Listing,
    Sequenced,
    Store,
    Stored,
    WatchEvent,
)
from natsctl.slices import Slices, in_slices
from natsctl.telemetry.logger import get_logger, unbind_sync
from natsctl.telemetry.tracing import Span, watch_span

log = get_logger(__name__)
INVALID_LOG = f"{__name__}.invalid"
"""The logger of invalid objects."""
_invalid = get_logger(INVALID_LOG)

SHOWN_MAX = 10  # invalid objects that are logged one by one in an interval; others are counted
COUNT_S = 60.0  # the interval

K = TypeVar("K")
T = TypeVar("T")
OnChange = Callable[[Change[T]], object]
OnChanges = Callable[[Sequence[Change[T]]], object]
"""Takes changes in their order; it may be called with some of them again after it raises."""

BEHIND_S = 5.0  # until a table that is behind its store is logged, and its store is asked again
APPLIED_MAX = 64  # states that are applied before the clock is read
EVENTS = 10  # events and changes after which the informer reads the clock
SHARE = 4  # items that one change of a listing counts for: its sync takes longer than its notice
FILLED_MAX = 500  # values that are added or forgotten before other tasks run
HEALTHY_S = 30.0  # the backoff starts over after a watch that lasted this long
BACKOFF_S = 0.05
BACKOFF_MAX_S = 5.0
RELIST_MAX_S = 30.0  # for a cluster, whose lists are costly, as client-go's
ABSENT = "absent"  # the incarnation of a kind that does not exist in the store


class Informer(Generic[T]):
    """One watch, one table, and any number of subscribers.

    Subscribers are plain functions that must not block; usually they put keys on a queue. If one
    raises, the error is logged and the others are still called.

    If the kind is optional and does not exist in the store, the table is synced and empty, `absent`
    is True, and the informer keeps watching. *on_appeared* is called when the kind exists and its
    objects are cached.
    """

    def __init__(
        self,
        store: Store,
        kind: Kind[T],
        *,
        indexes: Mapping[str, IndexFunc[T]] | None = None,
        on_invalid: Callable[[Invalid], None] = lambda _: None,
        on_listed: Callable[[], None] = lambda: None,
        on_appeared: Callable[[], None] = lambda: None,
        keeping: Keeping | None = None,
        notes_deleted: bool = False,
    ) -> None:
        self.store = store
        self.restarts = 0
        self.failure: StoreError | None = None  # the error of the watch, until the next event
        self.absent = False  # whether this optional kind does not exist in the store
        self._notifying = asyncio.Lock()  # held while a subscriber has not seen all objects
        self._on_invalid, self._on_listed, self._on_appeared = on_invalid, on_listed, on_appeared
        self._invalid = 0  # objects in this interval
        self._count_at: asyncio.TimerHandle | None = None
        self.table = Table(
            kind, indexes, self._report, keeping=keeping, notes_deleted=notes_deleted
        )
        self._subscribers: dict[OnChange[T], OnChanges[T] | None] = {}  # replaced, never changed

    @property
    def notifying(self) -> bool:
        """True while subscribers have not seen all cached changes yet."""
        return self._notifying.locked()

    @asynccontextmanager
    async def subscribe(
        self, on_change: OnChange[T], on_changes: OnChanges[T] | None = None
    ) -> AsyncIterator[None]:
        await self.add(on_change, on_changes)
        try:
            yield
        finally:
            self.remove(on_change)

    async def add(self, on_change: OnChange[T], on_changes: OnChanges[T] | None = None) -> None:
        """Call *on_change* for every cached object, and for every later change until `remove`.

        Later changes are passed to *on_changes*, several at once, if it's given. Returns after the
        calls for the cached objects. These are made in slices, and later events wait until then.
        """
        async with self._notifying:
            table, kind = self.table, self.table.kind
            await in_slices(
                table.keys(),
                lambda key: on_change(Change(kind, key, None, table.get(key), initial=True)),
            )
            self._subscribers = {**self._subscribers, on_change: on_changes}

    def remove(self, on_change: OnChange[T]) -> None:
        remaining = self._subscribers.copy()
        del remaining[on_change]
        self._subscribers = remaining

    async def fill(self, objects: Iterable[Stored]) -> None:
        """Add values that were read from the store, and notify subscribers, see `Table.fill`."""

        def fill(stored: Stored) -> None:
            change = self.table.fill(stored)
            if change is not None:
                self._notify_all([change])

        await self._in_batches_of(objects, fill)

    async def release(self, keys: Iterable[str] | None = None) -> None:
        """Forget the values of these objects, or of all, that aren't kept any more, in slices."""
        if keys is None:
            keys = chain(self.table.read_keys(), tuple(self.table.invalid))
        await self._in_batches_of(keys, self.table.release)

    async def _in_batches_of(self, items: Iterable[K], work: Callable[[K], object]) -> None:
        """Call *work* for each item while no subscriber is behind, and let other tasks run."""
        iterator = iter(items)
        while batch := list(islice(iterator, FILLED_MAX)):
            async with self._notifying:
                for item in batch:
                    work(item)
            await asyncio.sleep(0)

    async def run(self, *, is_final: Callable[[StoreError], bool] | None = None) -> None:
        """Watch until cancelled; restart the watch with backoff when it breaks.

        Raises a `StoreError` for which *is_final* returns True; by default none is raised.
        """
        unbind_sync()
        clock, kind = asyncio.get_running_loop().time, self.table.kind

        def restarts() -> dict[str, int]:
            return {"natsctl.watch.restarts": self.restarts}

        failures = 0
        try:
            while True:
                started, limit_s, jitter = clock(), BACKOFF_MAX_S, up_to_a_tenth
                try:
                    with watch_span(kind.name, restarts) as establishing:
                        async with self.store.watch(self.table.shown) as events:
                            await self._follow(events, establishing)
                except StoreError as error:
                    missing = isinstance(error, StoreMissingError)
                    self.failure = None if missing and kind.optional else error
                    if self.failure is not None:
                        if is_final is not None and is_final(error):
                            raise
                        log.warning("watch broke", kind=kind.name, error=error)
                        if isinstance(kind, KubeKind) and not missing:
                            limit_s, jitter = RELIST_MAX_S, lambda: random.uniform(-0.5, 0.0)  # noqa: S311 - spreads load, keeps no secret
                    elif not self.absent:
                        self.absent = True
                        log.info("optional kind does not exist yet", kind=kind.name, error=error)
                        for event in (Listing(ABSENT), Listed(0)):
                            await self._apply(event, Slices())
                failures = 1 if clock() - started > HEALTHY_S else failures + 1
                self.restarts += not self.absent
                await asyncio.sleep(
                    backoff(failures, base_s=BACKOFF_S, limit_s=limit_s, jitter=jitter)
                )
        finally:
            self._log_count()

    async def _follow(self, events: AsyncIterator[WatchEvent], establishing: Span) -> None:
        slices, table, applied = Slices(EVENTS), self.table, 0
        async for event in events:
            self.failure = None
            if isinstance(event, Batch | Applied):
                states = event.states
                for first in range(0, len(states), APPLIED_MAX):
                    part = states[first : first + APPLIED_MAX]
                    if self._notifying.locked():
                        await self._apply(Batch(part), slices)
                        continue
                    changes = table.put(part)
                    if changes:
                        self._notify_all(changes)
                    applied += len(part)
                    if applied >= APPLIED_MAX:  # each slice costs a turn of the event loop
                        if slices.is_over_after(applied):
                            await slices.pause()
                        applied = 0
                continue
            await self._apply(event, slices)
            if isinstance(event, Listed):
                establishing.end()
                self._on_listed()
                if self.absent:
                    self.absent = False
                    log.info("optional kind exists now", kind=table.kind.name)
                    self._on_appeared()

    async def _apply(self, event: WatchEvent, slices: Slices) -> None:
        """Apply the event, and notify subscribers of its changes in slices."""
        while self._notifying.locked():
            async with self._notifying:
                pass  # a new subscriber has seen all objects
        changes = iter(self.table.apply(event))
        if not self._notify_slice(changes, slices):
            async with self._notifying:
                await slices.pause()
                while not self._notify_slice(changes, slices):
                    await slices.pause()
        if slices.is_over():
            await slices.pause()

    def _notify_slice(self, changes: Iterator[Change[T] | None], slices: Slices) -> bool:
        """Notify subscribers of changes until the slice is over; return whether none is left."""
        while steps := list(islice(changes, APPLIED_MAX)):
            for _, batch in groupby(filter(None, steps), attrgetter("initial")):
                self._notify_all(list(batch))
            if slices.is_over_after(SHARE * len(steps)):
                return False
        return True

    def _notify_all(self, changes: Sequence[Change[T]]) -> None:
        """Notify each subscriber of all changes; one that fails gets them again, one by one."""
        for on_change, on_changes in self._subscribers.items():
            if on_changes is not None and on_change in self._subscribers:
                try:
                    on_changes(changes)
                except Exception:
                    log.exception("subscriber failed", kind=self.table.kind.name)
                else:
                    continue
            for change in changes:
                if on_change in self._subscribers:  # no other subscriber has unsubscribed it
                    try:
                        on_change(change)
                    except Exception:
                        log.exception(
                            "subscriber failed", kind=self.table.kind.name, object=change.key
                        )

    def _report(self, invalid: Invalid) -> None:
        """Log an invalid object; the first line of an interval gives the likely cause."""
        if self._count_at is None:
            loop = asyncio.get_running_loop()
            self._count_at = loop.call_later(COUNT_S, self._log_count)
        self._invalid += 1
        if self._invalid <= SHOWN_MAX:
            cause, kind = "", self.table.kind
            if self._invalid == 1 and not invalid.illegal:
                cause = kind.likely_cause(invalid.stored.value)
            _invalid.error(
                "skipped an invalid object",
                kind=kind.name,
                key=invalid.stored.key,
                revision=invalid.stored.revision,
                hint=f"if all values are like this, {cause}" if cause else None,
                error=invalid.error,
            )
        if not invalid.illegal:
            self._on_invalid(invalid)

    def _log_count(self) -> None:
        """Log how many more objects were invalid, and begin the next interval."""
        if self._count_at is not None:
            self._count_at.cancel()
        more, self._invalid, self._count_at = self._invalid - SHOWN_MAX, 0, None
        if more > 0:
            _invalid.error("skipped more invalid objects", kind=self.table.kind.name, objects=more)


async def catch_up(informers: Iterable[Informer[Any]]) -> None:
    """Wait until each table includes the newest write of its store.

    A new leader then sees the writes of the leader before it. A store that has no newest revision,
    such as a cluster, is not waited for, nor is a store that does not return it. A table that stays
    behind is logged every `BEHIND_S` seconds. A write that was removed since is not waited for.
    """
    async with together() as group:
        for informer in informers:
            group.create_task(_caught_up(informer), name="catching up")


async def _caught_up(informer: Informer[Any]) -> None:
    store, kind, needed = informer.store, informer.table.kind.name, math.inf
    while isinstance(store, Sequenced):
        try:
            async with asyncio.timeout(BEHIND_S):
                needed = min(needed, await store.newest_revision())
        except (StoreError, TimeoutError) as error:
            reason = str(error) or f"no answer within {BEHIND_S:g} s"
            log.warning("table may be behind its store", kind=kind, error=reason)
            return
        try:
            async with asyncio.timeout(BEHIND_S):
                await informer.table.passed(int(needed))
        except TimeoutError:
            log.warning("no key is synced until the table shows the newest writes", kind=kind)
        else:
            return


SINGLE_MAX = 2_000  # more values are read by one list of the store instead of one by one
READS_MAX = 32  # values that are read at once


async def read_values(  # noqa: C901 - one straight line
    informer: Informer[Any], wanted: Callable[[str], bool]
) -> None:
    """Return when the table has the value of every *wanted* object that it contains.

    The values come from the leader of the store. A value is used only if its revision is the cached
    one: if the object has changed since, the watch brings its value, because the key is kept now. A
    read that fails is repeated with backoff until it succeeds.

    *Assumes* that the table keeps the wanted keys from now on.
    """
    store, table, attempts = informer.store, informer.table, 0

    async def read(key: str) -> None:
        with suppress(NotFoundError):  # the watch brings the deletion
            await informer.fill((await store.get(key),))

    while True:
        missing, slices = dict[str, None](), Slices()
        for key in table.missing(wanted):
            if key is not None:
                missing[key] = None
            if len(missing) > SINGLE_MAX:
                break
            if slices.is_over():
                await slices.pause()
        if not missing:
            return
        attempts += 1
        if attempts > 1:
            await asyncio.sleep(backoff(attempts - 1, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S))
        try:
            if len(missing) <= SINGLE_MAX:
                await for_each(missing, read, workers=READS_MAX)
                continue
            async with store.watch(_EveryKey(table)) as events:
                async for event in events:
                    if isinstance(event, Listed):
                        break
                    if isinstance(event, Batch | Applied):
                        await informer.fill(event.states)
        except StoreError as error:
            log.warning("cannot read values yet", kind=table.kind.name, error=error)


async def deleted_keys(store: Store, wanted: Callable[[str], bool]) -> list[str]:
    """Return the *wanted* keys whose newest state is a deletion.

    A list that fails is repeated with backoff until it succeeds.
    """
    failures = 0
    while True:
        keys: dict[str, None] = {}
        try:
            async with store.watch() as events:
                async for event in events:
                    if isinstance(event, Listed):
                        return list(keys)
                    if isinstance(event, Deleted) and wanted(event.key):
                        keys[event.key] = None
        except StoreError as error:
            failures += 1
            log.warning("cannot list deletions yet", kind=store.kind.name, error=error)
            await asyncio.sleep(backoff(failures, base_s=BACKOFF_S, limit_s=BACKOFF_MAX_S))


class _EveryKey(Collection[str]):
    """The view of a reader that only takes values: it has as many keys as the table, and any."""

    def __init__(self, table: Table[Any]) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table.shown)

    def __contains__(self, key: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(self._table.shown)
