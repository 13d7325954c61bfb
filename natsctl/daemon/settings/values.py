"""What the value of a setting looks like, however it is given."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from natsctl.daemon.settings.address import Address
from natsctl.errors import UsageError

LEVELS = ("debug", "info", "warning", "error", "critical")

_DOMAIN = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*"
_LEVEL = "|".join(LEVELS)
_LOGGED = re.compile(rf"(?i:{_LEVEL})(,[\w.]+=(?i:{_LEVEL}))*", re.ASCII)


class Shape(msgspec.Struct, frozen=True):
    """What a value must be: `says` ends the sentence that it must be …."""

    says: str
    type: Any
    then: Callable[[Any], object] | None = None

    def read(self, value: object, *, text: bool) -> object:
        """Return what is meant; *text*: it was typed, so numbers come as texts too.

        Raises `ValueError` where it does not look like this; its text may hold the value.
        """
        found = msgspec.convert(value, self.type, strict=not text)
        return found if self.then is None else self.then(found)


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        return words[str(value).lower()]
    except KeyError:
        raise ValueError("neither true nor false") from None


def _texts(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _levels(value: str) -> str:
    if not _LOGGED.fullmatch(value):
        raise ValueError("no level")
    return value.lower() if "," not in value else value


def _address(value: str) -> str:
    try:
        return str(Address.parse(value))
    except UsageError as error:
        raise ValueError(str(error)) from error


def _collector(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError("no such URL")
    return value


_Text = Annotated[str, Meta(min_length=1)]
_Texts = Annotated[tuple[_Text, ...], Meta(min_length=1)]
_Domain = Annotated[str, Meta(pattern=rf"\A{_DOMAIN}\Z", max_length=253)]

TEXT = Shape("a text of at least one character", _Text)
TEXTS = Shape("a URL, or a list of them", _Text | _Texts, _texts)
FILE = Shape("the path of a file", _Text)
ADDRESS = Shape("HOST:PORT, or :PORT for every interface", _Text, _address)
COLLECTOR = Shape("http://HOST:PORT, or https, and a path if need be", _Text, _collector)
WHOLE = Shape("a whole number above 0", Annotated[int, Meta(gt=0)])
SECONDS = Shape("a number of seconds above 0", Annotated[float, Meta(gt=0, le=1e9)])
EXPIRY = Shape("a number of seconds, 0 for ever", Annotated[float, Meta(ge=0, le=1e9)])
LEASE = Shape("a number of seconds from 1 on", Annotated[float, Meta(ge=1, le=1e9)])
SWITCH = Shape("true or false", bool | str, _switch)
DOMAIN = Shape("a domain in lower case", _Domain)
FORMAT = Shape("text or json", Literal["text", "json"])
LOGGED = Shape(
    f"a level ({', '.join(LEVELS)}), with levels of loggers after it if need be", _Text, _levels
)
