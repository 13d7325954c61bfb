"""A watch of a bucket that loses nothing: a full listing, then every change, or a failure.

Each watch lists the bucket anew, on a consumer of its own that lives no longer than it; what
vanished since the last one is missing from the listing. Nothing is resumed by sequence, because a
resumed consumer never tells what an administrator purged or a recreated bucket no longer has.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from natsctl.errors import NotFoundError, StoreError, WatchBrokenError
from natsctl.kv.bucket import NANOSECONDS, Bucket, StreamState
from natsctl.kv.feed import HEARTBEAT_S, Delivery, Feed
from natsctl.model.store import Applied, Deleted, Listed, Listing, Stored, WatchEvent

log = logging.getLogger(__name__)

VERIFY_S = 60.0  # how often the key set is compared with the server's
ABANDONED_S = 10.0  # how long the server keeps a consumer that nobody listens to
BUFFERED_BYTES = 256 * 1024 * 1024  # far above the server's flow control window of 32 MiB
BUFFERED_MESSAGES = 1_000_000


class KvWatch:
    """Watches the keys of one bucket that match a pattern."""

    def __init__(self, bucket: Bucket, pattern: str = ">", *, verify_s: float = VERIFY_S) -> None:
        self._bucket = bucket
        self._pattern = pattern
        self._verify_s = verify_s
        self._identity = _Identity()

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Establish the watch; leaving the context deletes the consumer.

        Waits for the connection. The events end with `WatchBrokenError` after a gap, a silence,
        a lost connection or a server's refusal.
        """
        connection = self._bucket.connection
        await connection.wait_connected()
        feed = Feed(self._bucket.prefix, connection.client.publish)
        with connection.on_lost(lambda error: feed.fail(str(error))):
            try:
                async with self._consumer(feed) as (before, newest):
                    events = self._events(feed, before, newest)
                    async with aclosing(events):
                        yield events
            finally:
                feed.close()

    @asynccontextmanager
    async def _consumer(self, feed: Feed) -> AsyncIterator[tuple[StreamState, int]]:
        """Subscribe first, so that nothing is sent before somebody listens."""
        client = self._bucket.connection.client
        inbox = client.new_inbox()
        subscription = await client.subscribe(
            inbox,
            cb=feed.receive,
            pending_msgs_limit=BUFFERED_MESSAGES,
            pending_bytes_limit=BUFFERED_BYTES,
        )
        name = f"natsctl-{inbox.rsplit('.', 1)[-1]}"
        try:
            before = await self._bucket.state()
            newest = await self._newest()
            await self._create(name, inbox)
            after = await self._bucket.state()
            if after.created != before.created:
                raise WatchBrokenError(f"bucket {self._bucket.name} was recreated just now")
            yield before, newest
        finally:
            await asyncio.shield(self._close(name, subscription))

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

    async def _close(self, name: str, subscription: Subscription) -> None:
        connection = self._bucket.connection
        with suppress(NatsError):
            await subscription.unsubscribe()
        if not connection.connected:
            return  # the server drops the consumer after ABANDONED_S
        with suppress(StoreError):
            await connection.api(f"CONSUMER.DELETE.{self._bucket.stream}.{name}", None)

    async def _newest(self) -> int:
        """Return the revision of the leader's newest message, 0 where there is none."""
        try:
            return (await self._bucket.last(self._pattern)).revision
        except NotFoundError:
            return 0

    async def _events(
        self, feed: Feed, state: StreamState, newest: int
    ) -> AsyncGenerator[WatchEvent, None]:
        yield Listing(self._identity.of(state))
        known = _Known()
        async with aclosing(self._listing(feed, known, newest)) as listing:
            async for event in listing:
                yield event
        yield Listed(max(known.revision, newest))
        known.listed()
        self._identity.reached(max(known.revision, newest))
        async with aclosing(self._following(feed, known)) as following:
            async for event in following:
                yield event

    async def _listing(
        self, feed: Feed, known: "_Known", newest: int
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield what the bucket holds, complete up to what its leader had at the beginning.

        A key that is written again while we list loses its old message and is told by a later
        one: so the listing is complete when nothing is pending, or, under constant writes, when
        the newest message is reached and every key that the leader has was shown.
        """
        pending = newest > 0
        while pending:
            await feed.wait(2 * HEARTBEAT_S)
            delivery = await feed.take()
            if delivery is None:
                newest = min(newest, await self._newest())  # it may have been purged meanwhile
                pending = known.revision < newest
            while delivery is not None:
                yield known.take(delivery)
                if known.revision >= newest and pending:
                    pending = False
                    if delivery.pending:
                        for event in await self._unseen(known):
                            yield event
                delivery = await feed.take() if pending else None

    async def _unseen(self, known: "_Known") -> list[WatchEvent]:
        """Read what the leader has and the listing has not shown: it was overtaken by writes."""
        events: list[WatchEvent] = []
        for key in await self._bucket.keys(self._pattern) - known.seen:
            with suppress(NotFoundError):
                message = await self._bucket.last(key)
                events.append(
                    known.take(Delivery(key, message.value, message.marker, message.revision, 0))
                )
        return events

    async def _following(self, feed: Feed, known: "_Known") -> AsyncGenerator[WatchEvent, None]:
        clock = asyncio.get_running_loop().time
        verified = clock()
        while True:
            while (delivery := await feed.take()) is not None:
                yield known.take(delivery)
                self._identity.reached(delivery.revision)
            await feed.wait(verified + self._verify_s - clock())
            if clock() - verified >= self._verify_s:
                await self._verify(known)
                verified = clock()

    async def _verify(self, known: "_Known") -> None:
        """Compare key sets: an administrator's purge is told by no message."""
        vanished = known.alive - await self._bucket.keys(self._pattern)
        if vanished:
            raise WatchBrokenError(
                f"{len(vanished)} keys of {self._bucket.name} vanished without a trace, "
                f"{min(vanished)} among them"
            )


class _Known:
    """What this watch has told: the keys alive, and in a listing those deleted too."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.revision = 0
        self._markers: set[str] | None = set()

    @property
    def seen(self) -> set[str]:
        return self.alive | (self._markers or set())

    def listed(self) -> None:
        self._markers = None

    def take(self, delivery: Delivery) -> WatchEvent:
        key, revision = delivery.key, delivery.revision
        self.revision = max(self.revision, revision)
        if not delivery.marker:
            self.alive.add(key)
            return Applied(Stored(key, revision, delivery.value))
        self.alive.discard(key)
        if self._markers is not None:
            self._markers.add(key)
        return Deleted(key, revision)


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
