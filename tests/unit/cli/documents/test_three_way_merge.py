"""What two have made of a document: all of both, unless it is the same field."""

from hypothesis import given
from hypothesis import strategies as st

from natsctl.cli.documents.three_way_merge import MISSING, Clash, merged
from natsctl.model.documents import render

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
    both = merged(base, ours, theirs)
    assert both.clashes == ()
    assert both.document == {
        "spec": {"a": 2, "b": 3, "d": 1},
        "metadata": {"labels": {"x": "1", "y": "2"}},
    }


def test_a_field_that_both_changed_is_ours_and_theirs_is_told() -> None:
    both = merged({"a": 1, "b": [1]}, {"a": 2, "b": [2]}, {"a": "x", "b": [1, 2]})
    assert both.document == {"a": 2, "b": [2]}
    assert [str(clash) for clash in both.clashes] == ['a is "x"', "b is [1,2]"]


def test_true_is_another_value_than_one() -> None:
    assert render(merged({"a": 1}, {"a": True}, {"a": 1}).document) == b'{"a":true}'
    assert render(merged({"a": [1]}, {"a": [1]}, {"a": [True]}).document) == b'{"a":[true]}'
    assert merged({"a": 0}, {"a": 1}, {"a": True}).clashes == (Clash("a", theirs=True),)


def test_a_field_that_they_removed_and_we_changed_is_a_clash() -> None:
    both = merged({"a": {"b": 1}}, {"a": {"b": 2}}, {"a": {}})
    assert both.document == {"a": {"b": 2}}
    assert both.clashes == (Clash("a.b", MISSING),)
    assert str(both.clashes[0]) == "a.b is removed"


def test_a_field_that_we_removed_and_they_changed_is_a_clash_and_stays_away() -> None:
    both = merged({"a": {"b": 1}}, {"a": {}}, {"a": {"b": 2}})
    assert both.document == {"a": {}}
    assert both.clashes == (Clash("a.b", 2),)


def test_a_null_is_a_value() -> None:
    assert merged({"a": 1}, {"a": None}, {"a": 1, "b": None}).document == {"a": None, "b": None}


@given(DOCUMENTS, DOCUMENTS)
def test_who_changed_nothing_takes_what_the_other_has(
    base: dict[str, object], changed: dict[str, object]
) -> None:
    for both in (merged(base, base, changed), merged(base, changed, base)):
        assert (both.document, both.clashes) == (changed, ())


@given(DOCUMENTS, DOCUMENTS)
def test_who_changed_the_same_does_not_clash(
    base: dict[str, object], changed: dict[str, object]
) -> None:
    both = merged(base, changed, changed)
    assert (both.document, both.clashes) == (changed, ())


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_the_two_clash_whichever_is_ours(
    base: dict[str, object], one: dict[str, object], other: dict[str, object]
) -> None:
    first, second = merged(base, one, other), merged(base, other, one)
    assert {clash.path for clash in first.clashes} == {clash.path for clash in second.clashes}
    if not first.clashes:
        assert first.document == second.document
