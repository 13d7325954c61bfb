"""Logs failures of handlers: one traceback, then one line per retry with the count."""

import asyncio
import logging
import traceback
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.frames import user_traceback
from natsctl.telemetry.hiding import Secrets, error_text, secrets_of
from natsctl.telemetry.logger import EventLogger

KEYS_MAX = 10_000  # failing keys whose failures are counted
ERRORS_MAX = 100  # distinct errors whose tracebacks are remembered
TRACEBACK_S = 600.0  # an error that repeats is logged with a traceback once in this time


class HandlerFailures:
    """Logs the failures of one controller's handlers.

    An unexpected error is logged with a traceback, from the first frame outside of natsctl, once in
    `TRACEBACK_S` seconds for all keys together. Errors of the same type that are raised at the same
    line count as the same error. Expected errors are logged without a traceback, and delays are not
    logged.
    """

    def __init__(self, logger: EventLogger, level: int = logging.ERROR) -> None:
        self._logger = logger
        self._level = level
        self.counts: OrderedDict[Hashable, int] = OrderedDict()
        self._shown: OrderedDict[Hashable, float] = OrderedDict()

    def failed(self, key: Hashable, event: str, error: BaseException, /, **fields: object) -> str:
        """Log the *event* of a failure with its *fields*, and count it for the key.

        Returns the text of the error without secrets.
        """
        text = error_text(error)
        error_class = classify(error)
        if error_class.failed:
            count = self._count(key)
            if error_class is ErrorClass.PERMANENT:
                self.succeeded(key)  # the key is not retried
            is_traced = error_class is ErrorClass.UNEXPECTED and self._is_new(error)
            trace = (type(error), error, user_traceback(error)) if is_traced else None
            repeats = {"failures": count} if count > 1 else {}
            logged: dict[str, Any] = {**fields, **repeats, "error": text}
            with Secrets(secrets_of(error)):  # the traceback is written meanwhile
                self._logger.log(self._level, event, exc_info=trace, **logged)
        return text

    def succeeded(self, key: Hashable) -> None:
        """Reset the key's count of failures."""
        if self.counts:
            self.counts.pop(key, None)

    def _count(self, key: Hashable) -> int:
        count = self.counts.pop(key, 0) + 1
        self.counts[key] = count
        if len(self.counts) > KEYS_MAX:
            self.counts.popitem(last=False)
        return count

    def _is_new(self, error: BaseException) -> bool:
        """Return whether the error is to be logged with its traceback."""
        now = asyncio.get_running_loop().time()
        frame = next(reversed(list(traceback.walk_tb(error.__traceback__))), None)
        line = None if frame is None else (frame[0].f_code.co_filename, frame[1])
        if now - self._shown.get((type(error), line), -TRACEBACK_S) < TRACEBACK_S:
            return False
        self._shown.pop((type(error), line), None)
        self._shown[type(error), line] = now
        if len(self._shown) > ERRORS_MAX:
            self._shown.popitem(last=False)
        return True
