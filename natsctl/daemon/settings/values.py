"""The forms of the values of settings, from a file, the environment or a flag."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from natsctl.core.task_group import WORKERS_MAX
from natsctl.daemon.settings.address import Address
from natsctl.errors import UsageError

LEVELS = ("debug", "info", "warning", "error", "critical")

_DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_LEVEL = "|".join(LEVELS)
_LEVELS = re.compile(rf"(?i:{_LEVEL})(,[\w.]+=(?i:{_LEVEL}))*", re.ASCII)


class Shape(msgspec.Struct, frozen=True):
    """The form of a value.

    Attributes:
        description: completes the sentence "the value must be …".
        metavar: the placeholder in help texts.
        type: the type that msgspec converts the value to.
        convert: checks and converts the value further.
    """

    description: str
    metavar: str
    type: Any
    convert: Callable[[Any], object] | None = None

    def read(self, value: object, *, text: bool) -> object:
        """Return the value of a setting; *text* permits numbers that are written as text.

        Raises `ValueError` if the value is invalid; the message may contain the value.
        """
        converted = msgspec.convert(value, self.type, strict=not text)
        return converted if self.convert is None else self.convert(converted)


def _parse_boolean(value: object) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def _urls(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _log_level(value: str) -> str:
    if not _LEVELS.fullmatch(value):
        raise ValueError("not a level")
    return value.lower() if "," not in value else value


def _address(value: str) -> str:
    try:
        return str(Address.parse(value))
    except UsageError as error:
        raise ValueError(str(error)) from error


def _collector(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError("not a URL of a collector")
    return value


_Text = Annotated[str, Meta(min_length=1)]
_Texts = Annotated[tuple[_Text, ...], Meta(min_length=1)]
_Domain = Annotated[str, Meta(pattern=rf"\A{_DOMAIN}\Z", max_length=253)]
_Count = Annotated[int, Meta(gt=0)]
_WorkerCount = Annotated[int, Meta(gt=0, le=WORKERS_MAX)]

TEXT = Shape("a text of at least one character", "TEXT", _Text)
NAME = Shape("a text of at least one character", "NAME", _Text)
URLS = Shape("a URL, or a list of URLs", "URL", _Text | _Texts, _urls)
FILE = Shape("the path of a file", "FILE", _Text)
DIRECTORY = Shape("the path of a directory", "DIR", _Text)
ADDRESS = Shape("HOST:PORT, or :PORT for all interfaces", "HOST:PORT", _Text, _address)
COLLECTOR = Shape(
    "http://HOST:PORT or https://HOST:PORT, with or without a path", "URL", _Text, _collector
)
COUNT = Shape("a whole number above 0", "N", _Count)
WORKERS = Shape(f"a whole number from 1 to {WORKERS_MAX}", "N", _WorkerCount)
SECONDS = Shape(
    "a number of seconds above 0, at most 1e9", "SECONDS", Annotated[float, Meta(gt=0, le=1e9)]
)
SECONDS_OR_ZERO = Shape(
    "a number of seconds from 0 to 1e9", "SECONDS", Annotated[float, Meta(ge=0, le=1e9)]
)
LEASE = Shape("at least 1 second", "SECONDS", Annotated[float, Meta(ge=1, le=1e9)])
SWITCH = Shape("true or false", "", bool | str, _parse_boolean)
DOMAIN = Shape("a domain in lower case", "DOMAIN", _Domain)
LOG_FORMAT = Shape("text or json", "text|json", Literal["text", "json"])
LOG_LEVEL = Shape(
    f"a level ({', '.join(LEVELS)}), optionally followed by levels of loggers",
    "LEVEL",
    _Text,
    _log_level,
)
