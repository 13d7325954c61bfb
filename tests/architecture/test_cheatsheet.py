"""The commands of the cheat sheet exist, with the options that it shows."""

import re
import shlex
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from natsctl.cli.main import run

PAGE = (Path(__file__).parents[2] / "docs" / "cheatsheet.md").read_text()
LINES = sorted(set(re.findall(r"`(natsctl [^`]+)`", PAGE)))


@cache
def shown_help(*words: str) -> str:
    """Return what a command shows of itself."""
    with redirect_stdout(StringIO()) as shown:
        assert run([*words, "--help"]) == 0
    return shown.getvalue()


def test_the_cheat_sheet_has_commands() -> None:
    assert len(LINES) > 30


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_cheat_sheet_exists_with_its_options(line: str) -> None:
    _, name, *words = shlex.split(line.partition(" > ")[0])
    assert re.search(rf"^\W*{name} ", shown_help(), re.MULTILINE)
    below = [word for word in words[:1] if name == "gc"]
    used = {word.partition("=")[0] for word in words if word.startswith("-") and word[1:]}
    known = set(re.findall(r"(?<!\S)--?[a-z][a-z-]*", shown_help(name, *below)))
    assert used - known == set()
