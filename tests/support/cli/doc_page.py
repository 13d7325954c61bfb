"""Reads the steps of a documentation page: files to save, and commands with their output.

A block of ```console has commands, each after `$ `, with their output below. A block with a file
name after its language, such as ```toml natsctl.toml, is saved under that name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(?:(console)|[a-z]+ (\S+))\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_READ_ONLY = re.compile(
    r"natsctl (get|history|status|explain|describe|events|doctor|plan|gc plan|replay|wait|health)\b"
    r"|natsctl repair external list\b|kubectl get\b|curl\b|cat\b"
)
_DAEMON = re.compile(
    r"(cd \S+ && |(\w+=\S+ )+)?(natsctl (run|console|(get|status|events) -w)|nats-server)\b"
)
_PORT = re.compile(r"\b808\d\b")
_INTERRUPT = "^C"


class SaveFile(NamedTuple):
    """A file to save, with its text."""

    line: int
    name: str
    text: str


class RunCommand(NamedTuple):
    """A command, and the output that the page shows.

    In the output, … stands for any text in a line, and a line … for any lines. An output that
    begins with ^C interrupts the same command, which an earlier step started.
    """

    line: int
    command: str
    output: str

    @property
    def is_daemon(self) -> bool:
        """True if the command runs in another terminal while the next steps run."""
        return _DAEMON.match(self.command) is not None

    @property
    def is_interrupt(self) -> bool:
        """True if the step interrupts a command that an earlier step started."""
        return self.output.startswith(_INTERRUPT)

    @property
    def is_read_only(self) -> bool:
        """True if the command changes no object, so it may run until its output is as shown."""
        return _READ_ONLY.match(self.command) is not None

    def matches(self, output: str) -> bool:
        """Return whether *output* is the whole output that the page shows."""
        text = output.strip()
        return self._pattern().fullmatch(f"{text}\n" if text else "") is not None

    def is_part_of(self, output: str) -> bool:
        """Return whether *output* has all lines of the page, in the same order."""
        expected = self.output.removeprefix(_INTERRUPT).strip()
        lines = (_line(line) for line in expected.splitlines())
        return re.search("(.|\n)*".join(lines), output) is not None

    def _pattern(self) -> re.Pattern[str]:
        lines = self.output.strip().splitlines()
        parts = ["(.*\n)*" if line == "…" else f"{_line(line.rstrip())} *\n" for line in lines]
        return re.compile("".join(parts))


Step = SaveFile | RunCommand


def _line(expected: str) -> str:
    return ".*".join(re.escape(part) for part in expected.split("…"))


def steps(page: Path) -> list[Step]:
    """Return the steps of a page, in order."""
    return list(_steps(page.read_text()))


def ports(page: Path) -> list[str]:
    """Return the ports from 8080 to 8089 that a page uses."""
    return sorted(set(_PORT.findall(page.read_text())))


def _steps(text: str) -> Iterator[Step]:
    for block in _BLOCK.finditer(text):
        console, name, body = block.groups()
        first_line = text[: block.start()].count("\n") + 2
        if console:
            yield from _commands(body, first_line)
        else:
            yield SaveFile(first_line, name, body)


def _commands(body: str, first_line: int) -> Iterator[RunCommand]:
    command, output, line = "", list[str](), first_line
    for number, text in enumerate([*body.splitlines(), "$ "], start=first_line):
        if not text.startswith("$ "):
            output.append(text)
            continue
        if command:
            yield RunCommand(line, command, "\n".join(output))
        command, output, line = text[2:], [], number
