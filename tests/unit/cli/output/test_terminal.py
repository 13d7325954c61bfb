"""Colours, progress bars and confirmations are for terminals only."""

import io
import sys

import pytest

from natsctl.cli.terminal import coloured, confirm, progress_bar
from natsctl.errors import UsageError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_needs_a_terminal_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured("x", "red", Terminal()) == "\x1b[31mx\x1b[0m"
    assert coloured("x", "red", io.StringIO()) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert coloured("x", "red", Terminal()) == "x"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_progress_is_shown_on_a_terminal_and_then_cleared(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("syncing", 2) as progress:
        progress.step()
        progress.step()
    assert progress.done == 2
    if stream.isatty():
        assert "syncing" in stream.getvalue()
        assert "2/2" in stream.getvalue()
        assert stream.getvalue().endswith("\x1b[2K")
    else:
        assert stream.getvalue() == ""


def test_confirm_without_a_terminal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match=r"Really\? There is no terminal to ask on: give --yes"):
        confirm("Really?", yes=False)
    confirm("Really?", yes=True)
