"""Decides what an interrupt (SIGINT, Ctrl-C) does to a command.

Python turns an interrupt into an exception and a traceback, wherever the program is. While a
command loads, there is nothing to clean up: the interrupt ends the process, as it ends any program.
While a command works, the interrupt cancels the work.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 128 + signal.SIGINT
"""The exit status of a command whose work was cancelled; shells expect it."""


def end_quietly() -> None:
    """Let an interrupt end the process from now on. A process that ignores interrupts keeps on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interrupt raise `KeyboardInterrupt` within the context."""
    ends = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
