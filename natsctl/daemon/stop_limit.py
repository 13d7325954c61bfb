"""Ends a process whose stop takes too long."""

import os
import sys
import threading

from natsctl.core.sync import running
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

MORE_S = 10.0  # how much longer than `stop_timeout_s` a stop may take

FAILED = 1


class StopLimit:
    """Exits with status 1 if a stop takes over ten seconds longer than *stop_timeout_s*.

    Some handlers cannot be stopped: a handler that ignores its cancellation, waits for a thread, or
    blocks the event loop. So a thread watches the limit. Before it exits, it logs each call in
    progress with its key and its stack. The lease or the member record of the process then expires,
    because the work may continue until the process has ended.

    Args:
        stop_timeout_s: how long calls in progress may continue after a stop.
    """

    def __init__(self, stop_timeout_s: float) -> None:
        self._limit_s = stop_timeout_s + MORE_S
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
            self._report()
        finally:
            for stream in (sys.stderr, sys.stdout):
                stream.flush()
            os._exit(FAILED)

    def _report(self) -> None:
        for sync in list(running):
            log.error("call has not ended", call=str(sync), stack=sync.stack())
        log.critical(
            "exiting because the stop took too long",
            limit_s=self._limit_s,
            hint="the limit is stop_timeout_s and 10 s more",
        )
