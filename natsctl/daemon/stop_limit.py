"""Ends a process whose stop takes too long."""

import logging
import os
import sys
import threading
from collections.abc import Callable

from natsctl.core.sync.calls import calls

log = logging.getLogger(__name__)

MORE_S = 10.0  # a stop may take this much longer than the time that syncs have to end

FAILED = 1


class StopLimit:
    """Exits with status 1 if a stop takes longer than *stop_timeout_s* and ten seconds more.

    Some handlers cannot be stopped: one that ignores its cancellation, one that waits for a
    thread, or one that blocks the event loop. So a thread keeps this limit. It logs the calls that
    have not ended, with their keys and the lines at which they are. A lease or a member record is
    then left to expire, since the work may not have ended before the process does.

    Args:
        stop_timeout_s: how long calls under way may go on after a stop.
        leave: ends the process with a status, at once.
    """

    def __init__(self, stop_timeout_s: float, *, leave: Callable[[int], object] = os._exit) -> None:
        self._limit_s = stop_timeout_s + MORE_S
        self._leave = leave
        self._timer: threading.Timer | None = None

    def start(self) -> None:
        """Begin to count the time; only the first call counts. Signal handlers may call this."""
        if self._timer is None:
            self._timer = threading.Timer(self._limit_s, self._exceeded)
            self._timer.daemon = True
            self._timer.name = "stop limit"
            self._timer.start()

    def _exceeded(self) -> None:
        try:
            self._report()
        finally:
            for stream in (sys.stderr, sys.stdout):
                stream.flush()
            self._leave(FAILED)

    def _report(self) -> None:
        for call in list(calls.values()):
            log.error("%s has not ended. It is at:\n%s", call, call.stack())
        log.critical(
            "the stop took longer than %g s (stop_timeout_s and %g s more): exiting with status 1",
            self._limit_s,
            MORE_S,
        )
