"""Ending when told to: at a signal in good order, at a second one at once."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from types import FrameType

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _nothing() -> None:
    """Do nothing at the first signal."""


async def until_signalled(
    work: Coroutine[None, None, None],
    *,
    told: Callable[[], None] = _nothing,
    caught: Callable[[], None] = _nothing,
) -> None:
    """Run *work*, and cancel it at the first signal; returns when it has ended, either way.

    At that signal *told* is called by the event loop, before anything ends, and *caught* even if
    the event loop is blocked. A second signal ends this process at once, as that signal does by
    itself. Raises what *work* raises.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    signalled = False

    def stop(sent: signal.Signals) -> None:
        nonlocal signalled
        signalled = True
        log.info("%s: stopping; once more stops at once", sent.name)
        for each in SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        told()
        task.cancel()

    def catch(_sent: int, _frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        caught()

    for each in SIGNALS:
        loop.add_signal_handler(each, stop, each)
        signal.signal(each, catch)  # the loop hears of the signal all the same, by its wakeup fd
    try:
        await task
    except asyncio.CancelledError:
        if not signalled:
            raise
    finally:
        if not signalled:
            for each in SIGNALS:
                loop.remove_signal_handler(each)


def end_with_parent() -> None:
    """Send ourselves SIGTERM when standard input ends: whoever started us is gone.

    To be called in a running loop; standard input is a pipe whose other end only they hold.
    """
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(0, look)
