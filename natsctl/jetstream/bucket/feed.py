"""The messages of one push consumer: in order, without a gap, or a failure.

The consumer's sequence is contiguous on every message and equal on every heartbeat, else something
was lost. What was received waits here, and flow control is answered only once everything before
it was taken in, so the server sends no more than its window ahead of us.
"""

import asyncio
from collections.abc import Awaitable, Callable

from nats.errors import Error as NatsError

from natsctl.errors import WatchBrokenError
from natsctl.jetstream.bucket.codec import LAST_CONSUMER, STALLED, Marker, marker, position
from natsctl.jetstream.connection.headers import STATUS, parse_headers
from natsctl.model.keys import legal, printable
from natsctl.model.store import Deleted, IllegalKey, Stored

Item = Stored | Deleted | IllegalKey

HEARTBEAT_S = 0.5  # how often the server shows that an idle consumer lives
SILENCE = 3  # missing heartbeats in a row after which the consumer counts as dead
BEGIN = 20  # the same, until the server has made the consumer
BUFFERED_MAX = 1_000_000  # messages; far above the server's flow control window of 32 MiB


class Feed:
    """Takes the consumer's messages in and hands them out. `prefix` stands before every key."""

    def __init__(self, prefix: str, answer: Callable[[str], Awaitable[None]]) -> None:
        self._prefix = prefix.encode()
        self._answer = answer
        self._items: list[Item] = []  # received, not taken
        self._controls: list[str] = []  # flow control that came with them
        self._due: list[str] = []  # flow control that came with what was taken
        self._consumed = 0  # the consumer's sequence of the last message received
        self._pending = 0  # how many messages followed it then
        self._failure: WatchBrokenError | None = None
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._silent = SILENCE - BEGIN  # heartbeats that are missing
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    @property
    def exhausted(self) -> bool:
        """Whether everything was taken that there is for now."""
        return not (self._items or self._pending)

    def begin(self) -> None:
        """Expect heartbeats from now on: the server has made the consumer."""
        self._silent = 0

    def receive(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        """Take a message in, as it came; a gap fails the feed, and so does nonsense."""
        try:
            self._receive(subject, reply, data, headers)
        except Exception as error:  # noqa: BLE001 - a message is not understood, so it would be lost
            self.fail(f"the message {reply!r} makes no sense: {error!r}")

    def _receive(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self._silent = 0
        mark = None
        if headers is not None:
            told = parse_headers(headers)
            if not subject.startswith(self._prefix):
                self._control(reply.decode(), told)
                return
            mark = marker(told)
        at = position(reply)
        if at.consumer != self._consumed + 1:
            self.fail(f"messages {self._consumed + 1} to {at.consumer - 1} were lost")
            return
        self._consumed, self._pending = at.consumer, at.pending
        name = subject[len(self._prefix) :]
        if not legal(name):
            self._items.append(IllegalKey(printable(name), at.stream, mark is None))
        elif mark is None:
            self._items.append(Stored(name.decode(), at.stream, data))
        else:
            self._items.append(Deleted(name.decode(), at.stream, mark is Marker.PURGED))
        if len(self._items) > BUFFERED_MAX:
            self.fail(f"{BUFFERED_MAX} messages wait to be taken in")
        self._wake()

    def fail(self, reason: str) -> None:
        """Make every take from now on raise `WatchBrokenError`."""
        if self._failure is None:
            self._failure = WatchBrokenError(reason)
        self._wake()

    def close(self) -> None:
        """Stop listening."""
        self._timer.cancel()
        self._items.clear()

    async def take(self) -> list[Item]:
        """Return what was received, as soon as there is something; nothing after a heartbeat.

        Who takes again has taken in what it took before.
        """
        await self._answer_due()
        if not (self._items or self._failure):
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._failure:
            raise self._failure
        taken, self._items = self._items, []
        self._due, self._controls = self._controls, []
        return taken

    async def _answer_due(self) -> None:
        due, self._due = self._due, []
        try:
            for reply in due:
                await self._answer(reply)
        except NatsError as error:
            self.fail(f"flow control cannot be answered: {error}")

    def _wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    def _control(self, reply: str, headers: dict[str, str]) -> None:
        if not headers[STATUS].startswith("100"):
            self.fail(f"the server ended the consumer: {headers[STATUS]}")
            return
        told = headers.get(LAST_CONSUMER)
        if told is not None and int(told) != self._consumed:
            self.fail(f"the server has sent {told} messages, {self._consumed} came")
            return
        reply = reply or headers.get(STALLED, "")
        if reply:
            self._controls.append(reply)
            self._wake()

    def _beat(self) -> None:
        """Count a heartbeat that may be missing.

        If the event loop was blocked for longer than that, it counts only one.
        """
        self._silent += 1
        if self._silent == SILENCE:
            self.fail(f"nothing was heard of the consumer for {SILENCE * HEARTBEAT_S:g} s")
            return
        self._wake()
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)
