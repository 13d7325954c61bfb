"""What a page of the documentation tells its reader to do, and what it says that comes of it.

A block of ```console has commands, each behind `$ `, with their output beneath. A block that names
a file after its language, ```toml natsctl.toml, is to be saved under that name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(?:(console)|[a-z]+ (\S+))\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_READING = re.compile(
    r"natsctl (get|list|history|status|explain|tree|doctor)\b|kubectl get\b|curl\b|cat\b"
)
_LASTING = re.compile(r"(cd \S+ && )?natsctl (run|dev)\b")
_PORT = re.compile(r"\b808\d\b")
_PRESSED = "^C"


class Saved(NamedTuple):
    """A file, and what is in it."""

    line: int
    name: str
    text: str


class Shown(NamedTuple):
    """A command, and the output that is shown beneath it.

    In the output, … stands for anything in a line, and a line of it alone for any lines. One that
    begins with ^C is of a command that was typed before and is ended now.
    """

    line: int
    command: str
    output: str

    @property
    def lasting(self) -> bool:
        """Whether it goes on while the following ones are typed, in a terminal of its own."""
        return _LASTING.match(self.command) is not None

    @property
    def ending(self) -> bool:
        """Whether a person goes back to where it was typed first, and ends it."""
        return self.output.startswith(_PRESSED)

    @property
    def looking(self) -> bool:
        """Whether it only looks, and may be typed again until what it looks for is there."""
        return _READING.match(self.command) is not None

    def answered_by(self, output: str) -> bool:
        """Say whether that is what the page shows, all of it."""
        text = output.strip()
        return self._pattern().fullmatch(f"{text}\n" if text else "") is not None

    def begun_by(self, output: str) -> bool:
        """Say whether every line that is shown is there, in this order, whatever is between."""
        shown = self.output.removeprefix(_PRESSED).strip()
        lines = (_line(line) for line in shown.splitlines())
        return re.search("(.|\n)*".join(lines), output) is not None

    def _pattern(self) -> re.Pattern[str]:
        lines = self.output.strip().splitlines()
        parts = ["(.*\n)*" if line == "…" else f"{_line(line.rstrip())} *\n" for line in lines]
        return re.compile("".join(parts))


Step = Saved | Shown


def _line(shown: str) -> str:
    return ".*".join(re.escape(part) for part in shown.split("…"))


def steps(page: Path) -> list[Step]:
    """Return what a page tells to do, in order."""
    return list(_steps(page.read_text()))


def ports(page: Path) -> list[str]:
    """Return the ports that a page has its reader listen on: those from 8080 to 8089."""
    return sorted(set(_PORT.findall(page.read_text())))


def _steps(text: str) -> Iterator[Step]:
    for block in _BLOCK.finditer(text):
        console, name, body = block.groups()
        at = text[: block.start()].count("\n") + 2
        if console:
            yield from _commands(body, at)
        else:
            yield Saved(at, name, body)


def _commands(body: str, at: int) -> Iterator[Shown]:
    command, output, line = "", list[str](), at
    for number, shown in enumerate([*body.splitlines(), "$ "], start=at):
        if not shown.startswith("$ "):
            output.append(shown)
            continue
        if command:
            yield Shown(line, command, "\n".join(output))
        command, output, line = shown[2:], [], number
