"""Creates the push consumer of a watch, and deletes it afterwards.

In a cluster, NATS may place a consumer on a server that has just failed. Then the request that
creates the consumer has no answer. So the watch requests another consumer while it waits for the
first, and uses the one that exists first. Each consumer has its own delivery subject, so the
messages of the others do not interfere.

To create a consumer, the server looks at every key of the bucket, see `Bucket.busy_s`. More
requests would only delay the first one, so the watch waits longer if the bucket has many keys.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from natsctl.errors import StoreError, WatchBrokenError
from natsctl.jetstream.bucket.bucket import NANOSECONDS, Bucket
from natsctl.jetstream.bucket.feed import HEARTBEAT_S, Feed
from natsctl.jetstream.bucket.hedge import hedged
from natsctl.model.store import IllegalKey

HEDGE_S = 0.4  # the wait for a consumer before the next request, for an empty bucket
BUSY_MAX = 8  # how much longer than `Bucket.busy_s` an answer may take after several timeouts
ABANDONED_S = 10.0  # the server deletes a consumer without a subscriber after this time
PASSES = 3  # over names that are written meanwhile
ABANDONED_MAX = 16  # remembered names of consumers that may still exist


class _Consumer:
    """A push consumer: its delivery subject and the feed of its messages."""

    def __init__(
        self, bucket: Bucket, busy_s: float, times: dict[str, int] | None, *, names_only: bool
    ) -> None:
        connection = bucket.watched_over
        self._client = connection.client
        self.inbox = self._client.new_inbox()
        self.name = f"natsctl-{self.inbox.rsplit('.', 1)[-1]}"
        self.feed = Feed(bucket.prefix, self._client, times=times, names_only=names_only)
        self.feed.allow_silence(busy_s, bucket.state)
        self._subscription: Subscription | None = None
        self._on_lost = ExitStack()
        self._on_lost.enter_context(connection.on_lost(lambda error: self.feed.fail(str(error))))

    async def subscribe(self) -> None:
        """Subscribe to the delivery subject; the feed receives messages from now on."""
        try:
            self._subscription = await self._client.subscribe_raw(
                self.inbox, self.feed.receive, parser=self.feed.parser
            )
        except NatsError as error:
            raise WatchBrokenError(f"cannot subscribe to {self.inbox}: {error}") from error

    async def close(self) -> None:
        """Unsubscribe; the consumer may still exist on the server."""
        self._on_lost.close()
        self.feed.close()
        if self._subscription is not None:
            with suppress(NatsError):
                await asyncio.shield(self._subscription.unsubscribe())


async def names(bucket: Bucket, *patterns: str) -> set[str]:
    """Return every legal key of these patterns that has a message, if only a delete marker.

    More than a page of names are read by a consumer without values. A key that is written over and
    over meanwhile may be missing among so many.
    """
    keys = set[str]()
    for pattern in " ".join(patterns).split():
        page = await bucket.page_of_keys(pattern)
        if page is not None:
            keys |= page
            continue
        reached, newest = 0, await bucket.newest_revision((pattern,))
        async with Consumers(bucket, (pattern,)).open(names_only=True) as feed:
            for _ in range(PASSES):
                while reached < newest:
                    items = await feed.take()
                    keys |= {item.key for item in items if not isinstance(item, IllegalKey)}
                    if items:
                        reached = items[-1].revision
                    else:
                        newest = min(newest, await bucket.newest_revision((pattern,)))
                if (later := await bucket.newest_revision((pattern,))) <= reached:
                    break
                newest = later
    return keys


class Consumers:
    """Creates the consumers of one watch of keys that match *patterns*, one after another."""

    def __init__(
        self, bucket: Bucket, patterns: Sequence[str], times: dict[str, int] | None = None
    ) -> None:
        self._bucket = bucket
        self._patterns = patterns
        self._times = times
        self._busy = 1  # times `Bucket.busy_s`; doubles when the server does not answer in time
        self._abandoned: deque[str] = deque(maxlen=ABANDONED_MAX)

    @asynccontextmanager
    async def open(self, *, start: int = 0, names_only: bool = False) -> AsyncIterator[Feed]:
        """Create a consumer and yield its feed; leaving the context deletes the consumer.

        It sends the newest message of every key, or every message from sequence *start* on. With
        *names_only*, the messages have no values.

        A broken consumer may not answer, so its deletion is requested without waiting: now, and
        again with the next consumer. The server deletes it after `ABANDONED_S` in any case.
        """
        requested: list[_Consumer] = []
        try:
            yield await self._first_feed(requested, start, names_only=names_only)
        except StoreError:
            self._abandoned.extend(consumer.name for consumer in requested)
            raise
        finally:
            await asyncio.shield(self._end(requested))

    @asynccontextmanager
    async def cleared(self) -> AsyncIterator[None]:
        """Request the deletion of abandoned consumers, before and after the context."""
        await self._delete_abandoned()
        try:
            yield
        finally:
            with suppress(StoreError):
                await asyncio.shield(self._delete_abandoned())

    async def _first_feed(
        self, requested: list[_Consumer], start: int, *, names_only: bool
    ) -> Feed:
        """Request consumers until one exists, return its feed and abandon the others.

        Adds each consumer to *requested* before its request, so that *requested* has every consumer
        that may exist.
        """
        busy_s = self._busy * self._bucket.busy_s

        async def request() -> _Consumer:
            consumer = _Consumer(self._bucket, busy_s, self._times, names_only=names_only)
            requested.append(consumer)
            if start:
                consumer.feed.note_all()  # a proof compares all
            await consumer.subscribe()
            await self._create(consumer, busy_s, start, names_only=names_only)
            return consumer

        self._busy = min(2 * self._busy, BUSY_MAX)  # unless a request succeeds
        chosen = await hedged(request, every_s=HEDGE_S + busy_s)
        self._busy = 1
        chosen.feed.begin()
        await self._delete_abandoned()
        self._abandoned.clear()  # the server creates consumers, so it also deletes them
        extra_consumers = [consumer for consumer in requested if consumer is not chosen]
        requested[:] = [chosen]
        self._abandoned.extend(extra.name for extra in extra_consumers)
        for extra in extra_consumers:
            await extra.close()
        await self._delete_abandoned()
        return chosen.feed

    async def _create(
        self, consumer: _Consumer, busy_s: float, start: int, *, names_only: bool
    ) -> None:
        bucket, name = self._bucket, consumer.name
        subjects = [bucket.prefix + pattern for pattern in self._patterns]
        config: dict[str, object] = {
            "name": name,
            "description": "a natsctl watch",
            "deliver_subject": consumer.inbox,
            "deliver_policy": "by_start_sequence" if start else "last_per_subject",
            "ack_policy": "none",
            "replay_policy": "instant",
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * NANOSECONDS),
            "inactive_threshold": int(ABANDONED_S * NANOSECONDS),
            "headers_only": names_only,
            "mem_storage": True,
            "num_replicas": 1,
        }
        if start:
            config["opt_start_seq"] = start
        endpoint = f"{bucket.stream}.{name}"
        if len(subjects) == 1:  # so that permissions may limit the subject
            config["filter_subject"] = subjects[0]
            endpoint += f".{subjects[0]}"
        else:
            config["filter_subjects"] = subjects
        body = {"stream_name": bucket.stream, "config": config, "action": "create"}
        connection = bucket.watched_over
        timeout_s = connection.request_timeout_s + busy_s
        await connection.api(f"CONSUMER.CREATE.{endpoint}", body, timeout_s=timeout_s)

    async def _end(self, consumers: Iterable[_Consumer]) -> None:
        """Unsubscribe, and delete the consumers that are not abandoned."""
        await asyncio.gather(*(self._delete(consumer) for consumer in consumers))

    async def _delete(self, consumer: _Consumer) -> None:
        await consumer.close()
        if consumer.name not in self._abandoned:
            endpoint = f"CONSUMER.DELETE.{self._bucket.stream}.{consumer.name}"
            with suppress(StoreError):
                await self._bucket.watched_over.api(endpoint)

    async def _delete_abandoned(self) -> None:
        """Request the deletion of abandoned consumers without waiting for answers.

        A cluster without a leader ignores the request, and a consumer on a failed server does not
        answer it.
        """
        connection = self._bucket.watched_over
        try:
            for name in self._abandoned:
                endpoint = f"CONSUMER.DELETE.{self._bucket.stream}.{name}"
                await connection.client.publish(f"{connection.api_prefix}.{endpoint}")
        except NatsError as error:
            raise WatchBrokenError(f"cannot delete abandoned consumers: {error}") from error
