"""Log lines: one fact each, for people or for machines, on standard error."""

import logging
import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from natsctl.daemon.observe.log_folding import FoldingHandler
from natsctl.daemon.observe.secrets import Hider
from natsctl.daemon.settings.settings import LogSettings
from natsctl.telemetry.escaping import escaped_lines, json_escaped
from natsctl.telemetry.hiding import TEXT_MAX, TRACEBACK_MAX
from natsctl.telemetry.log_context import about
from natsctl.telemetry.tracing import trace_ids

_COLOURS = {"warning": "33", "error": "31", "critical": "31"}
_FIRST = ("time", "level", "logger", "message")
_WORD = re.compile(r"[^\s:'\",()]+(?<![.;])")
_PLAIN = re.compile(r"[^\s\"=]+")


def log_to_stderr(settings: LogSettings, secrets: Iterable[str] = ()) -> None:
    """Have every logger write its lines to standard error as *settings* say, none of *secrets*.

    *Guarantees.* A line says which controller, key, operation and attempt it is about, where its
    task knows, and which trace and span it is part of, where those are recorded. What looks like a
    secret is hidden as well, in messages, facts and tracebacks. Loggers of the standard library and
    of structlog are written alike. Warnings and errors that repeat are folded, see `folding`.
    """
    before: list[Processor] = [structlog.contextvars.merge_contextvars, _about]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = FoldingHandler(sys.stderr)
    handler.setFormatter(_formatter(settings, before, Hider(secrets)))
    least, *others = settings.level.split(",")
    logging.basicConfig(level=least.upper(), handlers=[handler], force=True)
    for name, _, level in (other.partition("=") for other in others):
        logging.getLogger(name).setLevel(level.upper())


def _formatter(
    settings: LogSettings, before: list[Processor], hide: Hider
) -> structlog.stdlib.ProcessorFormatter:
    rendered = _json if settings.format == "json" else _Text(colour=_in_colour())

    def hidden(_: WrappedLogger, __: str, fact: EventDict) -> str:
        return rendered({name: _shown(name, value, hide) for name, value in fact.items()})

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *before],
        processors=[_stamp, structlog.processors.format_exc_info, _in_order, hidden],
    )


# ---- what a line says


def _about(_: WrappedLogger, __: str, fact: EventDict) -> EventDict:
    """Add what the current task is about; what the line itself says is not written over."""
    return {**about(), **trace_ids(), **fact}


def _stamp(_: WrappedLogger, __: str, fact: EventDict) -> EventDict:
    record: logging.LogRecord = fact.pop("_record")
    fact.pop("_from_structlog")
    fact.update(time=record.created, level=record.levelname.lower(), logger=record.name)
    return fact


def _in_order(_: WrappedLogger, __: str, fact: EventDict) -> EventDict:
    fact["message"] = fact.pop("event", "")
    first = {name: fact.pop(name) for name in _FIRST}
    last = {"exception": fact.pop("exception")} if "exception" in fact else {}
    return {**first, **fact, **last}


def _shown(name: str, value: object, hide: Hider) -> object:
    """Return the value as it may be shown: numbers as they are, all else as a text that is cut."""
    if value is None or isinstance(value, bool | int | float):
        return value
    limit = TRACEBACK_MAX if name == "exception" else TEXT_MAX
    return hide(str(value), limit=limit).encode(errors="replace").decode()


# ---- how it is written


def _json(fact: EventDict) -> str:
    """Return one JSON object; `time` is RFC 3339 in UTC."""
    fact["time"] = datetime.fromtimestamp(fact["time"], UTC).isoformat(timespec="milliseconds")
    fact["time"] = fact["time"].replace("+00:00", "Z")
    return json_escaped(msgspec.json.encode(fact).decode())


class _Text:
    """`12:34:56.789 INFO    message  fact=value`, in local time; then the traceback.

    Further lines of a message are indented, as the traceback is: none looks like another fact. A
    controller and a key that the message names are not told again. Levels are coloured where
    *colour*; what would control a terminal is escaped.
    """

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, fact: EventDict) -> str:
        at = datetime.fromtimestamp(fact.pop("time"), UTC).astimezone()
        level, _, message = (str(fact.pop(name)) for name in _FIRST[1:])
        traceback = fact.pop("exception", None)
        for name in ("controller", "key"):
            if name in fact and str(fact[name]) in _WORD.findall(message):
                del fact[name]
        told = " ".join(f"{name}={_quoted(value)}" for name, value in fact.items())
        lines = [f"{message}  {told}" if told else message, *([traceback] if traceback else ())]
        text = escaped_lines("\n".join(lines))
        return f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {self._level(level)} {text}"

    def _level(self, level: str) -> str:
        code, padded = _COLOURS.get(level), f"{level.upper():<7}"
        return padded if code is None or not self._colour else f"\x1b[{code}m{padded}\x1b[0m"


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)


def _in_colour() -> bool:
    """Say whether standard error shows colours."""
    wanted = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return wanted and sys.stderr.isatty()
