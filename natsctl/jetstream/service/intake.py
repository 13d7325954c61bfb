"""Decides which requests a service works on: a flood must not cost more than a small share.

A request that is over a limit is refused, which costs little, and the refusals are sent a few at a
time between other work. If even those are too many, requests are dropped unanswered.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import cache

from natsctl.errors import TooManyRequestsError
from natsctl.jetstream.service.errors import refusal

RATE = 50.0  # requests per second to one subject
BURST = 50  # that may come at once
REFUSALS_MAX = 10_000  # that wait to be sent; further requests are dropped
REFUSALS_AT_ONCE = 20  # that are sent before other tasks get their turn

Send = Callable[[str, dict[str, str]], Awaitable[None]]
"""Sends the headers of a refusal to a reply subject."""


class Intake:
    """Counts requests by subject, and refuses those above the rate; `run` sends the refusals."""

    def __init__(self, send: Send) -> None:
        self.refused = Counter[str]()  # by subject
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._tokens: dict[str, tuple[float, float]] = {}  # and when they were counted
        self._refusals: deque[tuple[str, str]] = deque()
        self._waiting = asyncio.Event()

    def admits(self, subject: str) -> bool:
        """Return whether one more request to the subject is within the rate, and count it."""
        now = self._clock()
        tokens, counted = self._tokens.get(subject, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - counted) * RATE)
        admitted = tokens >= 1
        self._tokens[subject] = (tokens - admitted, now)
        return admitted

    def refuse(self, subject: str, reply: str, why: str) -> None:
        """Have a request to the subject refused, or drop it if too many are being refused."""
        self.refused[subject] += 1
        if len(self._refusals) < REFUSALS_MAX:
            self._refusals.append((reply, why))
            self._waiting.set()

    async def run(self) -> None:
        """Send refusals until cancelled."""
        while True:
            await self._waiting.wait()
            for _ in range(min(REFUSALS_AT_ONCE, len(self._refusals))):
                reply, why = self._refusals.popleft()
                await self._send(reply, _headers(why))
            if not self._refusals:
                self._waiting.clear()
            await asyncio.sleep(0)


@cache
def _headers(why: str) -> dict[str, str]:
    return refusal(TooManyRequestsError(f"{why}: try again later"))


def reply_subject(reply: bytes) -> str | None:
    """Return where to send an answer; None if nobody waits for one there.

    A stranger chooses the reply subject. An answer must not become a write to a bucket (`$KV.…`),
    a request to the server (`$JS.API.…`), or a message that the server refuses.
    """
    if not reply or reply.startswith(b"$") or not reply.isascii():
        return None
    text = reply.decode()
    legal = text.isprintable() and " " not in text
    return text if legal and not {"", "*", ">"} & set(text.split(".")) else None
