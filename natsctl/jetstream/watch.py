"""Watches a bucket without losing a change: a full list, then every change, or an error.

A watch lists the whole bucket with a new consumer, so a key that vanished is missing from the list.
A reader with a view of its keys doesn't need a list after each lost connection: the next watch
proves that the stream is still the one that it has seen, and continues behind the last message. See
`natsctl.jetstream.resume`; whatever differs leads to a list.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, closing, suppress
from functools import partial
from typing import Any, Generic, TypeVar, cast

from natsctl.errors import StoreError, StoreMissingError, WatchBrokenError
from natsctl.jetstream.bucket import Bucket, Message, StreamState
from natsctl.jetstream.feed import AGAIN_S, PASSES, Consumers, Feed, Item, hedged, names
from natsctl.jetstream.resume import ANCHORS, NotResumedError, Proof, Seen, Sight
from natsctl.model.store import Applied, Batch, IllegalKey, Listed, Listing, Stored, WatchEvent
from natsctl.slices import in_slices
from natsctl.split_dict import SplitDict
from natsctl.telemetry.logger import get_logger

_SHARDS = 4096  # many short sorted arrays, so that an insertion moves few items


class Fingerprints:
    """A set of key hashes; `size` is their number.

    Two keys with the same hash count as one. The probability of such a pair among a million keys is
    about one in thirty million.
    """

    def __init__(self) -> None:
        self._shards: dict[int, array[int]] = {}
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __contains__(self, key: str) -> bool:
        return self._find(key)[2]

    def add(self, key: str) -> None:
        shard, index, present = self._find(key)
        if not present:
            shard.insert(index, hash(key))
            self.size += 1

    def discard(self, key: str) -> None:
        shard, index, present = self._find(key)
        if present:
            del shard[index]
            self.size -= 1

    def _find(self, key: str) -> "tuple[array[int], int, bool]":
        """Return the place of the key, and whether it's there."""
        fingerprint = hash(key)
        shard = self._shards.setdefault(fingerprint % _SHARDS, array("q"))
        index = bisect_left(shard, fingerprint)
        return shard, index, index < len(shard) and shard[index] == fingerprint


T = TypeVar("T")


class _Question(Generic[T]):
    """A question that is asked every *every_s* seconds, the first time after one interval.

    The interval starts when an answer is taken. *feed* is woken when an answer is there.
    """

    def __init__(
        self, ask: Callable[[], Coroutine[Any, Any, T]], feed: Feed, every_s: float
    ) -> None:
        self.answered = False
        self._ask = ask
        self._feed = feed
        self._every_s = every_s
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[T] | None = None
        self._timer = self._loop.call_later(every_s, self.ask)

    def ask(self) -> None:
        """Ask the question now."""
        self._timer.cancel()
        self._asking = self._loop.create_task(self._ask(), name="question")
        self._asking.add_done_callback(self._announce_answer)

    def answer(self) -> T | None:
        """Return an answer once, None before it is there; raises the error of the question."""
        if not self.answered or self._asking is None:
            return None
        self.answered = False
        self._timer = self._loop.call_later(self._every_s, self.ask)
        return self._asking.result()

    def close(self) -> None:
        """Cancel the question under way."""
        self._timer.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _announce_answer(self, asking: asyncio.Task[T]) -> None:
        if not asking.cancelled():
            asking.exception()  # mark it as retrieved, because nobody may look at it
            self.answered = True
            self._feed.wake()


log = get_logger(__name__)

VERIFY_S = 60.0  # the interval of checks that the consumer has not stopped
COUNTS = 6  # counts of the keys between two checks
RECOUNT_S = 0.1  # between two counts of a watch that continues
RECOUNTS = 5  # counts that differ while keys are written, before a watch doesn't continue
REACH_S = 0.02  # between two looks whether a watch has reached the revision of a count
READ_MAX = 100  # names that are read at once, to see whether they are still there


