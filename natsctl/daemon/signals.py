"""Stops a process on a signal: in order on the first one, at once on the second."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType

from natsctl.telemetry.logger import get_logger

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
    threading.Thread(target=_await_parent, name="end of the parent", daemon=True).start()


def _await_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
