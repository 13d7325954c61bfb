"""Paths of fields, such as `spec.ports[0].name`, and the values that documents have there."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from natsctl.errors import UsageError
from natsctl.model import exact_json

NONE: Final = "<none>"
"""The text of a field that a document doesn't have, as in kubectl."""

NUMBER_MAX = 100
"""Digits of the numbers in texts that are compared as numbers."""

_PART = re.compile(
    r"""\.?(?P<name>(?:[^.\[\]\\'"{}\s]|\\.)+)"""
    r"""|\[(?P<item>-?\d+|\*)\]"""
    r"""|\['(?P<quoted>[^']*)'\]|\["(?P<double>[^"]*)"\]"""
)
_DIGITS = re.compile(r"(\d+)")

SortKey = tuple[int, float, list[tuple[str, int]]]


class FieldPath(msgspec.Struct, frozen=True):
    r"""The path of a field.

    Names are separated by dots; a dot in a name is written as `\.`, or the name in brackets and
    quotes. `[0]` is the first item of a list, `[-1]` the last, and `[*]` all items. kubectl's form
    `{.spec.image}` is a path, too.
    """

    text: str  # the path as it was written
    parts: tuple[str | int | None, ...]  # None stands for all items

    @classmethod
    def parse(cls, text: str) -> "FieldPath":
        """Return the path in *text*; raises `UsageError` if it's malformed."""
        expression = text.removeprefix("{").removesuffix("}").removeprefix("$")
        parts: list[str | int | None] = []
        position = 0
        while position < len(expression):
            match = _PART.match(expression, position)
            if match is None:
                raise UsageError(f"{text!r} is not the path of a field, such as spec.image")
            parts.append(_part(match))
            position = match.end()
        if not parts:
            raise UsageError(f"{text!r} is not the path of a field, such as spec.image")
        return cls(text, tuple(parts))

    def values(self, document: object) -> list[object]:
        """Return the values at the path; none if the document doesn't have the field."""
        selected = [document]
        for part in self.parts:
            selected = [inner for value in selected for inner in _inner_values(value, part)]
        return [value for value in selected if value is not None]

    def text_in(self, document: object, *, missing: str = NONE) -> str:
        """Return the values at the path as text, separated by commas; *missing* if there is none.

        A text stays as it is, and any other value is JSON.
        """
        return ",".join(map(_text, self.values(document))) or missing

    def sort_key(self, document: object) -> SortKey:
        """Return a key that sorts numbers before texts, and documents without the field last.

        Numbers in texts are compared as numbers: `v9` is before `v10`.
        """
        match self.values(document):
            case []:
                return (2, 0.0, [])
            case [bool() | int() | float() as number]:
                return (0, float(number), [])
            case values:
                text = ",".join(map(_text, values))
                return (1, 0.0, [_natural(token) for token in _DIGITS.split(text)])


Columns = Mapping[str, FieldPath]
"""The paths of the columns of a table, by heading."""


def parse_columns(columns: Mapping[str, str]) -> Columns:
    """Return the path of each column by its heading; raises `UsageError` for a malformed one."""
    for heading in columns:
        if not heading or not heading.isprintable() or heading != heading.strip():
            raise UsageError(f"{heading!r} is not the heading of a column")
    return {heading: FieldPath.parse(path) for heading, path in columns.items()}


def _part(match: re.Match[str]) -> str | int | None:
    if match["item"] is not None:
        return None if match["item"] == "*" else int(match["item"])
    if match["name"] is not None:
        return re.sub(r"\\(.)", r"\1", match["name"])
    return match["quoted"] if match["quoted"] is not None else match["double"]


def _inner_values(value: object, part: str | int | None) -> list[object]:
    match value, part:
        case dict(), str() if part in value:
            return [value[part]]
        case dict(), None:
            return list(value.values())
        case list(), None:
            return value
        case list(), int() if -len(value) <= part < len(value):
            return [value[part]]
        case _:
            return []


def _text(value: object) -> str:
    return value if isinstance(value, str) else exact_json.encode(value).decode()


def _natural(token: str) -> tuple[str, int]:
    short = len(token) < NUMBER_MAX
    return ("", int(token)) if token.isdecimal() and short else (token.lower(), 0)
