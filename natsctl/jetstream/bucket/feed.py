"""Receives the messages of one push consumer in order, and fails at the first gap.

The consumer's sequence must be contiguous in messages and equal in heartbeats; otherwise messages
were lost. The feed buffers messages and answers the server's flow control only after the messages
before it are processed, so the server never sends more than its window ahead.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nats.errors import Error as NatsError
from nats.errors import FlushTimeoutError

from natsctl.errors import StoreError, StoreMissingError, WatchBrokenError
from natsctl.jetstream.bucket.codec import LAST_CONSUMER, STALLED, Marker, marker, position
from natsctl.jetstream.bucket.resume import ANCHORS, Sight
from natsctl.jetstream.connection.client import Parse, RawMessage
from natsctl.jetstream.connection.headers import STATUS, parse_headers
from natsctl.model.keys import is_key, printable
from natsctl.model.store import Deleted, IllegalKey, Stored

Item = Stored | Deleted | IllegalKey

HEARTBEAT_S = 0.5  # the interval of an idle consumer's heartbeats
SILENCE = 3  # missing heartbeats in a row after which the feed fails
BEGIN = 20  # the same, until the server has created the consumer
ANSWERS = 2  # answers about the bucket, a silence apart, which show that the server is not busy
BUFFERED_MAX = 1_000_000  # messages; far above the server's flow control window of 32 MiB


# A message with prefix, key, subscription and acknowledgement subject, and its size.
_VALUE = rb"MSG %b%b %b %b (\d++)\r\n"
_NAME = rb"HMSG %b%b %b %b \d++ (\d++)\r\n"


class FeedLink(Protocol):
    """The connection on which a feed receives its messages."""

    @property
    def traffic(self) -> object:
        """A value that changes whenever data arrives for any subscription."""
        ...

    async def publish(self, subject: str) -> None:
        """Publish an empty message."""
        ...

    async def flush(self) -> None:
        """Wait until all data has arrived that the server sent before this call reached it."""
        ...


class Feed:
    """Buffers the messages of a consumer, which arrive on *link*.

    *prefix* is the part of the subjects that precedes each key. *times* gets the time at which each
    key was stored, in nanoseconds since 1970. A feed without messages fails after `SILENCE`
    heartbeats. If other data arrives on the connection, heartbeats may wait behind it, so
    the feed first asks the server for an answer, which follows them.

    A server that creates consumers of a large bucket sends no heartbeats, and answers no request
    about the bucket. So a feed that allows a longer silence asks about the bucket during a silence.
    If the server answers and the consumer stays silent, the feed fails without waiting any longer.
    This does not apply to the silence before the first message: the server counts the keys for a
    new consumer, and answers requests at the same time.
    """

    def __init__(
        self,
        prefix: str,
        link: FeedLink,
        *,
        times: dict[str, int] | None = None,
        names_only: bool = False,
    ) -> None:
        self._prefix = prefix.encode()
        self._link = link
        self._times = times
        self._form = _NAME if names_only else _VALUE
        self._items: list[Item] = []  # received and not taken
        self.sights_max: int | None = ANCHORS  # noted of a batch in `seen`; None: all
        self.seen = deque[Sight]()  # the last messages that were taken
        self._sights = deque[Sight]([], ANCHORS)  # of those that weren't
        self._controls: list[str] = []  # flow control requests received with the items
        self._due: list[str] = []  # flow control requests of the items that were taken
        self._consumed = 0  # the consumer sequence of the last message
        self._failure: WatchBrokenError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._heard = False  # whether the consumer has sent anything
        self._silent = 0  # missing heartbeats in a row
        self._allowed = SILENCE
        self._silent_max = BEGIN
        self._traffic = link.traffic
        self._flush: asyncio.Task[None] | None = None
        self._ask: Callable[[], Awaitable[object]] | None = None
        self._asks_at = SILENCE  # missing heartbeats
        self._answers = 0
        self._question: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    def allow_silence(self, busy_s: float, ask: Callable[[], Awaitable[object]]) -> None:
        """Fail only after *busy_s* more seconds of silence, for a server that may be busy.

        *ask* returns as soon as the server answers a request about the bucket, and raises a
        `StoreError` if it does not. After `ANSWERS` answers, the server counts as not busy.
        """
        self._ask = ask
        beats = int(busy_s / HEARTBEAT_S)
        self._allowed, self._silent_max = SILENCE + beats, BEGIN + beats

    def note_all(self) -> None:
        """Note all messages of a batch in `seen`, until `limit_sights`."""
        self.sights_max, self._sights = None, deque(self._sights)

    def limit_sights(self) -> None:
        """Note only the last messages of a batch from now on."""
        self.sights_max = ANCHORS

    def begin(self) -> None:
        """Expect heartbeats from now on, because the consumer exists."""
        self._silent, self._silent_max = 0, self._allowed

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
        append, before, frames = items.append, number, deque[re.Match[bytes]]([], self.sights_max)
        while frame := match(buffer, position):
            name, revision, consumer, _, size = frame.groups()
            begin = frame.end()
            end = begin + int(size)
            if end > length or int(consumer) != number + 1:
                break
            number += 1
            append(Stored(name.decode(), int(revision), buffer[begin:end]))
            frames.append(frame)
            position = end + 2
        if number != before:
            self._consumed = number
            for item, frame in zip(items[-len(frames) :], frames, strict=True):
                self._sights.append((item.key, item.revision, int(frame[4])))
            self._silent, self._silent_max, self._heard = 0, self._allowed, True
            self.wake()
        return position

    def receive(self, messages: Sequence[RawMessage]) -> None:
        """Buffer raw messages; a gap or a malformed message fails the feed."""
        skipped, reply = len(self._prefix), b""
        try:
            for subject, reply, data, headers in messages:
                if headers is not None and not subject.startswith(self._prefix):
                    self._control(reply.decode(), parse_headers(headers))
                    continue
                revision, number, stored_ns = position(reply)
                if number != self._consumed + 1:
                    self.fail(f"messages {self._consumed + 1} to {number - 1} were lost")
                    break
                self._consumed = number
                item = _item(subject[skipped:], revision, data, headers)
                self._items.append(item)
                self._sights.append((item.key, revision, stored_ns))
                if self._times is not None:
                    self._times[item.key] = stored_ns
        except Exception as error:  # noqa: BLE001 - a skipped message would be a lost change
            self.fail(f"message {reply!r} is malformed: {error!r}")
        self._silent, self._silent_max, self._heard = 0, self._allowed, True
        self.wake()

    def fail(self, reason: str) -> None:
        """Make all calls of `take` from now on raise `WatchBrokenError`."""
        if self._failure is None:
            self._failure = WatchBrokenError(reason)
        self.wake()

    def close(self) -> None:
        """Stop the heartbeat timer and discard buffered messages."""
        self._timer.cancel()
        for task in (self._flush, self._question):
            if task is not None:
                task.cancel()
        self._items.clear()

    async def take(self) -> list[Item]:
        """Wait for messages and return them; returns an empty list after a heartbeat or `wake`.

        Calling `take` again acknowledges the previous batch. Raises `WatchBrokenError` after a gap,
        missing heartbeats or a lost connection.
        """
        await self._answer_due()
        if not (self._items or self._failure):
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._failure:
            raise self._failure
        items, self._items = self._items, []
        self.seen, self._sights = self._sights, deque(maxlen=self.sights_max)
        self._due, self._controls = self._controls, []
        return items

    async def arrived(self) -> None:
        """Wait until all messages have arrived that the server has sent before this call."""
        while True:
            try:
                await self._link.flush()
            except FlushTimeoutError:
                continue  # a long backlog comes first
            except NatsError:
                return  # the connection is lost, which fails the feed
            return

    async def _answer_due(self) -> None:
        due, self._due = self._due, []
        try:
            for reply in due:
                await self._link.publish(reply)
        except NatsError as error:
            self.fail(f"cannot answer flow control: {error}")

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
        if self._silent == 1:
            self._asks_at, self._answers = SILENCE, 0
        if self._silent >= self._silent_max:
            if self._traffic == before:
                self._fail_silent()
                return
            if self._flush is None:
                self._flush = self._loop.create_task(self._await_backlog(), name="backlog")
        elif self._heard and self._silent >= self._asks_at:
            self._ask_about_bucket()
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

    def _ask_about_bucket(self) -> None:
        if self._ask is not None and self._question is None:
            question = self._await_answer(self._ask)
            self._question = self._loop.create_task(question, name="busy server")

    async def _await_answer(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask whether the server is busy; after `ANSWERS` answers, the next silent beat fails."""
        try:
            await ask()
        except StoreMissingError:
            pass  # this is an answer
        except StoreError:
            return  # the next beat asks again
        finally:
            self._question = None
        self._answers += 1
        self._asks_at = self._silent + SILENCE
        if self._answers >= ANSWERS:
            self._silent_max = self._silent

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
