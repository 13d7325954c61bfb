"""Notices that the event loop is blocked, and by which key."""

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from natsctl.core.sync.calls import Call, calls, current_call
from natsctl.telemetry.frames import thread_frames, user_frames
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

BLOCKED_S = 1.0  # the loop is blocked once it has not gone round for so long
CHECK_S = 0.25
AGAIN_S = 60.0  # a stall at a line that was logged is counted only, for so long
LINES_MAX = 100  # lines that are remembered


class Stalls(msgspec.Struct, frozen=True):
    """How often a controller's handlers have blocked the event loop, and for how long together."""

    count: int = 0
    seconds: float = 0.0


class Stall:
    """The event loop is blocked, until `over` is set.

    `controller` and `key` are of the handler that blocks it, empty if it is no handler. `line` is
    the user's line that it is at.
    """

    def __init__(self, controller: str, key: str, line: str, begun: float) -> None:
        self.controller = controller
        self.key = key
        self.line = line
        self.over = threading.Event()
        self.began = begun

    @property
    def duration_s(self) -> float:
        """For how long the loop has been blocked."""
        return time.monotonic() - self.began

    def __str__(self) -> str:
        by = f"key {self.key} of {self.controller}" if self.controller else "no handler"
        return f"blocked for {self.duration_s:.1f} s by {by}, at {self.line}"


StandIn = Callable[[Stall], None]
"""Does what the event loop cannot while it is blocked, in a thread of its own, until it is over."""


class Watchdog:
    """Watches an event loop from a thread.

    *Guarantees.* A loop that does not go round for `BLOCKED_S` is logged with the controller, the
    key and the line of the user's code that it is at, once a minute for each line. Every such stall
    is counted. While it lasts, each *stand-in* runs in a thread.

    *Assumes* that other threads run: code that holds Python's global interpreter lock is noticed
    only when it lets go.
    """

    def __init__(self) -> None:
        self.stalls: Mapping[str, Stalls] = {}  # by controller
        self._stand_ins: tuple[StandIn, ...] = ()
        self._rounds = 0
        self._stopping = threading.Event()
        self._logged: dict[str, float] = {}  # when a stall was logged last, by line

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the running loop while the context lasts."""
        loop, ident = asyncio.get_running_loop(), threading.get_ident()
        beating = loop.create_task(self._beat(), name="heartbeat of the event loop")
        thread = threading.Thread(target=self._watch, args=(loop, ident), daemon=True)
        thread.name = "watchdog"
        thread.start()
        try:
            yield
        finally:
            beating.cancel()
            self._stopping.set()

    @contextmanager
    def standing_in(self, stand_in: StandIn) -> Iterator[None]:
        """Run *stand_in* during every stall that begins while the context lasts."""
        self._stand_ins = (*self._stand_ins, stand_in)
        try:
            yield
        finally:
            self._stand_ins = tuple(each for each in self._stand_ins if each is not stand_in)

    async def _beat(self) -> None:
        while True:
            self._rounds += 1
            await asyncio.sleep(CHECK_S)

    # ---- in the thread

    def _watch(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        seen, begun = self._rounds, time.monotonic()
        stall: Stall | None = None
        checked, worked = begun, time.process_time()
        while not self._stopping.wait(CHECK_S):
            now, work = time.monotonic(), time.process_time()
            slept = now - checked > BLOCKED_S > work - worked
            checked, worked = now, work
            if self._rounds != seen or slept:  # a process that is stopped blocks nothing
                seen, begun = self._rounds, now
                self._ended(stall)
                stall = None
            elif stall is None and now - begun >= BLOCKED_S:
                stall = self._begun(loop, ident, begun)
        self._ended(stall)

    def _begun(self, loop: asyncio.AbstractEventLoop, ident: int, begun: float) -> Stall:
        call = _call_of(asyncio.current_task(loop))
        controller, key = ("", "") if call is None else (call.owner, str(call.key))
        stall = Stall(controller, key, _line(ident), begun)
        if self._is_new(stall.line):
            log.warning(
                "event loop blocked",
                controller=controller or None,
                key=key or None,
                line=stall.line,
                duration_s=round(stall.duration_s, 1),
                hint="call it with `await self.blocking(…)`",
            )
        for stand_in in self._stand_ins:
            threading.Thread(target=stand_in, args=(stall,), daemon=True, name="stand-in").start()
        return stall

    def _ended(self, stall: Stall | None) -> None:
        if stall is None:
            return
        stall.over.set()
        if self._logged.get(stall.line, 0.0) > stall.began:
            log.warning(
                "event loop unblocked",
                controller=stall.controller or None,
                key=stall.key or None,
                line=stall.line,
                duration_s=round(stall.duration_s, 1),
            )
        before = self.stalls.get(stall.controller, Stalls())
        after = Stalls(before.count + 1, before.seconds + stall.duration_s)
        self.stalls = {**self.stalls, stall.controller: after}

    def _is_new(self, line: str) -> bool:
        now = time.monotonic()
        if now - self._logged.get(line, -AGAIN_S) < AGAIN_S:
            return False
        if len(self._logged) >= LINES_MAX:
            self._logged.clear()
        self._logged[line] = now
        return True


def _call_of(task: "asyncio.Task[object] | None") -> Call | None:
    """Return the call that a task, or the one that made it, is part of, as far as that is known."""
    if task is None:
        return None
    context = getattr(task, "get_context", None)  # since Python 3.12
    return calls.get(task) or (None if context is None else context().get(current_call))


def _line(ident: int) -> str:
    """Return the line of the user's code that the thread is in; else the line that it is at."""
    frames = list(thread_frames(ident))
    stack = user_frames(frames) or traceback.StackSummary.extract(iter(frames))
    if not stack:
        return "an unknown line"
    at = stack[-1]
    return f"{at.filename}:{at.lineno} in {at.name}: {at.line}"
