"""Writes repeated log lines once a second, with their count.

If two thousand keys fail for the same reason, two thousand lines are logged at once. Warnings and
errors of natsctl's own loggers (`natsctl.telemetry.logger`) are folded if they have the same
logger, level and event, the same `controller`, `kind` and `bucket`, and the same traceback. The
first line is written at once. Of the lines that follow within a second, the newest is written at
the end of the second, and its field `repeated` is the number of lines that it represents.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextvars import Context, copy_context
from typing import TextIO

import msgspec

from natsctl.telemetry.logger import LogEvent, log_context

INTERVAL_S = 1.0
KINDS_MAX = 1000  # kinds of lines that are remembered
SUBJECTS = ("controller", "kind", "bucket")  # the fields that distinguish kinds of lines
SUBJECT_MAX = 200  # characters that are compared

Folded = tuple[logging.LogRecord, Context]


class _Fold(msgspec.Struct):
    """Lines of one kind that are held back until a time of the loop's clock."""

    until: float
    count: int = 0
    newest: Folded | None = None


class FoldingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream, and folds repeated ones.

    The handler uses the clock of the event loop, which may be virtual. Records of other threads are
    folded too. Closing the handler writes all lines that are held back.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._folds: OrderedDict[Hashable, _Fold] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or hold it back and count it."""
        kind = _line_kind(record)
        if kind is None:
            super().emit(record)
            return
        now = self._now()
        fold = self._folds.get(kind)
        if fold is None or now >= fold.until:
            held_back = 0 if fold is None else fold.count
            self._begin_fold(kind, now)
            self._write(record, held_back + 1)
            return
        fold.count += 1
        fold.newest = record, copy_context()
        if fold.count == 1:
            self._end_at(fold.until, kind)

    def close(self) -> None:
        """Write all lines that are held back, and close the handler."""
        if not self.stream.closed:
            self._write_all()
        super().close()

    def _begin_fold(self, kind: Hashable, now: float) -> None:
        self._folds[kind] = _Fold(now + INTERVAL_S)
        self._folds.move_to_end(kind)
        if len(self._folds) > KINDS_MAX:
            _, oldest = self._folds.popitem(last=False)
            self._write_newest(oldest)

    def _end(self, kind: Hashable) -> None:
        """Write the newest line of a kind, and hold back the next lines for another interval."""
        self.acquire()
        try:
            fold = self._folds.get(kind)
            if fold is not None and fold.count and self._now() >= fold.until:
                self._begin_fold(kind, self._now())
                self._write_newest(fold)
        finally:
            self.release()

    def _write_newest(self, fold: _Fold) -> None:
        if fold.newest is not None:
            record, context = fold.newest
            context.run(self._write, record, fold.count)

    def _write_all(self) -> None:
        folds = list(self._folds.values())
        self._folds.clear()
        for fold in folds:
            self._write_newest(fold)

    def _write(self, record: logging.LogRecord, count: int) -> None:
        if count > 1:
            record.repeated = count
        super().emit(record)

    def _now(self) -> float:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            last = self._loop
            return time.monotonic() if last is None or last.is_closed() else last.time()
        if loop is not self._loop:
            self._write_all()  # another loop has another clock
            self._loop = loop
        return loop.time()

    def _end_at(self, when: float, kind: Hashable) -> None:
        """Schedule the end of the interval on the loop.

        Without a loop, the next line of the same kind or `close` ends the interval.
        """
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(loop.call_at, when, self._end, kind)


def _line_kind(record: logging.LogRecord) -> Hashable:
    """Return a value that is equal for lines of the same kind; None if the line is not folded."""
    if not isinstance(record.msg, LogEvent) or record.levelno < logging.WARNING:
        return None
    fields = {**log_context(), **record.msg.fields}
    subjects = tuple(str(fields.get(name, ""))[:SUBJECT_MAX] for name in SUBJECTS)
    return record.name, record.levelno, record.msg.event, subjects, _raised_at(record)


def _raised_at(record: logging.LogRecord) -> Hashable:
    """Return the type of the error whose traceback is logged, and the line that raised it."""
    if not record.exc_info or record.exc_info[1] is None:
        return None
    error, trace = record.exc_info[1], record.exc_info[2]
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return type(error), place
