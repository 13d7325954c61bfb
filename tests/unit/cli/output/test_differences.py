"""Changes are written with a sign, in the colour of the sign on a terminal."""

import io
import sys

import pytest

from natsctl.cli.output import write_signed, write_unified

GREEN, RED, YELLOW, END = "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_of(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output a terminal that shows colours."""
    terminal = Terminal()
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    return terminal


@pytest.mark.parametrize(("sign", "colour"), [("+", GREEN), ("-", RED), ("~", YELLOW), ("!", RED)])
def test_the_line_of_an_action_has_the_colour_of_its_sign(
    monkeypatch: pytest.MonkeyPatch, sign: str, colour: str
) -> None:
    terminal = terminal_of(monkeypatch)
    write_signed(f"{sign} Route.routes/shop", indent="  ")
    assert terminal.getvalue() == f"{colour}  {sign} Route.routes/shop{END}\n"


def test_control_characters_of_an_action_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = terminal_of(monkeypatch)
    write_signed("! a\x1b[2Jb")
    assert terminal.getvalue() == f"{RED}! a\\x1b[2Jb{END}\n"


def test_the_lines_of_a_unified_diff_have_the_colours_of_their_signs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = terminal_of(monkeypatch)
    write_unified("Route.routes/shop", {"text": "hi"}, {"text": "ho"})
    header, _, _, removed, added = terminal.getvalue().splitlines()
    assert header == "--- a/Route.routes/shop"
    assert removed == f"{RED}-text: hi{END}"
    assert added == f"{GREEN}+text: ho{END}"


def test_a_pipe_gets_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
    write_signed("+ Route.routes/shop")
    assert capsys.readouterr().out == "+ Route.routes/shop\n"
