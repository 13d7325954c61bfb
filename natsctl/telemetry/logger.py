"""The loggers of natsctl: an event in plain words, plus fields.

```python
log = get_logger(__name__)
log.warning("lost leadership", controller=name, epoch=epoch, error=error)
```

The first argument is a constant text without `%s`, names or numbers. Everything else is a field,
with its unit last in its name (`wait_s`); `error` is the last field. A field that is None is left
out. A field can't be named `msg`, `level`, `message`, `event`, `time`, `logger`, `exception` or
`repeated`. `exc_info`, `extra`, `stack_info` and `stacklevel` mean the same as for the standard
library's loggers.

The log context holds the fields that belong to every line of a task: `controller`, `key`,
`operation` and `attempt`. A new task inherits the context of the task that creates it.

`natsctl.daemon.logs` writes the lines of `natsctl run`. In a program with its own logging
setup, the record's message is `lost leadership controller=greetings epoch=41`, and `record.msg` is
a `LogEvent`.
"""

import logging
import re
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any, Protocol

import msgspec

from natsctl.telemetry.escaping import escaped_lines
from natsctl.telemetry.hiding import TRACEBACK_MAX, hidden

_LOGGING_OPTIONS = ("exc_info", "extra", "stack_info", "stacklevel")
_REPEATS_MAX = 100  # messages
_PLAIN = re.compile(r"[^\s\"=]+")

_EMPTY: Mapping[str, object] = {}


class LogEvent(msgspec.Struct, frozen=True):
    """The message of a log record: what happened, and the fields that describe it."""

    event: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join((self.event, *(field_text(*field) for field in self.fields.items())))


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger of the standard library whose methods take the fields of an event as keywords."""

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[LogEvent, MutableMapping[str, Any]]:
        options = {name: kwargs.pop(name) for name in _LOGGING_OPTIONS if name in kwargs}
        fields = {name: value for name, value in kwargs.items() if value is not None}
        return LogEvent(str(msg), fields), options


def get_logger(name: str) -> EventLogger:
    """Return the logger of a module: `get_logger(__name__)`."""
    return EventLogger(logging.getLogger(name), {})


def value_text(value: object) -> str:
    """Return the value of a field as text; an exception without a text is its type."""
    return str(value) or (type(value).__name__ if isinstance(value, BaseException) else "")


def field_text(name: str, value: object) -> str:
    """Return `name=value`; a value with spaces, quotes or `=` is in quotes."""
    text = value_text(value)
    return f"{name}={text if _PLAIN.fullmatch(text) else repr(text)}"


class HidingFormatter(logging.Formatter):
    """A formatter of the standard library that hides secrets and escapes control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return escaped_lines(hidden(super().format(record), limit=TRACEBACK_MAX))


class LogFields(Protocol):
    """Fields that become a mapping only if something is logged."""

    def mapping(self) -> Mapping[str, object]: ...


_context: ContextVar[Mapping[str, object]] = ContextVar("log_context", default=_EMPTY)
current: ContextVar[LogFields | None] = ContextVar("current", default=None)
"""The sync of the current task, whose fields belong to every log line too."""


def log_context() -> Mapping[str, object]:
    """Return the fields that belong to every log line of the current task."""
    sync, context = current.get(), _context.get()
    return context if sync is None else {**context, **sync.mapping()}


def bind_log_context(**fields: object) -> None:
    """Add fields to the log context of the current task."""
    _context.set({**log_context(), **fields})


def bind_sync(outer: Mapping[str, object], key: object, attempt: int) -> None:
    """Begin the log context of a sync in the current task."""
    _context.set({**outer, "key": key, "attempt": attempt})


def unbind_sync() -> None:
    """Remove every field but `controller`, in a task that outlives the sync that started it."""
    current.set(None)
    _context.set({name: value for name, value in log_context().items() if name == "controller"})


class Repeats:
    """Permits each distinct message once per `quiet_s` seconds.

    Forgets all messages when it has a hundred, so that its memory is bounded.
    """

    def __init__(self, clock: Callable[[], float], quiet_s: float = 30.0) -> None:
        self._clock = clock
        self._quiet_s = quiet_s
        self._logged: dict[str, float] = {}

    def due(self, message: str) -> bool:
        now = self._clock()
        if now - self._logged.get(message, -self._quiet_s) < self._quiet_s:
            return False
        if len(self._logged) >= _REPEATS_MAX:
            self._logged.clear()
        self._logged[message] = now
        return True
