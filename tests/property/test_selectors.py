"""Property tests of label selectors: their text form, and the labels that they match."""

import string

from hypothesis import given
from hypothesis import strategies as st

from natsctl import Selector
from natsctl.errors import UsageError
from natsctl.model.selectors import Requirement

ENDS = string.ascii_letters + string.digits
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
KEYS = st.one_of(
    st.sampled_from(["a", "b", "in", "notin", "app.example.com/name"]),
    NAMES,
    st.builds(lambda domain, name: f"{domain}/{name}", st.sampled_from(["d", "x.y-z"]), NAMES),
)
VALUES = st.one_of(st.sampled_from(["", "x", "y", "in", "notin"]), NAMES)
SETS = st.frozensets(VALUES, min_size=1, max_size=4)
REQUIREMENTS: st.SearchStrategy[Requirement] = st.one_of(
    st.builds(Requirement, KEYS, st.sampled_from(["in", "notin"]), SETS),
    st.builds(Requirement, KEYS, st.sampled_from(["exists", "absent"])),
)
SELECTORS = st.builds(Selector, st.lists(REQUIREMENTS, max_size=5).map(tuple))
LABELS = st.dictionaries(KEYS, VALUES, max_size=5)


@given(SELECTORS)
def test_a_selector_is_parsed_from_its_text(selector: Selector) -> None:
    assert Selector.parse(str(selector)) == selector
    assert str(Selector.parse(str(selector))) == str(selector)


@given(SELECTORS, SELECTORS)
def test_selectors_are_equal_if_and_only_if_their_texts_are(
    selector: Selector, other_selector: Selector
) -> None:
    assert (selector == other_selector) == (str(selector) == str(other_selector))


@given(SELECTORS, st.data())
def test_spaces_between_words_are_ignored(selector: Selector, data: st.DataObject) -> None:
    spaced = "".join(
        data.draw(st.sampled_from(["", " ", "\t "])) + sign + data.draw(st.sampled_from(["", " "]))
        if sign in ",()"
        else sign
        for sign in str(selector)
    )
    assert Selector.parse(spaced) == selector


@given(st.lists(REQUIREMENTS, max_size=4), LABELS)
def test_a_selector_matches_labels_that_fulfil_every_requirement(
    requirements: list[Requirement], labels: dict[str, str]
) -> None:
    def fulfilled(requirement: Requirement) -> bool:
        key, values = requirement.key, requirement.values
        match requirement.operator:
            case "in":
                return key in labels and labels[key] in values
            case "notin":
                return key not in labels or labels[key] not in values
            case "exists":
                return key in labels
            case "absent":
                return key not in labels

    assert Selector(tuple(requirements)).matches(labels) == all(map(fulfilled, requirements))


@given(LABELS, LABELS)
def test_a_selector_of_labels_matches_objects_that_have_them_all(
    wanted: dict[str, str], labels: dict[str, str]
) -> None:
    assert Selector.of(wanted).matches(labels) == (wanted.items() <= labels.items())
    assert Selector.of(wanted).matches({**labels, **wanted})


@given(st.text(alphabet="ab=!(),<> in\t/-", max_size=12))
def test_any_text_is_a_selector_or_an_error_with_a_caret(text: str) -> None:
    try:
        selector = Selector.parse(text)
    except UsageError as error:
        _, shown, caret = str(error).split("\n")
        assert shown == f"  {text}".replace("\t", " ")
        assert caret.strip() == "^"
        assert len(caret) <= len(shown) + 1
    else:
        assert Selector.parse(str(selector)) == selector
