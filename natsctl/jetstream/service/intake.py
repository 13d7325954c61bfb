"""Limits the rate of requests, so that a flood of them costs a daemon little.

Rejecting a request costs little, and rejections are sent in small batches between other tasks.
Requests are dropped without an answer if thousands of rejections are pending.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from functools import cache

from natsctl.errors import TooManyRequestsError
from natsctl.jetstream.service.errors import error_headers

RATE = 50.0  # requests per second to one subject
BURST = 50  # requests at once
REFUSALS_MAX = 10_000  # pending rejections; further requests are dropped
RESERVED = "natsctl"  # the first token of subjects that only natsctl itself publishes to
REFUSALS_AT_ONCE = 20  # rejections that are sent before other tasks run

Send = Callable[[str, dict[str, str]], Awaitable[None]]
"""Sends the headers of a rejection to a reply subject."""


class Intake:
    """A rate limit for each subject; `run` sends the rejections."""

    def __init__(self, send: Send) -> None:
        self.refused = Counter[str]()  # rejected requests by subject
        self._send = send
        self._clock = asyncio.get_running_loop().time
        self._tokens: dict[str, tuple[float, float]] = {}  # tokens and their time, by subject
        self._refusals: deque[tuple[str, str]] = deque()
        self._pending = asyncio.Event()

    def admits(self, subject: str) -> bool:
        """Count a request and return whether it is within the rate of its subject."""
        now = self._clock()
        tokens, counted = self._tokens.get(subject, (float(BURST), now))
        tokens = min(float(BURST), tokens + (now - counted) * RATE)
        admitted = tokens >= 1
        self._tokens[subject] = (tokens - admitted, now)
        return admitted

    def refuse(self, subject: str, reply: str, reason: str) -> None:
        """Reject a request, or drop it if too many rejections are pending."""
        self.refused[subject] += 1
        if len(self._refusals) < REFUSALS_MAX:
            self._refusals.append((reply, reason))
            self._pending.set()

    async def run(self) -> None:
        """Send rejections until cancelled."""
        while True:
            await self._pending.wait()
            for _ in range(min(REFUSALS_AT_ONCE, len(self._refusals))):
                reply, reason = self._refusals.popleft()
                await self._send(reply, _headers(reason))
            if not self._refusals:
                self._pending.clear()
            await asyncio.sleep(0)


@cache
def _headers(reason: str) -> dict[str, str]:
    return error_headers(TooManyRequestsError(f"{reason}: try again later"))


def reply_subject(reply: bytes, own_inboxes: str) -> str | None:
    """Return the inbox to answer to; None if the subject isn't an inbox, or isn't safe.

    The sender of a request chooses the reply subject, and the answer is published with the
    permissions of this process. So it must not become a write to a bucket (`$KV.…`), a request to
    the server (`$JS.API.…`), or a message of natsctl's own streams: enough answers below
    `natsctl.events.` would push all events out. Inboxes begin with `_INBOX`, with *own_inboxes*,
    or with `_R_.` if the request came from another account.
    """
    if not reply.isascii():
        return None
    text = reply.decode()
    tokens = text.split(".")
    if not text.startswith(("_INBOX", "_R_.", f"{own_inboxes}.")):
        return None
    legal = text.isprintable() and " " not in text and tokens[0] != RESERVED
    return text if legal and not {"", "*", ">"} & set(tokens) else None
