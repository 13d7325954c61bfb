"""Ends a process: in order on the first signal, at once on the second, by force after a limit."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import FrameType
from typing import TYPE_CHECKING

from natsctl.telemetry.logger import get_logger

if TYPE_CHECKING:  # importing it takes a sixth of a second
    from natsctl.core.sync import Sync

log = get_logger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def until_signalled(
    work: Coroutine[None, None, None],
    *,
    on_signal: Callable[[], None] = lambda: None,
    on_caught: Callable[[], None] = lambda: None,
) -> None:
    """Run *work* and cancel it at the first signal; returns when it has ended.

    At the first signal the event loop calls *on_signal* before it cancels the work. The signal
    handler calls *on_caught* even if the event loop is blocked. A second signal ends the process at
    once, as the signal does by default. Raises the errors of *work*.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    signalled = False

    def stop(sent: signal.Signals) -> None:
        nonlocal signalled
        signalled = True
        for number in SIGNALS:
            loop.remove_signal_handler(number)  # sets a handler of Python's for SIGINT
            signal.signal(number, signal.SIG_DFL)
        log.info("stopping", signal=sent.name, hint="send the signal again to stop at once")
        on_signal()
        task.cancel()

    def catch(_sent: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        on_caught()

    for number in SIGNALS:
        loop.add_signal_handler(number, stop, number)
        signal.signal(number, catch)  # the loop still gets the signal, through its wakeup fd
    try:
        await task
    except asyncio.CancelledError:
        if not signalled:
            raise
    finally:
        if not signalled:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


def end_with_parent() -> None:
    """Send SIGTERM to this process when its standard input ends.

    Standard input is a pipe whose other end only the parent process has open, so the pipe ends with
    the parent. A thread waits for that, because a handler may block the event loop.
    """

    def await_parent() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=await_parent, name="end of the parent", daemon=True).start()


MORE_S = 10.0  # how much longer than `stop_timeout_s` a stop may take

FAILED = 1


class StopLimit:
    """Exits with status 1 if a stop takes over `MORE_S` longer than *stop_timeout_s*.

    Some handlers can't be stopped: a handler that ignores its cancellation, waits for a thread, or
    blocks the event loop. So a thread watches the limit. Before it exits, it logs each of the
    *calls* that are in progress then, with its key and its stack. The lease or the member record of
    the process then expires, because the work may continue until the process has ended.
    """

    def __init__(self, stop_timeout_s: float, calls: "Iterable[Sync]") -> None:
        self._limit_s, self._calls = stop_timeout_s + MORE_S, calls
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Start the time limit; only the first call counts. Signal handlers may call this."""
        if self._timer is None:
            self._timer = threading.Timer(self._limit_s, self._end_process)
            self._timer.daemon = True
            self._timer.name = "stop limit"
            self._timer.start()

    def _end_process(self) -> None:
        try:
            for sync in list(self._calls):
                log.error("call has not ended", call=str(sync), stack=sync.stack())
            log.critical(
                "exiting because the stop took too long",
                limit_s=self._limit_s,
                hint="the limit is stop_timeout_s and 10 s more",
            )
        finally:
            for stream in (sys.stderr, sys.stdout):
                stream.flush()
            os._exit(FAILED)
