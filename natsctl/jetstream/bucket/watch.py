"""Watches a bucket without losing a change: a full list, then every change, or an error.

Each watch lists the whole bucket with a new consumer, so a key that vanished since the last watch
is missing from the list. A watch never resumes at a sequence, because a resumed consumer does not
report keys that an administrator purged, or that a recreated bucket no longer has.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, closing
from functools import partial
from typing import cast

from natsctl.errors import WatchBrokenError
from natsctl.jetstream.bucket.bucket import Bucket, Message, StreamState
from natsctl.jetstream.bucket.consumer import Consumers, FeedMaker
from natsctl.jetstream.bucket.feed import Feed, Item
from natsctl.jetstream.bucket.fingerprints import Fingerprints
from natsctl.jetstream.bucket.hedge import AGAIN_S, hedged
from natsctl.jetstream.bucket.key_count import KeyCount
from natsctl.jetstream.bucket.periodic import Periodic
from natsctl.model.store import Applied, Batch, IllegalKey, Listed, Listing, Stored, WatchEvent
from natsctl.slices import in_slices
from natsctl.split_dict import SplitDict
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

VERIFY_S = 60.0  # the interval of checks that the consumer has not stopped
COUNTS = 6  # counts of the keys between two checks
PASSES = (
    3  # passes over keys that change during a listing, before missing keys are read at the leader
)


class KvWatch:
    """Watches the keys of one bucket that match a pattern, through a *feed* for each consumer.

    A purge by an administrator or a lower limit of the stream sends no message. So the watch counts
    the keys of the bucket every `verify_s / COUNTS` seconds with one request, or every `verify_s`
    seconds if values expire without a delete marker. The watch lists the keys only if the counts
    differ at the same revision. The server cannot count a part of a bucket, so the watch lists the
    keys of a part every `verify_s` seconds.
    """

    def __init__(
        self,
        bucket: Bucket,
        pattern: str = ">",
        *,
        verify_s: float = VERIFY_S,
        feed: FeedMaker = Feed,
    ) -> None:
        self._bucket = bucket
        self._pattern = pattern
        self._verify_s = verify_s
        self._consumers = Consumers(bucket, pattern, feed)
        self._table = _Identity()  # of the bucket as the reader with a view has seen it
        self._newest = partial(bucket.newest_revision, pattern)

    @asynccontextmanager
    async def __call__(
        self, shown: Collection[str] | None = None, *, forever: bool = True
    ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Establish the watch; leaving the context deletes the consumer. See `Store.watch`.

        Waits for the connection; unless *forever*, raises `StoreError` after the time that a
        connection may take. The events end with `WatchBrokenError` after a gap, a silence, a lost
        connection or a server's refusal.
        """
        await self._bucket.connection.wait_connected(forever=forever)
        await self._bucket.watched_over.wait_connected(forever=forever)
        identity = self._table if shown is not None else _Identity()
        async with self._consumers.cleared():
            reached = identity.reached  # before the request: its answer may be older than an event
            before = await hedged(self._bucket.state, every_s=AGAIN_S)
            identity.note(before, reached)
            newest = await hedged(self._newest, every_s=AGAIN_S + self._bucket.busy_s)
            async with (
                self._consumers.open() as feed,
                aclosing(
                    self._events(feed, before, newest, _ReportedKeys(shown), identity)
                ) as events,
            ):
                yield events

    async def _events(
        self,
        feed: Feed,
        state: StreamState,
        newest: int,
        reported: "_ReportedKeys",
        identity: "_Identity",
    ) -> AsyncGenerator[WatchEvent, None]:
        """Report what the bucket holds, up to *newest* at least, and then every change.

        A write during the listing removes the message that would show its key; a later message
        shows that key. So the listing ends if nothing was written since it began, or if it has
        shown as many keys as there are. Otherwise it continues to the revision that is the newest
        then. After `PASSES`, the keys that are still missing are read at the leader. The server's
        number of pending messages proves nothing, because it can be too low.
        """
        yield Listing(identity.incarnation)
        async for events in self._list(feed, reported, state, newest):
            for event in events:
                yield event
        yield Listed(max(reported.revision, state.last_seq))  # the newest may have been purged
        async for events in self._follow(feed, reported, state, identity):
            for event in events:
                yield event

    async def _list(
        self, feed: Feed, reported: "_ReportedKeys", state: StreamState, newest: int
    ) -> AsyncGenerator[Iterable[WatchEvent], None]:
        for _ in range(PASSES):
            while reported.revision < newest:
                items = await feed.take()
                yield reported.new_events(items)
                if not items:
                    newest = min(newest, await self._newest())  # it may have been purged
            now = await self._same_stream(state)
            if now.last_seq == state.last_seq or self._is_complete(now, reported):
                return
            newest = await self._newest()
        yield reported.read_ahead(await self._read_unreported(reported))
        await self._same_stream(state)

    async def _follow(
        self, feed: Feed, reported: "_ReportedKeys", state: StreamState, identity: "_Identity"
    ) -> AsyncGenerator[Iterable[WatchEvent], None]:
        due = reported.revision
        count_s = self._verify_s if state.forgets else self._verify_s / COUNTS

        async def sent() -> int:
            newest = await self._newest()
            await feed.arrived()
            return newest

        async def count() -> StreamState:
            while reported.giving:  # noqa: ASYNC110 - the view has a part of the batch, for a moment
                await asyncio.sleep(0)
            reported.begin_count()
            return await self._same_stream(state)

        with (
            closing(Periodic(sent, feed.wake, every_s=self._verify_s)) as newest,
            closing(Periodic(count, feed.wake, every_s=count_s)) as counts,
        ):
            while True:
                identity.reached = max(identity.reached, reported.revision)
                yield reported.new_events(await feed.take())
                if (revision := newest.answer()) is not None:
                    due = await self._verify(reported, due, revision)
                if self._pattern != ">" or reported.compared:
                    continue
                if reported.count.miscounted:
                    counts.hasten()
                if (counted := counts.answer()) is not None and reported.differ(counted):
                    await self._compare(reported)

    async def _same_stream(self, before: StreamState) -> StreamState:
        """Return the bucket's state; raises `WatchBrokenError` if the bucket is another one."""
        now = await self._bucket.state()
        if now.created != before.created:
            raise WatchBrokenError(f"bucket {self._bucket.name} was recreated")
        if now.prefix != before.prefix:
            raise WatchBrokenError(f"the keys of {self._bucket.name} are under {now.prefix}> now")
        return now

    def _is_complete(self, now: StreamState, reported: "_ReportedKeys") -> bool:
        """Return whether this watch has reported as many keys as there are, False for a part."""
        return self._pattern == ">" and now.subjects == len(reported)

    async def _read_unreported(self, reported: "_ReportedKeys") -> list[Message]:
        """Read the keys that were not reported, in the order in which they were written."""
        missing: list[str] = []

        def note(key: str) -> None:
            if not (key in reported.alive or key in reported.deleted):
                missing.append(key)

        await in_slices(await self._bucket.keys(self._pattern), note)
        return sorted(await self._bucket.newest(missing), key=lambda message: message.revision)

    async def _verify(self, reported: "_ReportedKeys", due: int, newest: int) -> int:
        """Raise `WatchBrokenError` if the consumer has not sent revision *due*.

        A consumer may have stopped and still send heartbeats. Returns *newest*, the revision that
        is due at the next check.
        """
        if reported.revision < min(due, newest):
            raise WatchBrokenError(
                f"{self._bucket.name} is at revision {newest}, but the consumer has stopped at "
                f"{reported.revision}"
            )
        reported.compared = False
        if self._pattern != ">":
            await self._compare(reported)
        return newest

    async def _compare(self, reported: "_ReportedKeys") -> None:
        """Raise `WatchBrokenError` if the server has lost a key that was alive."""
        reported.compared = True
        keys = await self._bucket.keys(self._pattern)
        vanished: list[str] = []

        def check(key: str) -> None:
            if key not in keys:
                vanished.append(key)

        await in_slices(reported.alive, check)
        if vanished:
            further_keys = f" and {len(vanished) - 1} more" if len(vanished) > 1 else ""
            await self._note_eviction(len(vanished))
            raise WatchBrokenError(
                f"{min(vanished)}{further_keys} vanished from {self._bucket.name} without a trace"
            )
        await reported.keep_deleted(keys)
        if self._pattern == ">" and reported.illegal:
            state = await self._bucket.state()
            if state.subjects < len(keys) + len(reported.illegal):
                raise WatchBrokenError(f"illegal keys vanished from {self._bucket.name}")
        await in_slices(range(len(keys)), lambda _: keys.pop())  # frees a few strings at a time

    async def _note_eviction(self, count: int) -> None:
        """Note that keys vanished because the bucket is full; natsctl then writes no more values.

        A controller would create them again, and lose others for it, without end.
        """
        bucket = self._bucket
        await bucket.info()
        if bucket.full:
            bucket.evicted = True
            log.error(
                "bucket is full and deletes its oldest keys: raise its limits, and run `nats "
                "stream edit KV_… --discard new`",
                bucket=bucket.name,
                stored=bucket.full,
                lost=count,
            )


