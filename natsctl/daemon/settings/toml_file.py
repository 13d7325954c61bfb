"""What a file of settings says, and on which line."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from natsctl.errors import UsageError

SIZE_MAX_BYTES = 64 * 1024
STATEMENT_MAX = 100  # lines of one value; after a longer one, lines are not told

_LINE = re.compile(r" *\(at line (\d+), column \d+\)| *\(at end of document\)")

Lines = Mapping[tuple[str, ...], int]
"""Where each thing begins: a section by its name, what is in it by both names."""


def read_toml(file: Path) -> tuple[dict[str, Any], Lines]:
    """Return what the file says, and the lines on which it says it.

    Raises `UsageError` where it cannot be read, is larger than 64 KiB, or is not valid TOML; it
    quotes nothing of what is in it.
    """
    try:
        with file.open("rb") as opened:
            raw = opened.read(SIZE_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the settings in {file} cannot be read: {error.strerror}") from error
    if len(raw) > SIZE_MAX_BYTES:
        raise UsageError(f"the settings in {file} are longer than {SIZE_MAX_BYTES} bytes")
    try:
        text = raw.decode()
        return tomllib.loads(text), lines_of(text)
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not valid TOML: it is not in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        at = f"{file}:{found[1]}" if found and found[1] else f"{file}"
        wrong, good = _LINE.sub("", str(error)), 'name = "value"'
        raise UsageError(f"{at} is not valid TOML: {wrong}; write lines such as {good}") from None
    except (ValueError, RecursionError):
        wrong = "too long a number, or too deep a list"
        raise UsageError(f"{file} has a value that cannot be read: {wrong}") from None


def lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return where each section, and each thing in one, begins in a text that is good TOML.

    What follows a value of more than `STATEMENT_MAX` lines is left out.
    """
    found: dict[tuple[str, ...], int] = {}
    header, statement, begin = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        if number - begin >= STATEMENT_MAX:
            break
        statement += f"{line}\n"
        try:
            said = tomllib.loads(header + statement)
        except tomllib.TOMLDecodeError:
            continue  # a value goes on in the next line
        if statement.lstrip().startswith("["):
            header = statement
        for path in _paths(said):
            found.setdefault(path, begin)
        statement, begin = "", number + 1
    return found


def _paths(said: dict[str, Any]) -> list[tuple[str, ...]]:
    within = [(name, inner) for name, at in said.items() if isinstance(at, dict) for inner in at]
    return [*((name,) for name in said), *within]