class KvWatch:
    """Watches the keys of one bucket that match patterns, through a *feed* for each consumer.

    A purge by an administrator or a lower limit of the stream sends no message. So the watch counts
    the keys of the bucket every `verify_s / COUNTS` seconds with one request, or every `verify_s`
    seconds if values expire without a delete marker, or if the server must look at every name to
    count a part of them. The watch lists the keys only if the counts differ at the same revision.

    *times* gets the time at which each key was stored, see `Feed`.
    """

    def __init__(
        self,
        bucket: Bucket,
        patterns: Sequence[str] = (">",),
        *,
        verify_s: float = VERIFY_S,
        times: dict[str, int] | None = None,
    ) -> None:
        self._bucket = bucket
        self._patterns = tuple(patterns)
        self._verify_s = verify_s
        self._consumers = Consumers(bucket, self._patterns, times)
        self._reported = _ReportedKeys(None)  # to a reader with a view
        self._newest = partial(bucket.newest_revision, self._patterns)

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
        reported = self._reported
        if shown is None or reported.alive is not shown:
            reported = _ReportedKeys(shown)
            if shown is not None and not self._reported.watched:
                self._reported = reported
        reported.watched = True
        consumers = self._consumers
        try:
            await consumers.delete_abandoned()
            reached = reported.reached  # before the request: its answer may be older
            state = await hedged(self._bucket.state, every_s=AGAIN_S)
            proof = reported.begin(state, reached)
            find = self._newest if proof is None else partial(self._newest, seen=reached)
            newest = await hedged(find, every_s=AGAIN_S)
            start = 0 if proof is None else reported.seen.first
            async with (
                consumers.open(start=start) as feed,
                aclosing(self._events(feed, state, newest, reported, proof)) as events,
            ):
                yield events
        except StoreMissingError:
            reported.forget()  # the reader may empty its view
            raise
        finally:
            reported.watched = False
            with suppress(StoreError):
                await asyncio.shield(consumers.delete_abandoned())

    async def _events(  # noqa: C901 - one straight line
        self,
        feed: Feed,
        state: StreamState,
        newest: int,
        reported: "_ReportedKeys",
        proof: Proof | None,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Report what the bucket holds, up to *newest* at least, and then every change.

        A write during the listing removes the message that would show its key; a later message
        shows that key. So the listing ends if nothing was written since it began, or if it has
        shown as many keys as there are. Otherwise it continues to the revision that is the newest
        then. After `PASSES`, the keys that are still missing are read at the leader. The server's
        number of pending messages proves nothing, because it can be too low.
        """
        if proof is None:
            yield Listing(reported.incarnation)
            events = self._list(feed, reported, state, newest)
        else:
            events = self._resume(feed, reported, state, newest, proof)
        async with aclosing(events):
            async for batch in events:
                for event in batch:
                    yield event
        yield Listed(max(reported.revision, state.last_seq))  # the newest may have been purged
        reported.complete = True
        due = reported.revision
        is_costly = state.forgets or self._patterns != (">",)
        count_s = self._verify_s if is_costly else self._verify_s / COUNTS
        count = partial(self._is_miscounted, reported, state, count_s)

        async def sent() -> int:
            newest = await self._newest(seen=reported.revision)
            await feed.arrived()
            return newest

        with (
            closing(_Question(sent, feed, self._verify_s)) as newest_sent,
            closing(_Question(count, feed, count_s)) as counts,
        ):
            while True:
                items = await feed.take()
                if feed.plain and reported.begin_batch(items):  # without a generator per batch
                    yield Batch(items)  # type: ignore[arg-type]  # plain
                    reported.end_batch(items, feed.seen)
                else:
                    for event in reported.new_events(items, feed):
                        yield event
                if newest_sent.answered and (revision := newest_sent.answer()) is not None:
                    if reported.revision < min(due, revision):
                        # it may have stopped and still send heartbeats
                        raise WatchBrokenError(
                            f"{self._bucket.name} is at revision {revision}, but the consumer has "
                            f"stopped at {reported.revision}"
                        )
                    reported.compared, due = False, revision
                if counts.answered and not reported.compared and counts.answer():
                    await self._compare(reported)

    async def _list(
        self, feed: Feed, reported: "_ReportedKeys", state: StreamState, newest: int
    ) -> AsyncGenerator[Iterable[WatchEvent], None]:
        for _ in range(PASSES):
            while reported.revision < newest:
                items = await feed.take()
                yield reported.new_events(items, feed)
                if not items:
                    newest = min(newest, await self._newest())  # it may have been purged
            now = await self._same_stream(state)
            has_all = self._patterns == (">",) and now.subjects == len(reported)
            if now.last_seq == state.last_seq or has_all:
                return
            newest = await self._newest()
        yield reported.read_ahead(await self._read_unreported(reported))
        await self._same_stream(state)

    async def _resume(
        self,
        feed: Feed,
        reported: "_ReportedKeys",
        state: StreamState,
        newest: int,
        proof: Proof,
    ) -> AsyncGenerator[Iterable[WatchEvent], None]:
        """Report what was written meanwhile, and prove that nothing else has changed.

        Nothing is reported before the stream is known to be the same. A key that was replaced after
        the first look at the newest message comes before the second one.
        """
        position = 0
        try:
            for _ in range(2):
                while position < newest:
                    items = await feed.take()
                    if items:
                        position = items[-1].revision
                        proof.compare(feed.seen)
                    else:
                        newest = min(newest, await self._newest())  # it may have been purged
                    if proof.compared:
                        feed.sights_max = ANCHORS
                        yield reported.new_events(items, feed)
                if not proof.missing:
                    break
                proof.all_known_came()
                newest = await self._newest()
            proof.finish()
            feed.sights_max = ANCHORS
            async for batch in self._recount(feed, reported, state):
                yield batch
        except NotResumedError as error:
            reported.forget(restored=error.restored)
            raise WatchBrokenError(
                f"{self._bucket.name} isn't what was watched, so it's listed again: {error}"
            ) from error

    async def _recount(
        self, feed: Feed, reported: "_ReportedKeys", state: StreamState
    ) -> AsyncGenerator[Iterable[WatchEvent], None]:
        """Report what comes until the server has counted as many keys as were reported."""
        left, tried_at = RECOUNTS, 0
        count = partial(self._is_miscounted, reported, state, RECOUNT_S)
        with closing(_Question(count, feed, RECOUNT_S)) as counts:
            counts.ask()
            miscounted = None
            while miscounted is not False:
                yield reported.new_events(await feed.take(), feed)
                miscounted = counts.answer()
                if miscounted:
                    left -= 1
                    if not left or reported.revision == tried_at:
                        raise NotResumedError("the number of its keys differs")
                    tried_at = reported.revision
                    counts.ask()

    async def _is_miscounted(
        self, reported: "_ReportedKeys", state: StreamState, every_s: float
    ) -> bool | None:
        """Return whether the server counts another number of keys than were reported.

        Only two numbers at the same revision are comparable. Events arrive while the server counts,
        so its answer may be of a newer revision than the newest event: then wait until the watch
        reaches it, or until no event has arrived for *every_s* seconds, because no event may ever
        reach it. None if the answer comes from a server that lags.
        """
        while reported.giving:  # noqa: ASYNC110 - the view has a part of the batch, for a moment
            await asyncio.sleep(0)
        clock = asyncio.get_running_loop().time
        began = reported.revision
        sizes = reported.sizes = [(began, len(reported))]
        try:
            counted = await self._same_stream(state)
            number = counted.subjects
            if self._patterns != (">",):
                number = await self._bucket.count(self._patterns)
            if counted.last_seq < began:
                return None
            if sizes[-1][1] == number and reported.revision < counted.last_seq:
                return False
            at, since = reported.revision, clock()
            while reported.revision < counted.last_seq:
                if clock() - since >= every_s:
                    if reported.revision == at:
                        break
                    at, since = reported.revision, clock()
                await asyncio.sleep(REACH_S)
            then = (size for revision, size in reversed(sizes) if revision <= counted.last_seq)
            return next(then) != number
        finally:
            reported.sizes = None

    async def _same_stream(self, before: StreamState) -> StreamState:
        """Return the bucket's state; raises `WatchBrokenError` if the bucket is another one."""
        now = await self._bucket.state()
        if now.created != before.created:
            raise WatchBrokenError(f"bucket {self._bucket.name} was recreated")
        if now.prefix != before.prefix:
            raise WatchBrokenError(f"the keys of {self._bucket.name} are under {now.prefix}> now")
        return now

    async def _read_unreported(self, reported: "_ReportedKeys") -> list[Message]:
        """Read the keys that were not reported, in the order in which they were written."""
        missing: list[str] = []

        def note(key: str) -> None:
            if not (key in reported.alive or key in reported.deleted):
                missing.append(key)

        await in_slices(await names(self._bucket, *self._patterns), note)
        return sorted(await self._bucket.newest(missing), key=lambda message: message.revision)

    async def _compare(self, reported: "_ReportedKeys") -> None:
        """Raise `WatchBrokenError` if the server has lost a key that was alive.

        The numbers of keys differ. If the bucket's stream has subjects of others too, then the
        number of the names that match does not.
        """
        reported.compared = True
        bucket = self._bucket
        if await bucket.count(self._patterns) == len(reported):
            return
        keys = await names(bucket, *self._patterns)
        unlisted: list[str] = []

        def check(key: str) -> None:
            if key not in keys:
                unlisted.append(key)

        await in_slices(reported.alive, check)
        for first in range(0, len(unlisted), READ_MAX):
            looked_for = unlisted[first : first + READ_MAX]
            found = {message.key for message in await bucket.newest(looked_for)}
            if len(found) < len(looked_for):
                gone = min(key for key in looked_for if key not in found)
                further_keys = f" and {len(unlisted) - 1} more" if len(unlisted) > 1 else ""
                await self._note_eviction(len(unlisted))
                reported.forget()
                raise WatchBrokenError(
                    f"{gone}{further_keys} vanished from {bucket.name} without a trace"
                )
        await reported.keep_deleted(keys)
        if self._patterns == (">",) and reported.illegal:
            state = await bucket.state()
            if state.subjects < len(keys) + len(reported.illegal):
                reported.forget()
                raise WatchBrokenError(f"illegal keys vanished from {bucket.name}")
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
    """The keys that a reader was shown: those alive, and those with a delete marker.

    Those alive are in *shown*, the view of the reader, if it has one. While the reader takes an
    event, the view may lack it. What a reader with a view has seen stays for its next watch.

    `revision` is that of the consumer's newest message; some keys were read ahead of the consumer.
    `compared` is true if the keys were compared since the last check of the consumer, because the
    numbers of some streams always differ, such as those of a stream with other subjects.

    `incarnation` names the stream. It changes if the stream was recreated, or if it was restored:
    then its last revision is lower than what the reader had `reached` when it asked, or another
    message has the revision of one that was seen.
    """

    def __init__(self, shown: Collection[str] | None) -> None:
        own = SplitDict[None]()
        self._own = own if shown is None else None
        self.alive: Collection[str] = own if shown is None else shown
        self.incarnation = ""
        self.reached = 0  # the highest revision that the reader has seen
        self.seen = Seen()
        self.complete = False  # whether the reader has seen a whole list, and nothing differed
        self.watched = False  # whether a watch of the reader is open
        self.sizes: list[tuple[int, int]] | None = None  # revisions with the keys from then on
        self._state: StreamState | None = None
        self._fallbacks = 0
        self._clear()

    def _clear(self) -> None:
        self.deleted = Fingerprints()
        self.illegal: set[str] = set()  # names that are not legal keys
        self.revision = 0
        self._read_ahead: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.alive) + len(self.deleted) + len(self.illegal)

    def begin(self, state: StreamState, reached: int) -> Proof | None:
        """Begin a watch of a stream with this state, which was asked for at revision *reached*.

        Returns the proof that allows the watch to continue, None for a list.
        """
        before, self._state = self._state, state
        if before is None or state.created != before.created:
            self._fallbacks, self.reached = 0, 0
            self.forget()
        elif state.last_seq < reached:
            self.forget(restored=True)
        elif state.prefix != before.prefix or state.reverts:
            self.forget()
        self.incarnation = f"{state.created}#{self._fallbacks}".removesuffix("#0")
        self.compared = False
        self.sizes = None
        self.giving = False  # whether the reader takes a batch
        may_continue = self.complete and self._own is None and bool(self.seen.newest)
        self.complete = False
        if may_continue:
            return Proof(self.seen)
        self.seen = Seen()
        self._clear()
        return None

    def forget(self, *, restored: bool = False) -> None:
        """List at the next watch; *restored* if the stream has fallen back to an older state."""
        self.complete = False
        if restored:
            self._fallbacks, self.reached = self._fallbacks + 1, 0

    async def keep_deleted(self, keys: set[str]) -> None:
        """Remove the delete markers that are not among *keys*, the present keys of the server."""
        deleted = Fingerprints()

        def keep(key: str) -> None:
            if key not in self.alive and key in self.deleted:
                deleted.add(key)

        await in_slices(keys, keep)
        self.deleted = deleted

    def new_events(self, items: list[Item], feed: Feed) -> Iterator[WatchEvent]:
        """Report what was taken from the feed, if it's newer than the reported state of its key.

        The reader has taken a message when it asks for the next one.
        """
        before = self.revision
        if feed.plain and self.begin_batch(items):
            yield Batch(cast("list[Stored]", items))
            self.end_batch(items, feed.seen)
            return
        for item in items:
            if item.revision > self.revision:
                if not self._read_ahead or item.revision > self._read_ahead.get(item.key, 0):
                    yield self._event(item)
                self.revision = item.revision
                if self.sizes is not None and len(self) != self.sizes[-1][1]:
                    self.sizes.append((self.revision, len(self)))
        if self.revision > before:
            self.seen.note(feed.seen, after=before, gap=len(items) > len(feed.seen))
            self.reached = max(self.reached, self.revision)

    def begin_batch(self, items: list[Item]) -> bool:
        """Return whether the reader may take all these states at once, because it has a view."""
        if not items or items[0].revision <= self.revision:
            return False
        if self._own is not None or self._read_ahead or self.sizes is not None:
            return False
        if self.deleted.size:
            for item in items:
                if item.key not in self.alive:
                    self.deleted.discard(item.key)
        self.giving = True
        return True

    def end_batch(self, items: list[Item], sights: Collection[Sight]) -> None:
        self.giving = False
        self.seen.note(sights, after=self.revision, gap=len(items) > len(sights))
        self.revision = items[-1].revision
        self.reached = max(self.reached, self.revision)

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