class _ReportedKeys:
    """The keys that this watch has reported: those alive, and those with a delete marker.

    Those alive are in *shown*, the view of the reader, if it has one. While the reader takes an
    event, the view may lack it.

    `revision` is that of the consumer's newest message; some keys were read ahead of the consumer.
    `compared` is true if the keys were compared since the last check of the consumer, because the
    numbers of some streams always differ, such as those of a stream with other subjects.
    """

    def __init__(self, shown: Collection[str] | None) -> None:
        own = SplitDict[None]()
        self._own = own if shown is None else None
        self.alive: Collection[str] = own if shown is None else shown
        self.deleted = Fingerprints()
        self.illegal: set[str] = set()  # names that are not legal keys
        self.revision = 0
        self.compared = False
        self.count = KeyCount()
        self.giving = False  # whether the reader takes a batch
        self._read_ahead: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.alive) + len(self.deleted) + len(self.illegal)

    def begin_count(self) -> None:
        """Note that the server counts its keys now."""
        self.count.begin(self.revision, len(self))

    def differ(self, counted: StreamState) -> bool:
        """Return whether the keys must be compared with the server's, see `KeyCount.differs`."""
        return self.count.differs(self.revision, len(self), counted)

    async def keep_deleted(self, keys: set[str]) -> None:
        """Remove the delete markers that are not among *keys*, the present keys of the server."""
        self.count.end()
        deleted = Fingerprints()

        def keep(key: str) -> None:
            if key not in self.alive and key in self.deleted:
                deleted.add(key)

        await in_slices(keys, keep)
        self.deleted = deleted

    def new_events(self, items: list[Item]) -> Iterator[WatchEvent]:
        """Report the consumer's messages that are newer than the reported state of their key."""
        if self._is_batch(items):
            if self.deleted.size:
                for item in items:
                    if item.key not in self.alive:
                        self.deleted.discard(item.key)
            self.giving = True
            yield Batch(cast("list[Stored]", items))
            self.giving = False
            self.revision = items[-1].revision
            return
        for item in items:
            if item.revision > self.revision:
                self.revision = item.revision
                if not self._read_ahead or item.revision > self._read_ahead.get(item.key, 0):
                    yield self._event(item)
                if self.count.active:
                    self.count.note(self.revision, len(self))

    def _is_batch(self, items: list[Item]) -> bool:
        """Return whether a reader with a view may take all messages at once: states in order."""
        return (
            self._own is None
            and not (self._read_ahead or self.count.active)
            and bool(items)
            and items[0].revision > self.revision
            and set(map(type, items)) == _STATES
        )

    def read_ahead(self, messages: Iterable[Message]) -> Iterator[WatchEvent]:
        """Report messages that were read at the leader; the consumer may send them later."""
        for message in messages:
            key, revision = message.key, message.revision
            self._read_ahead[key] = revision
            stored = Stored(key, revision, message.value)
            yield self._event(message.deleted if message.marker else stored)

    def _event(self, item: Item) -> WatchEvent:
        if isinstance(item, Stored):
            if self._own is None:
                if self.deleted.size and item.key not in self.alive:
                    self.deleted.discard(item.key)
            elif item.key not in self._own:
                self._own[item.key] = None
                self.deleted.discard(item.key)
            return Applied(item)
        if isinstance(item, IllegalKey):
            self.illegal.add(item.key)
            return item
        if self._own is not None:
            self._own.pop(item.key)
        self.deleted.add(item.key)
        return item


_STATES = {Stored}


class _Identity:
    """Names the incarnation of a bucket, as one reader sees it.

    The name changes if the bucket was recreated, or if its last revision is lower than what the
    reader had `reached` when it asked.
    """

    def __init__(self) -> None:
        self.incarnation = ""
        self.reached = 0  # the highest revision that this reader has seen
        self._created = ""
        self._fallbacks = 0

    def note(self, state: StreamState, reached: int) -> None:
        """Take over an answer of the server to a request that was sent at revision *reached*."""
        if state.created != self._created:
            self._created, self._fallbacks, self.reached = state.created, 0, 0
        elif state.last_seq < reached:
            self._fallbacks, self.reached = self._fallbacks + 1, 0
        self.incarnation = f"{self._created}#{self._fallbacks}".removesuffix("#0")
