"""Logs invalid objects: a few of them one by one, the others as a count per minute."""

import asyncio
from typing import Any

from natsctl.core.cache.state import Invalid
from natsctl.model.kinds import Kind
from natsctl.telemetry.logger import get_logger

log = get_logger(__name__)

SHOWN_MAX = 10  # objects that are logged one by one before the others are counted
COUNT_S = 60.0  # interval of the count; after an interval without any, objects are logged again


class InvalidLog:
    """Logs the invalid objects of one kind. The first line of a series gives the likely cause."""

    def __init__(self, kind: Kind[Any]) -> None:
        self._kind = kind
        self._shown = 0
        self._counted = 0
        self._added = False  # since the last count
        self._timer: asyncio.TimerHandle | None = None

    def add(self, invalid: Invalid) -> None:
        """Log the object, or count it."""
        self._added = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COUNT_S, self._log_next_count)
        if self._shown == SHOWN_MAX:
            self._counted += 1
            return
        cause = ""
        if not (self._shown or invalid.illegal):
            cause = self._kind.likely_cause(invalid.stored.value)
        self._shown += 1
        log.error(
            "skipped an invalid object",
            kind=self._kind.name,
            key=invalid.stored.key,
            revision=invalid.stored.revision,
            hint=f"if all values are like this, {cause}" if cause else None,
            error=invalid.error,
        )

    def close(self) -> None:
        """Log the count, and stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._log_count()

    def _log_next_count(self) -> None:
        self._timer = None
        self._log_count()
        if self._added:
            self._timer = asyncio.get_running_loop().call_later(COUNT_S, self._log_next_count)
        else:
            self._shown = 0
        self._added = False

    def _log_count(self) -> None:
        counted, self._counted = self._counted, 0
        if counted:
            log.error("skipped more invalid objects", kind=self._kind.name, objects=counted)
