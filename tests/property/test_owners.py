"""Owner labels and annotations of a secondary."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsctl import KUMORI, Metadata, OwnerNames
from natsctl.controller.owners import Owner, label_value

# ---- property tests of owner labels: they are legal, and the owner is read back

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
    assert names.owner(owned(owner, names)) == owner


@given(NAMES, OWNERS)
def test_an_owner_read_from_labels_alone_is_correct_or_none(
    names: OwnerNames, owner: Owner
) -> None:
    assert names.owner(Metadata(labels=names.labels(owner))) in {owner, None}


# ---- owner labels and annotations of a secondary, and the index by owner

OWNER_NAMES = OwnerNames()
SHOP = Owner("App.apps", "shop")


def owned(owner: Owner, names: OwnerNames) -> Metadata:
    return Metadata(labels=names.labels(owner), annotations=names.annotations(owner))


@pytest.mark.parametrize(
    ("names", "kind", "key"),
    [
        (OWNER_NAMES, "natsctl.io/owner-kind", "natsctl.io/owner-key"),
        (OwnerNames.of_domain("example.org"), "example.org/owner-kind", "example.org/owner-key"),
        (KUMORI, "kumori/ownerkind", "kumori/ownerkey"),
    ],
)
def test_labels_and_annotations_have_the_names_of_the_domain(
    names: OwnerNames, kind: str, key: str
) -> None:
    expected = {kind: "App.apps", key: "shop"}
    assert owned(SHOP, names) == Metadata(labels=expected, annotations=expected)


@pytest.mark.parametrize("text", ["shop", "a", "team-a.shop_1", "x" * 63, "0", "h", "hi.a"])
def test_legal_text_is_its_own_label_value(text: str) -> None:
    assert label_value(text) == text


def test_the_hash_is_stable_across_releases() -> None:
    hashed = "h.mx4drix37435qgqjeqxuijupcfxdhhkw4a66yrdyluf23wslcnaq"
    assert label_value("team/a") == hashed


KIND, KEY = ({name: OWNER_NAMES.labels(SHOP)[name]} for name in (OWNER_NAMES.kind, OWNER_NAMES.key))
HASHED = Owner("App.apps", "team/a")


@pytest.mark.parametrize(
    ("labels", "annotations", "owner"),
    [
        ({}, {}, None),
        ({}, {**KIND, **KEY}, None),
        (KEY, {**KIND, **KEY}, None),
        (KIND, {**KIND, **KEY}, SHOP),
        (KIND, {}, None),
        ({**KIND, **KEY}, {}, SHOP),
        (OWNER_NAMES.labels(HASHED), {}, None),
        ({**KIND, **KEY}, {OWNER_NAMES.key: "bar"}, None),
        (KUMORI.labels(SHOP), KUMORI.annotations(SHOP), None),
    ],
)
def test_the_owner_is_named_by_the_kind_label_and_a_key_that_nothing_contradicts(
    labels: dict[str, str], annotations: dict[str, str], owner: Owner | None
) -> None:
    assert OWNER_NAMES.owner(Metadata(labels=labels, annotations=annotations)) == owner
