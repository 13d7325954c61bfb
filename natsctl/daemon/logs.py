"""Log lines: one fact each, for people or for machines, on standard error."""

import logging
import sys
import time
from typing import Literal

import msgspec

LogFormat = Literal["text", "json"]


class _Text(logging.Formatter):
    """`12:34:56.789 INFO    message`, in local time; levels are coloured where *colour*."""

    _COLOURS = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}  # noqa: RUF012 - constant

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        code = self._COLOURS.get(record.levelno) if self._colour else None
        if code is not None:
            level = f"\x1b[{code}m{level}\x1b[0m"
        return f"{at}.{int(record.msecs):03} {level} {super().format(record)}"


class _Json(logging.Formatter):
    """One JSON object per line; `time` is RFC 3339 in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fact = {
            "time": f"{at}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fact["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fact).decode()


def log_to_stderr(style: LogFormat, level: str) -> None:
    """Have every logger write lines of that style, from that level on, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if style == "json" else _Text(colour=sys.stderr.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
