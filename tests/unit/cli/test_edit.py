"""Drafts of edited objects, and merges with what others wrote."""

import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from natsctl.cli.edit import (
    Clash,
    Draft,
    editor_text,
    merged,
    visible,
    with_comments,
    without_comments,
)
from natsctl.model.documents import render
from natsctl.model.store import Stored

# ---- the draft that a person edits reports errors and clashes only in comments

STORED = Stored("shop", 3, b'{"spec": {"text": "\\u001b[2J\xe2\x80\xae"}}')


def test_a_field_name_cannot_leave_its_comment() -> None:
    clash = Clash("spec.a\nspec: {text: forged}\n", theirs="\x1b[2J")
    text = editor_text("shops", Draft(STORED, visible(STORED)), str(clash))
    assert yaml.safe_load(text) == {"spec": {"text": "\x1b[2J\u202e"}}
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_an_error_cannot_leave_its_comment() -> None:
    text = with_comments(["wrong: a\nspec: forged", "\x1b]0;x\x07"], "spec: {}")
    assert without_comments(text) == "spec: {}"
    assert text == "# wrong: a\\nspec: forged\n# \\x1b]0;x\\x07\nspec: {}\n"


# ---- a three-way merge keeps the changes of both sides and reports clashing fields

VALUES = st.recursive(
    st.integers(0, 3) | st.lists(st.integers(0, 1), max_size=2) | st.none(),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def test_changes_of_different_fields_are_all_kept() -> None:
    base = {"spec": {"a": 1, "b": 1, "c": 1}, "metadata": {"labels": {"x": "1"}}}
    ours = {"spec": {"a": 2, "b": 1, "c": 1, "d": 1}, "metadata": {"labels": {"x": "1"}}}
    theirs = {"spec": {"a": 1, "b": 3}, "metadata": {"labels": {"x": "1", "y": "2"}}}
    result = merged(base, ours, theirs)
    assert result[1] == []
    assert result[0] == {
        "spec": {"a": 2, "b": 3, "d": 1},
        "metadata": {"labels": {"x": "1", "y": "2"}},
    }


def test_a_field_that_both_changed_keeps_our_value_and_reports_theirs() -> None:
    result = merged({"a": 1, "b": [1]}, {"a": 2, "b": [2]}, {"a": "x", "b": [1, 2]})
    assert result[0] == {"a": 2, "b": [2]}
    assert [str(clash) for clash in result[1]] == ['a is "x"', "b is [1,2]"]


def test_true_and_one_are_different_values() -> None:
    assert render(merged({"a": 1}, {"a": True}, {"a": 1})[0]) == b'{"a":true}'
    assert render(merged({"a": [1]}, {"a": [1]}, {"a": [True]})[0]) == b'{"a":[true]}'
    assert merged({"a": 0}, {"a": 1}, {"a": True})[1] == [Clash("a", theirs=True)]


def test_a_field_that_they_removed_and_we_changed_is_a_clash() -> None:
    result = merged({"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {}})
    assert result[0] == {"a": {"b": 2}}
    assert result[1] == [Clash("a.b", UNSET)]
    assert str(result[1][0]) == "a.b is removed"


def test_a_field_that_we_removed_and_they_changed_is_a_clash_and_stays_removed() -> None:
    result = merged({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 2}})
    assert result[0] == {"a": {}}
    assert result[1] == [Clash("a.b", 2)]


def test_a_null_is_a_value() -> None:
    assert merged({"a": 1}, {"a": None}, {"a": 1, "b": None})[0] == {"a": None, "b": None}


@given(DOCUMENTS, DOCUMENTS)
def test_an_unchanged_side_takes_the_other_side(
    base: dict[str, object], changed: dict[str, object]
) -> None:
    for result in (merged(base, base, changed), merged(base, changed, base)):
        assert (result[0], result[1]) == (changed, [])


@given(DOCUMENTS, DOCUMENTS)
def test_equal_changes_do_not_clash(base: dict[str, object], changed: dict[str, object]) -> None:
    result = merged(base, changed, changed)
    assert (result[0], result[1]) == (changed, [])


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_clashes_do_not_depend_on_the_order_of_the_sides(
    base: dict[str, object], ours: dict[str, object], theirs: dict[str, object]
) -> None:
    first, second = merged(base, ours, theirs), merged(base, theirs, ours)
    assert {clash.path for clash in first[1]} == {clash.path for clash in second[1]}
    if not first[1]:
        assert first[0] == second[0]
