"""Writes repeated log lines once a second, with their count.

Two thousand keys that fail for one reason log two thousand lines at once. Lines of natsctl's own
loggers, warnings and worse, are folded if they have the same logger, level and format, are about
the same controller or kind, and show the same traceback, if any. The first is written at once. Of
those that follow within a second the newest is written when the second ends, with `repeated`: for
how many lines it stands.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Hashable
from contextvars import Context, copy_context
from typing import TextIO

import msgspec

from natsctl.telemetry.log_context import about

INTERVAL_S = 1.0
KINDS_MAX = 1000  # of lines that are remembered; the oldest is written and forgotten first
SUBJECT_MAX = 200  # characters of what a line is about

Folded = tuple[logging.LogRecord, Context]


class _Fold(msgspec.Struct):
    """Lines of one kind: until when they are held back, how many are, and the newest of them."""

    until: float
    count: int = 0
    newest: Folded | None = None


class FoldingHandler(logging.StreamHandler[TextIO]):
    """Writes records to a stream; see above.

    It goes by the clock of the event loop, so by virtual time too. Other threads may log. Closing
    the handler writes all lines that it holds back.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._folds: OrderedDict[Hashable, _Fold] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, or count it."""
        kind = _kind(record)
        if kind is None:
            super().emit(record)
            return
        now = self._now()
        fold = self._folds.get(kind)
        if fold is None or now >= fold.until:
            before = 0 if fold is None else fold.count
            self._begin(kind, now)
            self._write(record, before + 1)
            return
        fold.count += 1
        fold.newest = record, copy_context()
        if fold.count == 1:
            self._end_at(fold.until, kind)

    def close(self) -> None:
        """Write all lines that are held back, and close."""
        if not self.stream.closed:
            self._write_all()
        super().close()

    def _begin(self, kind: Hashable, now: float) -> None:
        self._folds[kind] = _Fold(now + INTERVAL_S)
        self._folds.move_to_end(kind)
        if len(self._folds) > KINDS_MAX:
            _, oldest = self._folds.popitem(last=False)
            self._write_newest(oldest)

    def _end(self, kind: Hashable) -> None:
        """Write the newest line of a kind, and hold back the next ones for as long again."""
        self.acquire()
        try:
            fold = self._folds.get(kind)
            if fold is not None and fold.count and self._now() >= fold.until:
                self._begin(kind, self._now())
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
            known = self._loop
            return time.monotonic() if known is None or known.is_closed() else known.time()
        if loop is not self._loop:
            self._write_all()  # another loop has another clock
            self._loop = loop
        return loop.time()

    def _end_at(self, when: float, kind: Hashable) -> None:
        """Have the loop end the second; without a loop, the next such line or `close` does."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(loop.call_at, when, self._end, kind)


def _kind(record: logging.LogRecord) -> Hashable:
    """Return which lines are the same; None for a line that is always written."""
    ours = record.name == "natsctl" or record.name.startswith("natsctl.")
    if not ours or record.levelno < logging.WARNING or not isinstance(record.msg, str):
        return None
    return record.name, record.levelno, record.msg, _subject(record), _trace(record)


def _subject(record: logging.LogRecord) -> str:
    """Return what the line is about, which comes first in it, but for the key of its task."""
    args = record.args if isinstance(record.args, tuple) else ()
    first = str(args[0])[:SUBJECT_MAX] if args else ""
    key = about().get("key")
    return "" if key is not None and str(key) in first.split() else first


def _trace(record: logging.LogRecord) -> Hashable:
    """Return the type of the error whose traceback is shown, and the line that raised it."""
    if not record.exc_info or record.exc_info[1] is None:
        return None
    error, frame = record.exc_info[1], record.exc_info[2]
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = None if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)
    return type(error), place
