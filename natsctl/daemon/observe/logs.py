"""Writes log lines to standard error, as text for people or as JSON for programs.

`natsctl.telemetry.logger` states how a module logs an event with fields.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from natsctl.daemon.observe.log_folding import FoldingHandler
from natsctl.daemon.settings.settings import LogFormat, LogSettings
from natsctl.jetstream.options import NatsOptions, secrets
from natsctl.kubernetes.options import KubeOptions
from natsctl.model.times import time_text
from natsctl.telemetry.escaping import escaped_lines, json_escaped
from natsctl.telemetry.hiding import TEXT_MAX, TRACEBACK_MAX, Hider
from natsctl.telemetry.logger import LogEvent, field_text, log_context, value_text
from natsctl.telemetry.tracing import trace_ids

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
    """Writes a record as one line: JSON, or text with indented lines below it."""

    def __init__(self, style: LogFormat, hide: Hider) -> None:
        super().__init__()
        self._render = _json if style == "json" else self._text
        self._hide = hide
        self._colour = _terminal_has_colour()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of the record; its own fields win over those of its task."""
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
        """Return a number as it is, and else a text without secrets, cut to a limit."""
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


def _terminal_has_colour() -> bool:
    allowed = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return allowed and sys.stderr.isatty()
