"""Writes log lines to standard error, as text for people or as JSON for programs.

`natsctl.telemetry.logger` states how a module logs an event with fields.
"""

import asyncio
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from contextlib import nullcontext
from contextvars import Context, copy_context
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from natsctl.daemon.settings.settings import LogFormat, LogSettings
from natsctl.jetstream.options import NatsOptions, secrets
from natsctl.kubernetes.options import KubeOptions
from natsctl.model.times import time_text
from natsctl.telemetry.escaping import escaped_lines, json_escaped
from natsctl.telemetry.hiding import TEXT_MAX, TRACEBACK_MAX, Hider
from natsctl.telemetry.logger import LogEvent, field_text, log_context, value_text
from natsctl.telemetry.tracing import trace_ids

INTERVAL_S = 1.0
KINDS_MAX = 1000  # kinds of lines that are remembered
SUBJECTS = ("controller", "kind", "bucket")  # the fields that distinguish kinds of lines
SUBJECT_MAX = 200  # characters that are compared

Folded = tuple[logging.LogRecord, Context]


class _Fold(msgspec.Struct):
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
        kind = _line_kind(record)
        if kind is None:
            super().emit(record)
            return
        now = self._now()
        fold = self._folds.get(kind)
        if fold is None or now >= fold.until:
            self._begin_fold(kind, now)
            self._write(record, 1 if fold is None else fold.count + 1)
            return
        fold.count += 1
        fold.newest = record, copy_context()
        if fold.count == 1 and self._loop is not None and not self._loop.is_closed():
            # without a loop, the next line of the same kind or `close` ends the interval
            self._loop.call_soon_threadsafe(self._loop.call_at, fold.until, self._end, kind)

    def close(self) -> None:
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
        with self.lock or nullcontext():
            fold = self._folds.get(kind)
            if fold is not None and fold.count and self._now() >= fold.until:
                self._begin_fold(kind, self._now())
                self._write_newest(fold)

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


def _line_kind(record: logging.LogRecord) -> Hashable:
    """Return a value that is equal for lines of the same kind; None if the line isn't folded."""
    if not isinstance(record.msg, LogEvent) or record.levelno < logging.WARNING:
        return None
    fields = {**log_context(), **record.msg.fields}
    subjects = tuple(str(fields.get(name, ""))[:SUBJECT_MAX] for name in SUBJECTS)
    kind, _, trace = record.exc_info or (None, None, None)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next  # the line that raised the error
    place = None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    return record.name, record.levelno, record.msg.event, subjects, kind, place


_COLOURS = {"warning": "33", "error": "31", "critical": "31"}
_STANDARD = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The attributes of every log record; the others are fields that its logger added."""


def log_to_stderr(settings: LogSettings, secrets: Iterable[str] = ()) -> None:
    """Configure all loggers of the process to write to standard error.

    *Guarantees.* Each line has the fields of its event, the log context of its task, and the ids of
    the trace and span that are being recorded. *secrets*, and texts that look like a secret, are
    hidden in messages, fields and tracebacks. Loggers of the standard library write the same form.
    Repeated warnings and errors are folded (see `log_folding`).
    """
    handler = FoldingHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(settings.format, Hider(secrets)))
    root_level, *logger_levels = settings.level.split(",")
    logging.basicConfig(level=root_level.upper(), handlers=[handler], force=True)
    for name, _, level in (logger_level.partition("=") for logger_level in logger_levels):
        logging.getLogger(name).setLevel(level.upper())


def secrets_of(nats: NatsOptions, cluster: KubeOptions | None = None) -> Iterator[str]:
    """Yield the secrets in these options; raises `UsageError` if a URL is invalid."""
    yield from secrets(nats)
    if cluster is not None and cluster.token:
        yield cluster.token


class _LineFormatter(logging.Formatter):
    def __init__(self, style: LogFormat, hide: Hider) -> None:
        super().__init__()
        self._render = _json if style == "json" else self._text
        self._hide = hide
        allowed = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        self._colour = allowed and sys.stderr.isatty()

    def format(self, record: logging.LogRecord) -> str:
        event = record.msg if isinstance(record.msg, LogEvent) else None
        given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        first = {
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage() if event is None else event.event,
        }
        fields = {**log_context(), **trace_ids(), **given, **(event.fields if event else {})}
        last = {"repeated": fields.pop("repeated")} if "repeated" in fields else {}
        if record.exc_info and record.exc_info[0] is not None:
            last["exception"] = self.formatException(record.exc_info)
        line = {**first, **fields, **first, **last}
        return self._render({name: self._hidden(name, value) for name, value in line.items()})

    def _hidden(self, name: str, value: object) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value
        limit = TRACEBACK_MAX if name == "exception" else TEXT_MAX
        return self._hide(value_text(value), limit=limit).encode(errors="replace").decode()

    def _text(self, line: dict[str, Any]) -> str:
        """Return `12:34:56.789 INFO    message  field=value` in local time.

        Values of several lines, and the traceback, follow below. All lines but the first are
        indented, so that none looks like another event. Characters that control a terminal are
        escaped.
        """
        time = datetime.fromtimestamp(line.pop("time"), UTC).astimezone()
        level, _, message = (str(line.pop(name)) for name in ("level", "logger", "message"))
        traceback = line.pop("exception", None)
        blocks = {n: value for n, value in line.items() if isinstance(value, str) and "\n" in value}
        fields = " ".join(field_text(n, value) for n, value in line.items() if n not in blocks)
        text = [f"{message}  {fields}" if fields else message]
        text += [f"{name}:\n{value}" for name, value in blocks.items()]
        text += [traceback] if traceback else []
        code, padded = _COLOURS.get(level), f"{level.upper():<7}"
        if code is not None and self._colour:
            padded = f"\x1b[{code}m{padded}\x1b[0m"
        body = escaped_lines("\n".join(text))
        return f"{time:%H:%M:%S}.{time.microsecond // 1000:03} {padded} {body}"


def _json(line: dict[str, Any]) -> str:
    """Return one JSON object; `time` is RFC 3339 in UTC."""
    line["time"] = time_text(datetime.fromtimestamp(line["time"], UTC), timespec="milliseconds")
    return json_escaped(msgspec.json.encode(line).decode())
