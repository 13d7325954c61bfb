"""The draft that a person edits reports errors and clashes only in comments."""

import yaml

from natsctl.cli.edit import Clash, Draft, editor_text, with_comments, without_comments
from natsctl.model.store import Stored

STORED = Stored("shop", 3, b'{"spec": {"text": "\\u001b[2J\xe2\x80\xae"}}')


def test_a_field_name_cannot_leave_its_comment() -> None:
    clash = Clash("spec.a\nspec: {text: forged}\n", theirs="\x1b[2J")
    text = editor_text("shops", Draft.of(STORED), str(clash))
    assert yaml.safe_load(text) == {"spec": {"text": "\x1b[2J\u202e"}}
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_an_error_cannot_leave_its_comment() -> None:
    text = with_comments(["wrong: a\nspec: forged", "\x1b]0;x\x07"], "spec: {}")
    assert without_comments(text) == "spec: {}"
    assert text == "# wrong: a\\nspec: forged\n# \\x1b]0;x\\x07\nspec: {}\n"
