"""Property tests of owner labels: they are legal, and the owner is read back."""

import re

from hypothesis import given
from hypothesis import strategies as st

from natsctl import KUMORI, Metadata, OwnerNames
from natsctl.controller.owners import Owner, label_value

LEGAL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
TEXTS = st.text(max_size=300) | st.from_regex(r"[-/_=.a-zA-Z0-9]{0,80}", fullmatch=True)
OWNERS = st.builds(Owner, TEXTS, TEXTS)
NAMES = st.sampled_from([OwnerNames(), KUMORI, OwnerNames.of_domain("example.org")])


@given(TEXTS)
def test_a_label_value_is_always_legal(text: str) -> None:
    assert LEGAL.fullmatch(label_value(text))


@given(TEXTS, TEXTS)
def test_label_values_are_equal_if_and_only_if_their_texts_are(text: str, other_text: str) -> None:
    assert (label_value(text) == label_value(other_text)) == (text == other_text)


@given(TEXTS)
def test_a_label_value_is_unchanged_only_if_its_text_is(text: str) -> None:
    value = label_value(text)
    assert (value == text) == (label_value(value) == value)


@given(NAMES, OWNERS)
def test_an_owner_is_read_as_it_was_written(names: OwnerNames, owner: Owner) -> None:
    metadata = Metadata(labels=names.labels(owner), annotations=names.annotations(owner))
    assert names.owner(metadata) == owner


@given(NAMES, OWNERS)
def test_an_owner_read_from_labels_alone_is_correct_or_none(
    names: OwnerNames, owner: Owner
) -> None:
    assert names.owner(Metadata(labels=names.labels(owner))) in {owner, None}
