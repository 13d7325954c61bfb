"""Control and invisible characters are escaped without changing a document's meaning."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from natsctl.cli.output import json_text, yaml_text
from natsctl.telemetry.escaping import escaped, escaped_lines

HOSTILE = {
    "ANSI": "\x1b[2J",
    "OSC": "\x1b]0;title\x07",
    "C1": "\x9b31m",
    "delete": "\x7f",
    "carriage return": "\r",
    "bidi override": "\u202e",
    "bidi isolate": "\u2066",
    "arabic letter mark": "\u061c",
    "zero-width space": "\u200b",
    "zero-width joiner": "\u200d",
    "byte order mark": "\ufeff",
    "line separator": "\u2028",
    "soft hyphen": "\xad",
    "variation selector": "\ufe0f",
    "tag": "\U000e0041",
    "hangul filler": "\u3164",
}
TEXTS = st.text() | st.sampled_from(list(HOSTILE.values()))


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_character_that_controls_or_hides_becomes_a_visible_escape(text: str) -> None:
    shown = escaped(f"a{text}b")
    assert shown.startswith("a\\")
    assert shown.endswith("b")
    assert shown.isascii()


@pytest.mark.parametrize("text", ["plain", "größer", "日本語", "a b", "…→└─", "🙂", "\xa0", "٣"])
def test_visible_text_is_unchanged(text: str) -> None:
    assert escaped(text) == text


def test_a_line_has_no_line_break_and_no_tab() -> None:
    assert escaped("a\nb\tc") == r"a\nb\tc"


def test_further_lines_of_a_text_are_indented() -> None:
    assert escaped_lines("one\n\ttwo\x1b\r\nthree") == "one\n  \ttwo\\x1b\\x0d\n  three"


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS)))
def test_escaped_json_keeps_its_meaning(document: dict[str, object]) -> None:
    text = json_text(document)
    assert json.loads(text) == document
    assert escaped(text, keep="\n") == text


@given(st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS) | st.integers() | st.none()))
def test_escaped_yaml_keeps_its_meaning(document: dict[str, object]) -> None:
    text = yaml_text(document)
    assert yaml.safe_load(text) == document
    assert escaped(text, keep="\n") == text
