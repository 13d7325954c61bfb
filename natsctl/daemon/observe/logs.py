"""Writes log lines to standard error, as text for people or as JSON for programs.

`natsctl.telemetry.logger` states how a module logs an event with fields.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from natsctl.daemon.observe.log_folding import FoldingHandler
from natsctl.daemon.settings.settings import LogSettings
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.connection.servers import secrets
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.model.times import time_text
from natsctl.telemetry.escaping import escaped_lines, json_escaped
from natsctl.telemetry.hiding import TEXT_MAX, TRACEBACK_MAX, Hider
from natsctl.telemetry.logger import LogEvent, field_text, log_context, value_text
from natsctl.telemetry.tracing import trace_ids

_COLOURS = {"warning": "33", "error": "31", "critical": "31"}
_FIRST = ("time", "level", "logger", "message")
_LAST = ("repeated", "exception")


Render = Callable[[EventDict], str]
"""Returns the line for the fields of an event; `time` is in seconds since the epoch."""


def log_to_stderr(settings: LogSettings, secrets: Iterable[str] = ()) -> None:
    """Configure all loggers of the process to write to standard error.

    *Guarantees.* Each line has the fields of its event, the log context of its task, and the ids of
    the trace and span that are being recorded. *secrets*, and texts that look like a secret, are
    hidden in messages, fields and tracebacks. Loggers of the standard library and of structlog
    write the same form. Repeated warnings and errors are folded (see `log_folding`).
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        lambda _, __, line: _with_context(line),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = FoldingHandler(sys.stderr)
    handler.setFormatter(_formatter(settings, shared, Hider(secrets)))
    root_level, *logger_levels = settings.level.split(",")
    logging.basicConfig(level=root_level.upper(), handlers=[handler], force=True)
    for name, _, level in (logger_level.partition("=") for logger_level in logger_levels):
        logging.getLogger(name).setLevel(level.upper())


def secrets_of(nats: NatsOptions, cluster: KubeOptions | None = None) -> Iterator[str]:
    """Yield the secrets in these options; raises `UsageError` if a URL is invalid."""
    yield from secrets(nats)
    if cluster is not None and cluster.token:
        yield cluster.token


def renderer(settings: LogSettings) -> Render:
    """Return the function that renders a line in the form of the settings."""
    return _json if settings.format == "json" else _Text(colour=_terminal_has_colour())


def _formatter(
    settings: LogSettings, shared: list[Processor], hide: Hider
) -> structlog.stdlib.ProcessorFormatter:
    render = renderer(settings)

    def render_hidden(_: WrappedLogger, __: str, line: EventDict) -> str:
        return render({name: _hidden(name, value, hide) for name, value in line.items()})

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), _with_fields, *shared],
        processors=[_with_origin, structlog.processors.format_exc_info, _in_order, render_hidden],
    )


# ---- the content of a line


def _with_fields(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Split the event of a natsctl logger into its text and its fields."""
    message = line["_record"].msg
    if not isinstance(message, LogEvent):
        return line
    return {**line, **message.fields, "event": message.event}


def _with_context(line: EventDict) -> EventDict:
    """Add the log context and the ids of the trace; the line's own fields win."""
    return {**log_context(), **trace_ids(), **line}


def _with_origin(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    record: logging.LogRecord = line.pop("_record")
    line.pop("_from_structlog")
    line.update(time=record.created, level=record.levelname.lower(), logger=record.name)
    return line


def _in_order(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    line["message"] = line.pop("event", "")
    first = {name: line.pop(name) for name in _FIRST}
    last = {name: line.pop(name) for name in _LAST if name in line}
    return {**first, **line, **last}


def _hidden(name: str, value: object, hide: Hider) -> object:
    """Return a number as it is, and any other value as a text without secrets, cut to a limit."""
    if value is None or isinstance(value, bool | int | float):
        return value
    limit = TRACEBACK_MAX if name == "exception" else TEXT_MAX
    return hide(value_text(value), limit=limit).encode(errors="replace").decode()


# ---- the two forms of a line


def _json(line: EventDict) -> str:
    """Return one JSON object; `time` is RFC 3339 in UTC."""
    line["time"] = time_text(datetime.fromtimestamp(line["time"], UTC), timespec="milliseconds")
    return json_escaped(msgspec.json.encode(line).decode())


class _Text:
    """Renders `12:34:56.789 INFO    message  field=value` in local time.

    Values of several lines, and the traceback, follow below. All lines but the first are indented,
    so that none looks like another event. Characters that control a terminal are escaped.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, line: EventDict) -> str:
        time = datetime.fromtimestamp(line.pop("time"), UTC).astimezone()
        level, _, message = (str(line.pop(name)) for name in _FIRST[1:])
        traceback = line.pop("exception", None)
        blocks = {n: value for n, value in line.items() if isinstance(value, str) and "\n" in value}
        fields = " ".join(field_text(n, value) for n, value in line.items() if n not in blocks)
        text = [f"{message}  {fields}" if fields else message]
        text += [f"{name}:\n{value}" for name, value in blocks.items()]
        text += [traceback] if traceback else []
        millisecond = time.microsecond // 1000
        body = escaped_lines("\n".join(text))
        return f"{time:%H:%M:%S}.{millisecond:03} {self._level(level)} {body}"

    def _level(self, level: str) -> str:
        code, padded = _COLOURS.get(level), f"{level.upper():<7}"
        return padded if code is None or not self._colour else f"\x1b[{code}m{padded}\x1b[0m"


def _terminal_has_colour() -> bool:
    allowed = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return allowed and sys.stderr.isatty()
