"""The messages of one push consumer: in order, without a gap, or a failure.

The consumer's sequence is contiguous on every message and equal on every heartbeat, else something
was lost. What was received waits here, and flow control is answered only once everything before
it was taken, so the server sends no more than its window ahead of us.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import msgspec
from nats.aio.msg import Msg

from natsctl.errors import WatchBrokenError
from natsctl.kv.codec import LAST_CONSUMER, STALLED, STATUS, is_marker, position

HEARTBEAT_S = 0.5  # how often the server shows that an idle consumer lives
SILENCE_S = 2.0  # how long it may stay silent before it is given up


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message of the bucket; `pending` counts those that follow."""

    key: str
    value: bytes
    marker: bool
    revision: int
    pending: int


class _FlowControl(msgspec.Struct, frozen=True, gc=False):
    reply: str


class Feed:
    """Takes the consumer's messages in and hands them out. `prefix` stands before every key."""

    def __init__(self, prefix: str, answer: Callable[[str], Awaitable[None]]) -> None:
        self._skip = len(prefix)
        self._answer = answer
        self._items: deque[Delivery | _FlowControl] = deque()
        self._arrived = asyncio.Event()
        self._failure: WatchBrokenError | None = None
        self._consumed = 0  # the consumer's sequence of the last message received
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(SILENCE_S, self._listen)

    async def receive(self, msg: Msg) -> None:
        """Take a message in; a gap fails the feed."""
        self._heard = self._loop.time()
        headers = msg.headers
        if headers is not None and STATUS in headers and not msg.data:
            self._control(msg, headers)
            return
        at = position(msg.reply)
        if at.consumer != self._consumed + 1:
            self.fail(f"messages {self._consumed + 1} to {at.consumer - 1} were lost")
            return
        self._consumed = at.consumer
        key = msg.subject[self._skip :]
        marker = headers is not None and is_marker(headers)
        self._items.append(Delivery(key, msg.data, marker, at.stream, at.pending))
        self._arrived.set()

    def fail(self, reason: str) -> None:
        """Make every take from now on raise `WatchBrokenError`."""
        if self._failure is None:
            self._failure = WatchBrokenError(reason)
        self._arrived.set()

    def close(self) -> None:
        """Stop listening."""
        self._timer.cancel()
        self._items.clear()

    async def take(self) -> Delivery | None:
        """Return the next message, or None where none is here yet."""
        while not self._failure:
            if not self._items:
                return None
            item = self._items.popleft()
            if isinstance(item, Delivery):
                return item
            await self._answer(item.reply)
        raise self._failure

    async def wait(self, timeout_s: float) -> None:
        """Wait until something is here to take, or for *timeout_s*."""
        if self._items or self._failure:
            return
        self._arrived.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return

    def _control(self, msg: Msg, headers: dict[str, str]) -> None:
        if headers[STATUS] != "100":
            self.fail(f"the server ended the consumer: {headers.get('Description', headers)}")
            return
        told = headers.get(LAST_CONSUMER)
        if told is not None and int(told) != self._consumed:
            self.fail(f"the server has sent {told} messages, {self._consumed} came")
            return
        reply = msg.reply or headers.get(STALLED)
        if reply:
            self._items.append(_FlowControl(reply))
            self._arrived.set()

    def _listen(self) -> None:
        silent_s = self._loop.time() - self._heard
        if silent_s >= SILENCE_S:
            self.fail(f"nothing was heard of the consumer for {silent_s:.1f} s")
            return
        self._timer = self._loop.call_later(SILENCE_S - silent_s, self._listen)
