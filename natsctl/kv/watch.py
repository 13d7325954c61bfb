"""A watch of a bucket that loses nothing: a full listing, then every change, or a failure.

Each watch lists the bucket anew, on a consumer of its own that lives no longer than it; what
vanished since the last one is missing from the listing. Nothing is resumed by sequence, because a
resumed consumer never tells what an administrator purged or a recreated bucket no longer has.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress

from nats.errors import Error as NatsError

from natsctl.errors import NotFoundError, StoreError, WatchBrokenError
from natsctl.kv.bucket import NANOSECONDS, Bucket, Message, StreamState
from natsctl.kv.feed import HEARTBEAT_S, Feed, Item
from natsctl.model.store import Applied, IllegalKey, Listed, Listing, Stored, WatchEvent

log = logging.getLogger(__name__)

VERIFY_S = 60.0  # how often the key set is compared with the server's
PASSES = 3  # over what was written during a listing, before the rest is read
ABANDONED_S = 10.0  # how long the server keeps a consumer that nobody listens to
ABANDONED_MAX = 16  # consumers that may still be at the server, to be deleted once it answers

FeedMaker = Callable[[str, Callable[[str], Awaitable[None]]], Feed]


class KvWatch:
    """Watches the keys of one bucket that match a pattern, through a *feed* for each consumer."""

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
        self._feed = feed
        self._identity = _Identity()
        self._abandoned: deque[str] = deque(maxlen=ABANDONED_MAX)

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Establish the watch; leaving the context deletes the consumer.

        Waits for the connection. The events end with `WatchBrokenError` after a gap, a silence,
        a lost connection or a server's refusal.
        """
        connection = self._bucket.connection
        await connection.wait_connected()
        feed = self._feed(self._bucket.prefix, connection.client.publish)
        with connection.on_lost(lambda error: feed.fail(str(error))):
            try:
                async with self._inbox(feed) as inbox, self._no_abandoned():
                    before = await self._bucket.state()
                    newest = await self._newest()
                    async with (
                        self._consumer(inbox),
                        aclosing(self._events(feed, before, newest)) as events,
                    ):
                        yield events
            finally:
                feed.close()

    @asynccontextmanager
    async def _inbox(self, feed: Feed) -> AsyncIterator[str]:
        """Subscribe for *feed*, before anything is sent; return the subject."""
        client = self._bucket.connection.client
        inbox = client.new_inbox()
        try:
            subscription = await client.tap(inbox, feed.receive)
        except NatsError as error:
            raise WatchBrokenError(f"cannot listen to {inbox}: {error}") from error
        try:
            yield inbox
        finally:
            with suppress(NatsError):
                await asyncio.shield(subscription.unsubscribe())

    @asynccontextmanager
    async def _consumer(self, inbox: str) -> AsyncIterator[None]:
        """Have the bucket's messages sent to *inbox*.

        The consumer is deleted at the end; one that broke may not answer, and is abandoned.
        """
        name = f"natsctl-{inbox.rsplit('.', 1)[-1]}"
        try:
            await self._create(name, inbox)
            await self._delete_abandoned()
            self._abandoned.clear()  # who has just made a consumer has heard that they are to go
            yield
        except StoreError:
            self._abandoned.append(name)
            raise
        finally:
            if name not in self._abandoned:
                await asyncio.shield(self._delete(name))

    async def _create(self, name: str, inbox: str) -> None:
        config = {
            "name": name,
            "description": "a natsctl watch",
            "deliver_subject": inbox,
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subject": self._bucket.prefix + self._pattern,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * NANOSECONDS),
            "inactive_threshold": int(ABANDONED_S * NANOSECONDS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        body: dict[str, object] = {"stream_name": self._bucket.stream, "config": config}
        body["action"] = "create"
        api = self._bucket.connection.api
        await api(f"CONSUMER.CREATE.{self._bucket.stream}.{name}.{config['filter_subject']}", body)

    async def _delete(self, name: str) -> None:
        with suppress(StoreError):
            await self._bucket.connection.api(f"CONSUMER.DELETE.{self._bucket.stream}.{name}")

    @asynccontextmanager
    async def _no_abandoned(self) -> AsyncIterator[None]:
        """Delete the consumers of watches that broke, before this one and after it.

        A cluster without a leader hears neither; it is told again when it makes a consumer.
        """
        await self._delete_abandoned()
        try:
            yield
        finally:
            with suppress(StoreError):
                await asyncio.shield(self._delete_abandoned())

    async def _delete_abandoned(self) -> None:
        """Have them deleted, where they still are, without waiting.

        Nobody may answer for them; then their server drops them after `ABANDONED_S`, or once it
        is back.
        """
        connection = self._bucket.connection
        try:
            for name in self._abandoned:
                endpoint = f"CONSUMER.DELETE.{self._bucket.stream}.{name}"
                await connection.client.publish(f"{connection.api_prefix}.{endpoint}")
        except NatsError as error:
            raise WatchBrokenError(f"consumers that broke cannot be deleted: {error}") from error

    async def _newest(self) -> int:
        """Return the revision of the leader's newest message, 0 where there is none."""
        try:
            return (await self._bucket.last(self._pattern)).revision
        except NotFoundError:
            return 0

    async def _events(
        self, feed: Feed, state: StreamState, newest: int
    ) -> AsyncGenerator[WatchEvent, None]:
        """Tell what the bucket holds, complete up to what its leader had then, and what follows.

        A key that is written while we list loses the message that would show it, and is shown by
        a later one. So the listing ends where nothing was written meanwhile, or as many keys were
        shown as there are; else it goes on to what is newest by now. Keys that are written again
        and again are read in the end. That nothing is pending would prove nothing: the server's
        count can be too low.
        """
        known = _Known()
        yield Listing(self._identity.of(state))
        for _ in range(PASSES):
            while known.revision < newest:
                items = await feed.take()
                for event in known.news(items):
                    yield event
                if not items:
                    newest = min(newest, await self._newest())  # it may have been purged meanwhile
            now = await self._still(state)
            if now.last_seq == state.last_seq or self._all_of(now, known):
                break
            newest = await self._newest()
        else:
            for event in known.ahead(await self._unseen(known)):
                yield event
            await self._still(state)
        yield Listed(max(known.revision, state.last_seq))  # the newest may have been purged
        clock = asyncio.get_running_loop().time
        verified, due = clock(), newest
        while True:
            self._identity.reached(known.revision)
            for event in known.news(await feed.take()):
                yield event
            if known.miscounted or clock() - verified >= self._verify_s:
                due = await self._verify(known, due)
                verified = clock()

    async def _still(self, before: StreamState) -> StreamState:
        """Return how far the bucket is now; raises `WatchBrokenError` where it is another one."""
        now = await self._bucket.state()
        if now.created != before.created:
            raise WatchBrokenError(f"bucket {self._bucket.name} was recreated meanwhile")
        return now

    def _all_of(self, now: StreamState, known: "_Known") -> bool:
        """Say whether as many keys were told as there are; of a part, nobody counts them."""
        return self._pattern == ">" and now.subjects == len(known)

    async def _unseen(self, known: "_Known") -> list[Message]:
        """Read the keys that have not been told, in the order in which they were written."""
        missing = await self._bucket.keys(self._pattern) - known.alive - known.deleted
        return sorted(await self._bucket.newest(missing), key=lambda message: message.revision)

    async def _verify(self, known: "_Known", due: int) -> int:
        """Look for what no message tells; return the revision that must have come by next time.

        An administrator's purge shows in the key set, and a consumer that only sends heartbeats
        in revision *due*, which has not come.
        """
        newest = await self._newest()
        if known.revision < min(due, newest):
            raise WatchBrokenError(
                f"{self._bucket.name} is at revision {newest}, but the consumer has stopped at "
                f"{known.revision}"
            )
        now, odd = await self._bucket.state(), known.miscounted or known.counting
        known.count(None)
        if not self._all_of(now, known):
            if now.last_seq <= known.revision or odd or self._pattern != ">":
                await self._compare_keys(known)
            else:
                known.count(now)  # what is on its way may explain it
        return newest

    async def _compare_keys(self, known: "_Known") -> None:
        found = await self._bucket.keys(self._pattern)
        vanished = known.alive - found
        if vanished:
            others = f" and {len(vanished) - 1} more" if len(vanished) > 1 else ""
            raise WatchBrokenError(
                f"{min(vanished)}{others} vanished from {self._bucket.name} without a trace"
            )
        known.deleted &= found
        if self._pattern == ">" and known.illegal:
            state = await self._bucket.state()
            if state.subjects < len(found) + len(known.illegal):
                raise WatchBrokenError(f"illegal keys vanished from {self._bucket.name}")


class _Known:
    """What this watch has told: the keys alive, and those of which a delete marker is left.

    `revision` is how far the consumer has come; some keys were read ahead of it. `miscounted` says
    that there were not as many keys as were told at the revision at which they were to be counted.
    """

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.deleted: set[str] = set()
        self.illegal: set[str] = set()  # names that are no keys, each with a message
        self.revision = 0
        self.miscounted = False
        self._ahead: dict[str, int] = {}
        self._census: StreamState | None = None

    def __len__(self) -> int:
        return len(self.alive) + len(self.deleted) + len(self.illegal)

    @property
    def counting(self) -> bool:
        """Whether the revision at which keys are to be counted has not passed."""
        return self._census is not None

    def count(self, state: StreamState | None) -> None:
        """Count when all is told that this state is made of; None takes that back."""
        self._census, self.miscounted = state, False

    def news(self, items: Iterable[Item]) -> Iterator[WatchEvent]:
        """Tell what came from the consumer, if it is newer than what was told of its key."""
        for item in items:
            if item.revision > self.revision:
                if self._census is not None and item.revision > self._census.last_seq:
                    self.miscounted = len(self) != self._census.subjects
                    self._census = None
                self.revision = item.revision
                if item.revision > self._ahead.get(item.key, 0):
                    yield self._told(item)

    def ahead(self, messages: Iterable[Message]) -> Iterator[WatchEvent]:
        """Tell what was read at the leader and may come from the consumer yet."""
        for message in messages:
            key, revision = message.key, message.revision
            self._ahead[key] = revision
            stored = Stored(key, revision, message.value)
            yield self._told(message.deleted if message.marker else stored)

    def _told(self, item: Item) -> WatchEvent:
        if isinstance(item, IllegalKey):
            self.illegal.add(item.key)
            return item
        if isinstance(item, Stored):
            self.alive.add(item.key)
            self.deleted.discard(item.key)
            return Applied(item)
        self.alive.discard(item.key)
        self.deleted.add(item.key)
        return item


class _Identity:
    """Tells one bucket from another of the same name: recreated, or fallen back in time."""

    def __init__(self) -> None:
        self._created = ""
        self._fallbacks = 0
        self._reached = 0

    def of(self, state: StreamState) -> str:
        """Return the incarnation of the stream that was found in this state."""
        if state.created != self._created:
            self._created, self._fallbacks, self._reached = state.created, 0, 0
        elif state.last_seq < self._reached:
            self._fallbacks, self._reached = self._fallbacks + 1, 0
        return f"{self._created}#{self._fallbacks}" if self._fallbacks else self._created

    def reached(self, revision: int) -> None:
        self._reached = max(self._reached, revision)
