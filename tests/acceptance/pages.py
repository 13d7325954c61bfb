"""The commands that a page of the documentation shows, and what it says that they answer."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_READING = re.compile(
    r"natsctl (get|list|history|status|explain|tree|doctor)\b|kubectl get\b|curl\b"
)
_LASTING = re.compile(r"natsctl (run|dev)\b")


class Shown(NamedTuple):
    """A command, and the output that is shown beneath it.

    In the output, … stands for anything in a line, and a line of it alone for any lines.
    """

    line: int
    command: str
    output: str

    @property
    def lasting(self) -> bool:
        """Whether it goes on while the following ones are typed, in a terminal of its own."""
        return _LASTING.match(self.command) is not None

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
        lines = (_line(line) for line in self.output.splitlines())
        return re.search("(.|\n)*".join(lines), output) is not None

    def _pattern(self) -> re.Pattern[str]:
        lines = self.output.strip().splitlines()
        parts = ["(.*\n)*" if line == "…" else f"{_line(line.rstrip())} *\n" for line in lines]
        return re.compile("".join(parts))


def _line(shown: str) -> str:
    return ".*".join(re.escape(part) for part in shown.split("…"))


def commands(page: Path) -> list[Shown]:
    """Return the commands of a page, in order: lines that begin with `$ ` in ```console blocks."""
    return list(_commands(page.read_text()))


def _commands(text: str) -> Iterator[Shown]:
    for block in _BLOCK.finditer(text):
        at = text[: block.start()].count("\n") + 2
        command, output, line = "", list[str](), at
        for number, shown in enumerate([*block[1].splitlines(), "$ "], start=at):
            if not shown.startswith("$ "):
                output.append(shown)
                continue
            if command:
                yield Shown(line, command, "\n".join(output))
            command, output, line = shown[2:], [], number
