"""Reads a file of settings, with the line of each section and field."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from natsctl.errors import UsageError

SIZE_MAX_BYTES = 64 * 1024
STATEMENT_MAX = 100  # lines of a value; the lines after a longer value are unknown

_POSITION = re.compile(r" *\(at line (\d+), column \d+\)| *\(at end of document\)")

Lines = Mapping[tuple[str, ...], int]
"""The first line of each section, by its name, and of each field, by section and name."""


def read_toml(file: Path) -> tuple[dict[str, Any], Lines]:
    """Return the content of the file and its lines.

    Raises `UsageError` if the file cannot be read, is larger than 64 KiB, or is not valid TOML. The
    error quotes nothing of the content, which may be a secret.
    """
    try:
        with file.open("rb") as opened:
            raw = opened.read(SIZE_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the settings in {file}: {error.strerror}") from error
    if len(raw) > SIZE_MAX_BYTES:
        raise UsageError(f"the settings in {file} are longer than {SIZE_MAX_BYTES} bytes")
    try:
        text = raw.decode()
        return tomllib.loads(text), lines_of(text)
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not valid TOML: it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.search(str(error))
        place = f"{file}:{position[1]}" if position and position[1] else f"{file}"
        reason = _POSITION.sub("", str(error))
        raise UsageError(
            f'{place} is not valid TOML: {reason}; write lines such as name = "value"'
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"cannot read a value in {file}: a number is too long, or a list is nested too deeply"
        ) from None


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return the first line of each section and field of a valid TOML text.

    The result ends at a value of more than `STATEMENT_MAX` lines.
    """
    lines: dict[tuple[str, ...], int] = {}
    header, statement, begin = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        if number - begin >= STATEMENT_MAX:
            break
        statement += f"{line}\n"
        try:
            content = tomllib.loads(header + statement)
        except tomllib.TOMLDecodeError:
            continue  # the value continues in the next line
        if statement.lstrip().startswith("["):
            header = statement
        for path in _paths(content):
            lines.setdefault(path, begin)
        statement, begin = "", number + 1
    return lines


def _paths(content: dict[str, Any]) -> list[tuple[str, ...]]:
    tables = {name: table for name, table in content.items() if isinstance(table, dict)}
    fields = [(name, field) for name, table in tables.items() for field in table]
    return [*((name,) for name in content), *fields]
