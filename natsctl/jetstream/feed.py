"""Receives the messages of one push consumer in order, and fails at the first gap.

The consumer's sequence must be contiguous in messages and equal in heartbeats; otherwise messages
were lost. The feed buffers messages and answers the server's flow control only after the messages
before it are processed, so the server never sends more than its window ahead.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import FlushTimeoutError

from natsctl.errors import (
    PermissionDeniedError,
    StoreError,
    WatchBrokenError,
)
from natsctl.jetstream.bucket import (
    LARGE,
    LAST_CONSUMER,
    NANOSECONDS,
    STALLED,
    Bucket,
    Marker,
    create_consumer,
    marker,
    position,
)
from natsctl.jetstream.reader import STATUS, OneTimeClient, Parse, RawMessage, parse_headers
from natsctl.jetstream.resume import ANCHORS, Sight
from natsctl.model.keys import is_key, printable
from natsctl.model.store import Deleted, IllegalKey, Stored

T = TypeVar("T")

AGAIN_S = 0.5  # the wait for the answer to a read before the read is repeated


async def hedged(
    attempt: Callable[[], Coroutine[Any, Any, T]], *, every_s: float, growth: float = 1.0
) -> T:
    """Start an *attempt*, and another one every *every_s* seconds until one ends.

    Each further wait is *growth* times as long, for a server that may just be busy.

    Returns the result of the first attempt that ends, or raises its error. Cancels the other
    attempts and waits for their end. Every attempt must have a deadline.
    """
    running: set[asyncio.Task[T]] = set()
    try:
        while True:
            running.add(asyncio.create_task(attempt()))
            ended, _ = await asyncio.wait(
                running, timeout=every_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended:
                return min(ended, key=_failed).result()
            every_s *= growth
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


Item = Stored | Deleted | IllegalKey

HEARTBEAT_S = 0.5  # the interval of an idle consumer's heartbeats
SILENCE = 3  # missing heartbeats in a row after which the feed fails
BEGIN = 20  # the same, until the server has created the consumer
BUFFERED_MAX = 1_000_000  # messages; far above the server's flow control window of 32 MiB


# A message with prefix, key, subscription and acknowledgement subject, and its size.
_VALUE = rb"MSG %b%b %b %b (\d++)\r\n"
_NAME = rb"HMSG %b%b %b %b \d++ (\d++)\r\n"


class Feed:
    """Buffers the messages of a consumer, which arrive on *link*.

    *prefix* is the part of the subjects that precedes each key. *times* gets the time at which each
    key was stored, in nanoseconds since 1970. A feed without messages fails after `SILENCE`
    heartbeats. If other data arrives on the connection, heartbeats may wait behind it, so
    the feed first asks the server for an answer, which follows them.
    """

    def __init__(
        self,
        prefix: str,
        link: OneTimeClient,
        *,
        times: dict[str, int] | None = None,
        names_only: bool = False,
        sights_max: int | None = ANCHORS,
    ) -> None:
        self._prefix = prefix.encode()
        self._link = link
        self._times = times
        self._form = _NAME if names_only else _VALUE
        self._items: list[Item] = []  # received and not taken
        self.plain = True  # whether all messages that were taken are states
        self._plain = True  # the same of those that weren't
        self.sights_max = sights_max  # noted of a batch in `seen`; None: all
        self.seen = deque[Sight]()  # the last messages that were taken
        self._sights = deque[Sight]([], sights_max)  # of those that weren't
        self._controls: list[str] = []  # flow control requests received with the items
        self._due: list[str] = []  # flow control requests of the items that were taken
        self._consumed = 0  # the consumer sequence of the last message
        self._failure: WatchBrokenError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._silent = 0  # missing heartbeats in a row
        self._silent_max = BEGIN
        self._traffic = link.traffic
        self._flush: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    def begin(self) -> None:
        """Expect heartbeats from now on, because the consumer exists."""
        self._silent, self._silent_max = 0, SILENCE

    def parser(self, sid: bytes) -> Parse | None:
        """Return a function that takes the values with legal keys from the socket's bytes.

        Messages with headers, names that aren't keys, and domains are left to `receive`.
        """
        if self._times is not None:
            return None
        name = rb"((?!_kv)[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*+)"
        ack = rb"\$JS\.ACK\.(?:[^. \t\n]++\.){3}(\d++)\.(\d++)\.(\d++)\.\d++"
        self._match = re.compile(self._form % (re.escape(self._prefix), name, sid, ack)).match
        return self._parse

    def _parse(self, buffer: bytes, position: int) -> int:
        match, items, number, length = self._match, self._items, self._consumed, len(buffer) - 2
        note, before = self._sights.append, number
        while frame := match(buffer, position):
            name, sequence, consumer, time, size = frame.groups()
            begin = frame.end()
            end = begin + int(size)
            if end > length or int(consumer) != number + 1:
                break
            number += 1
            key, revision = name.decode(), int(sequence)
            items.append(Stored(key, revision, buffer[begin:end]))
            note((key, revision, int(time)))
            position = end + 2
        if number != before:
            self._consumed = number
            self._silent, self._silent_max = 0, SILENCE
            self.wake()
        return position

    def receive(self, messages: Sequence[RawMessage]) -> None:
        """Buffer raw messages; a gap or a malformed message fails the feed."""
        skipped, reply = len(self._prefix), b""
        try:
            for subject, reply, data, headers in messages:
                is_key = subject.startswith(self._prefix)
                if headers is not None and not (is_key or reply.startswith(b"$JS.ACK.")):
                    self._control(reply.decode(), parse_headers(headers))
                    continue
                revision, number, stored_ns = position(reply)
                if number != self._consumed + 1:
                    self.fail(f"messages {self._consumed + 1} to {number - 1} were lost")
                    break
                self._consumed = number
                if not is_key:
                    continue  # the stream had other subjects once
                item = _item(subject[skipped:], revision, data, headers)
                self._items.append(item)
                self._plain = self._plain and type(item) is Stored
                self._sights.append((item.key, revision, stored_ns))
                if self._times is not None:
                    self._times[item.key] = stored_ns
        except Exception as error:  # noqa: BLE001 - a skipped message would be a lost change
            self.fail(f"message {reply!r} is malformed: {error!r}")
        self._silent, self._silent_max = 0, SILENCE
        self.wake()

    def fail(self, reason: str) -> None:
        if self._failure is None:
            self._failure = WatchBrokenError(reason)
        self.wake()

    def close(self) -> None:
        """Stop the heartbeat timer and discard buffered messages."""
        self._timer.cancel()
        if self._flush is not None:
            self._flush.cancel()
        self._items.clear()

    async def take(self) -> list[Item]:
        """Wait for messages and return them; returns an empty list after a heartbeat or `wake`.

        Calling `take` again acknowledges the previous batch. Raises `WatchBrokenError` after a gap,
        missing heartbeats or a lost connection.
        """
        due, self._due = self._due, []
        try:
            for reply in due:
                await self._link.publish(reply)
        except NatsError as error:
            self.fail(f"cannot answer flow control: {error}")
        if not (self._items or self._failure):
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._failure:
            raise self._failure
        items, self._items = self._items, []
        self.plain, self._plain = self._plain, True
        self.seen, self._sights = self._sights, deque(maxlen=self.sights_max)
        self._due, self._controls = self._controls, []
        return items

    async def arrived(self) -> None:
        """Wait until all messages have arrived that the server has sent before this call."""
        with suppress(NatsError):  # a lost connection fails the feed
            while True:
                with suppress(FlushTimeoutError):  # a long backlog comes first
                    return await self._link.flush()

    def wake(self) -> None:
        """Let `take` return, with no messages if none arrived."""
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    def _control(self, reply: str, headers: dict[str, str]) -> None:
        if not headers[STATUS].startswith("100"):
            self.fail(f"the server ended the consumer: {headers[STATUS]}")
            return
        sent = headers.get(LAST_CONSUMER)
        if sent is not None and int(sent) != self._consumed:
            self.fail(f"the server has sent {sent} messages, {self._consumed} arrived")
            return
        reply = reply or headers.get(STALLED, "")
        if reply:
            self._controls.append(reply)

    def _beat(self) -> None:
        """Count a heartbeat as missing, until the next message resets the count.

        Counts one if the event loop was blocked for several intervals.
        """
        if len(self._items) > BUFFERED_MAX:
            self.fail(f"more than {BUFFERED_MAX} messages wait to be processed")
        before, self._traffic = self._traffic, self._link.traffic
        self._silent += 1
        if self._silent >= self._silent_max:
            if self._traffic == before:
                self._fail_silent()
                return
            if self._flush is None:
                self._flush = self._loop.create_task(self._await_backlog(), name="backlog")
        self.wake()
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    async def _await_backlog(self) -> None:
        """Fail unless a message of this feed is among the data that is on its way."""
        try:
            await self._link.flush()
        except NatsError:
            return  # the next beat tries again, or the connection is lost
        finally:
            self._flush = None
        if self._silent >= self._silent_max:
            self._fail_silent()

    def _fail_silent(self) -> None:
        self.fail(f"the consumer sent nothing for {self._silent * HEARTBEAT_S:g} s")


def _item(name: bytes, revision: int, data: bytes, headers: bytes | None) -> Item:
    """Return the message of a name that may be illegal, with headers that may mark a deletion."""
    marks = headers is not None and (b"KV-Operation" in headers or b"Nats-Marker" in headers)
    mark = marker(parse_headers(headers or b"")) if marks else None
    if not is_key(name):
        return IllegalKey(printable(name), revision, mark is None)
    if mark is None:
        return Stored(name.decode(), revision, data)
    return Deleted(name.decode(), revision, mark is Marker.PURGED)


HEDGE_S = 0.4  # the wait for a consumer before the next request
GROWTH = 1.4  # of that wait: each request may cost the server a look at every key
PASSES = 3  # over names that are written meanwhile
ABANDONED_MAX = 16  # remembered names of consumers that may still exist


async def names(bucket: Bucket, *patterns: str) -> set[str]:
    """Return every legal key of these patterns that has a message, if only a delete marker.

    The names of a large bucket are read by a consumer without values. A key that is written over
    and over meanwhile may be missing among so many.
    """
    keys = set[str]()
    is_large = (await bucket.state()).subjects > LARGE
    for pattern in " ".join(patterns).split():
        page = None if is_large else await bucket.page_of_keys(pattern)
        if page is not None:
            keys |= page
            continue
        await bucket.watched_over.wait_connected(forever=False)
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


class _Consumer:
    """A push consumer: its delivery subject and the feed of its messages."""

    def __init__(self, bucket: Bucket, *, names_only: bool, **feed: Any) -> None:
        connection = bucket.watched_over
        self.inbox = connection.client.new_inbox()
        self.name = f"natsctl-{self.inbox.rsplit('.', 1)[-1]}"
        self.feed = Feed(bucket.prefix, connection.client, names_only=names_only, **feed)
        self._client = connection.client
        self._subscription: Subscription | None = None
        self._on_lost = ExitStack()
        self._on_lost.enter_context(connection.on_lost(lambda error: self.feed.fail(str(error))))

    async def subscribe(self) -> None:
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
                await self._subscription.unsubscribe()


class Consumers:
    """Creates the push consumers of one watch of keys that match *patterns*, one after another.

    In a cluster, NATS may place a consumer on a server that has just failed. Then the request that
    creates the consumer has no answer. So the watch requests another consumer while it waits for
    the first, and uses the one that exists first. Each has its own delivery subject.

    *times* gets the time at which each key was stored, see `Feed`.
    """

    def __init__(
        self, bucket: Bucket, patterns: Sequence[str], times: dict[str, int] | None = None
    ) -> None:
        self._bucket = bucket
        self._patterns = patterns
        self._times = times
        self._takes_all = tuple(patterns) == (">",)  # and the user may ask for it
        self._abandoned: deque[str] = deque(maxlen=ABANDONED_MAX)

    @asynccontextmanager
    async def open(self, *, start: int = 0, names_only: bool = False) -> AsyncIterator[Feed]:
        """Create a consumer and yield its feed; leaving the context deletes the consumer.

        It sends the newest message of every key, or every message from sequence *start* on. With
        *names_only*, the messages have no values.

        A broken consumer may not answer, so its deletion is requested without waiting: now, and
        again with the next consumer. The server deletes it after `UNUSED_S` in any case.
        """
        requested: list[_Consumer] = []  # every consumer that may exist

        async def request() -> _Consumer:
            consumer = _Consumer(
                self._bucket,
                times=self._times,
                names_only=names_only,
                sights_max=None if start else ANCHORS,  # a proof compares all
            )
            requested.append(consumer)
            await consumer.subscribe()
            await self._create(consumer, start, names_only=names_only)
            return consumer

        try:
            chosen = await hedged(request, every_s=HEDGE_S, growth=GROWTH)
            chosen.feed.begin()
            await self.delete_abandoned()
            self._abandoned.clear()  # the server creates consumers, so it also deletes them
            extra_consumers = [consumer for consumer in requested if consumer is not chosen]
            self._abandoned.extend(extra.name for extra in extra_consumers)
            for extra in extra_consumers:
                await extra.close()
            requested[:] = [chosen]
            await self.delete_abandoned()
            yield chosen.feed
        except StoreError:
            self._abandoned.extend(consumer.name for consumer in requested)
            raise
        finally:
            await asyncio.shield(asyncio.gather(*map(self._delete, requested)))

    async def delete_abandoned(self) -> None:
        """Request the deletion of abandoned consumers without waiting for answers.

        A cluster without a leader ignores the request, and a consumer on a failed server does not
        answer it.
        """
        connection = self._bucket.watched_over
        try:
            for name in self._abandoned:
                endpoint = f"CONSUMER.DELETE.{self._bucket.stream}.{name}"
                await connection.client.publish(f"{connection.options.prefix}.{endpoint}")
        except NatsError as error:
            raise WatchBrokenError(f"cannot delete abandoned consumers: {error}") from error

    async def _create(self, consumer: _Consumer, start: int, *, names_only: bool) -> None:
        """Create the consumer; its filter is ">" if the watch has all that the stream has.

        Then the server lists at once. For the filter `$KV.b.>` it looks at every key first, which
        takes 60 ms for a million. A user who may only create the latter gets that.
        """
        bucket = self._bucket
        options: dict[str, object] = {
            "description": "a natsctl watch",
            "deliver_subject": consumer.inbox,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * NANOSECONDS),
            "headers_only": names_only,
        }
        if start:
            options |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
        create = partial(create_consumer, bucket.watched_over, bucket.stream, consumer.name)
        if self._takes_all and bucket.layout.alone:
            try:
                await create(">", **options)
            except PermissionDeniedError:
                self._takes_all = False
            else:
                return
        await create(*(bucket.prefix + pattern for pattern in self._patterns), **options)

    async def _delete(self, consumer: _Consumer) -> None:
        await consumer.close()
        if consumer.name not in self._abandoned:
            endpoint = f"CONSUMER.DELETE.{self._bucket.stream}.{consumer.name}"
            with suppress(StoreError):
                await self._bucket.watched_over.api(endpoint)
