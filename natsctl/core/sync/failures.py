"""Logs failures of handlers: a traceback once, then one line for each retry with the count."""

import asyncio
import logging
import traceback
from collections import OrderedDict
from collections.abc import Hashable

from natsctl.telemetry.classification import ErrorClass, classify
from natsctl.telemetry.hiding import error_text

KEYS_MAX = 10_000  # failing keys whose failures are counted
ERRORS_MAX = 100  # distinct errors that are remembered
AGAIN_S = 600.0  # the traceback of an error that goes on is logged again after so long


class FailureLog:
    """Logs the failures of one controller's handlers.

    The traceback of an unexpected error is logged once in ten minutes, whichever keys it fails;
    errors of one type that are raised at one line are the same. An error that was asked for, or
    that somebody expects, needs none.
    """

    def __init__(self, logger: logging.Logger, level: int = logging.ERROR) -> None:
        self._logger = logger
        self._level = level
        self._counts: OrderedDict[Hashable, int] = OrderedDict()
        self._shown: OrderedDict[Hashable, float] = OrderedDict()

    def failed(self, key: Hashable, what: str, error: BaseException) -> str:
        """Log that *what* failed for the key; return the text of the error, without secrets."""
        text = error_text(error)
        found = classify(error)
        if found.failed:
            count = self._count(key)
            if found is ErrorClass.PERMANENT:
                self.succeeded(key)  # nothing follows in a row
            times = f" ({count} times in a row)" if count > 1 else ""
            trace = error if found is ErrorClass.UNEXPECTED and self._is_new(error) else None
            self._logger.log(self._level, "%s failed%s: %s", what, times, text, exc_info=trace)
        return text

    def succeeded(self, key: Hashable) -> None:
        """Count the key's failures from the beginning again."""
        self._counts.pop(key, None)

    def _count(self, key: Hashable) -> int:
        count = self._counts.pop(key, 0) + 1
        self._counts[key] = count
        if len(self._counts) > KEYS_MAX:
            self._counts.popitem(last=False)
        return count

    def _is_new(self, error: BaseException) -> bool:
        """Return whether the traceback is to be logged now."""
        now = asyncio.get_running_loop().time()
        place = next(reversed(list(traceback.walk_tb(error.__traceback__))), None)
        line = None if place is None else (place[0].f_code.co_filename, place[1])
        if now - self._shown.get((type(error), line), -AGAIN_S) < AGAIN_S:
            return False
        self._shown.pop((type(error), line), None)
        self._shown[type(error), line] = now
        if len(self._shown) > ERRORS_MAX:
            self._shown.popitem(last=False)
        return True
