"""Detects that the event loop is blocked, and which key blocks it."""

import asyncio
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from natsctl.core.sync import current_sync, sync_in
from natsctl.telemetry.exceptions import thread_frames, user_frames
from natsctl.telemetry.logger import Repeats, get_logger

log = get_logger(__name__)

BLOCKED_S = 1.0  # a loop without an iteration for this long is blocked
HINT = "call it with `await self.blocking(…)`"
CHECK_S = 0.25
LOG_INTERVAL_S = 60.0  # stalls at the same line within this time are counted but not logged


class Stalls(msgspec.Struct, frozen=True):
    """The number of times that a controller's handlers blocked the event loop, and their sum."""

    count: int = 0
    seconds: float = 0.0


class Stall(msgspec.Struct, frozen=True):
    """A time in which the event loop is blocked, by *line* of the user's code.

    `controller` and `key` are empty if no handler blocks it.
    """

    controller: str
    key: str
    line: str
    started: float
    logged: bool = False

    @property
    def duration_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def fields(self) -> dict[str, Any]:
        named = {"controller": self.controller or None, "key": self.key or None}
        return {**named, "line": self.line, "duration_s": round(self.duration_s, 1)}

    def __str__(self) -> str:
        cause = f"key {self.key} of {self.controller}" if self.controller else "no handler"
        return f"blocked for {self.duration_s:.1f} s by {cause}, at {self.line}"


class Watchdog:
    """Watches an event loop from a thread.

    *Guarantees.* A loop that is blocked for `BLOCKED_S` is logged with the controller, the key and
    the line of the user's code, once a minute for each line. Every stall is counted.

    *Assumes* that other threads run. Code that holds Python's global interpreter lock is detected
    when it releases the lock.

    Attributes:
        stall: the stall that lasts now; None if the loop isn't blocked. Any thread may read it.
    """

    def __init__(self) -> None:
        self.stall: Stall | None = None
        self._ended: Mapping[str, Stalls] = {}  # by controller
        self._iterations = 0
        self._stopping = threading.Event()
        self._repeats = Repeats(time.monotonic, LOG_INTERVAL_S)  # of lines of code

    @contextmanager
    def watching(self) -> Iterator[None]:
        loop, ident = asyncio.get_running_loop(), threading.get_ident()
        heartbeat = loop.create_task(self._beat(), name="heartbeat of the event loop")
        thread = threading.Thread(target=self._watch, args=(loop, ident), daemon=True)
        thread.name = "watchdog"
        thread.start()
        try:
            yield
        finally:
            heartbeat.cancel()
            self._stopping.set()

    @property
    def stalls(self) -> Mapping[str, Stalls]:
        return _with(self._ended, self.stall)

    async def _beat(self) -> None:
        while True:
            self._iterations += 1
            await asyncio.sleep(CHECK_S)

    # ---- in the thread

    def _watch(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        iterations, blocked_since = self._iterations, time.monotonic()
        checked, used = blocked_since, time.process_time()
        while not self._stopping.wait(CHECK_S):
            now, used_now = time.monotonic(), time.process_time()
            # a process that was stopped used no CPU time, and its loop isn't blocked
            stopped = now - checked > BLOCKED_S > used_now - used
            checked, used = now, used_now
            if self._iterations != iterations or stopped:
                iterations, blocked_since = self._iterations, now
                self._end()
            elif self.stall is None and now - blocked_since >= BLOCKED_S:
                self._begin(loop, ident, blocked_since)
        self._end()

    def _begin(self, loop: asyncio.AbstractEventLoop, ident: int, started: float) -> None:
        task, call = asyncio.current_task(loop), None
        if task is not None:  # Python 3.12 and later know it also for tasks that a handler creates
            context = getattr(task, "get_context", None)
            call = sync_in(task, ident) or (context and context().get(current_sync))
        controller, key = ("", "") if call is None else (call.owner, str(call.key))
        frames, line = list(thread_frames(ident)), "an unknown line"
        users = user_frames(frames)
        stack = users or traceback.StackSummary.extract(iter(frames))
        if stack:
            last = stack[-1]
            line = f"{last.filename}:{last.lineno} in {last.name}: {last.line}"
        stall = Stall(controller, key, line, started, logged=self._repeats.due(line))
        if stall.logged:
            log.warning("event loop blocked", **stall.fields, hint=HINT if users else None)
        self.stall = stall

    def _end(self) -> None:
        stall = self.stall
        if stall is not None:
            if stall.logged:
                log.warning("event loop unblocked", **stall.fields)
            self._ended, self.stall = _with(self._ended, stall), None


def _with(ended: Mapping[str, Stalls], stall: Stall | None) -> Mapping[str, Stalls]:
    if stall is None:
        return ended
    before = ended.get(stall.controller, Stalls())
    after = Stalls(before.count + 1, before.seconds + stall.duration_s)
    return {**ended, stall.controller: after}
