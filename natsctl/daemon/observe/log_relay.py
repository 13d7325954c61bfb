"""Passes on the lines of other processes, whole and in the order of their arrival."""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime

import msgspec

from natsctl.daemon.observe.logs import renderer
from natsctl.daemon.settings.settings import LogSettings
from natsctl.errors import DECODE_ERRORS
from natsctl.telemetry.escaping import json_escaped

CHUNK = 65_536  # bytes that are read at once
LINE_MAX = 1_048_576  # bytes; a longer line is cut into several
FIELDS = frozenset(("time", "level", "logger", "message"))  # those of every log line


class LogRelay:
    """Writes the lines of other processes to the outputs of this one.

    *Guarantees.* Each write is one or more whole lines, with all lines of one event together. Log
    lines get the form in the settings. Any other line that a process writes to its standard error
    becomes the event `output` of that process, so that JSON logs contain only JSON.
    """

    def __init__(self, settings: LogSettings) -> None:
        self._render = renderer(settings)
        self._is_json = settings.format == "json"

    def log(self, process: int, line: bytes) -> None:
        """Write a line from the standard error of a process, which logs in JSON."""
        event = _event(line)
        if event is None:
            text = self._render(_output(process, line))
        elif self._is_json:
            text = json_escaped(line.decode())
        else:
            event["time"] = datetime.fromisoformat(str(event["time"])).timestamp()
            text = self._render(event)
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def output(self, line: bytes) -> None:
        """Write a line from the standard output of a process, unchanged."""
        with suppress(OSError):
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()


async def whole_lines(stream: asyncio.StreamReader, receive: Callable[[bytes], None]) -> None:
    """Call *receive* with each line of the stream, without its line break, until the stream ends.

    A line that is longer than `LINE_MAX` is cut into several.
    """
    unfinished = b""
    while chunk := await stream.read(CHUNK):
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        for line in lines:
            receive(line)
        if len(unfinished) > LINE_MAX:
            receive(unfinished)
            unfinished = b""
    if unfinished:
        receive(unfinished)


def _event(line: bytes) -> dict[str, object] | None:
    """Return the fields of a log line; None for any other line."""
    try:
        event = msgspec.json.decode(line, type=dict[str, object])
        datetime.fromisoformat(str(event.get("time")))
    except (*DECODE_ERRORS, ValueError):
        return None
    return event if event.keys() >= FIELDS else None


def _output(process: int, line: bytes) -> dict[str, object]:
    """Return the fields of an event for a line that is no log line."""
    return {
        "time": time.time(),
        "level": "info",
        "logger": "natsctl.output",
        "message": "output",
        "process": process,
        "line": line.decode(errors="replace"),
    }
