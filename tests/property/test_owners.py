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
    metadata = Metadata(labels=names.labels(owner), annotations=names.annotations(owner))
    assert names.owner(metadata) == owner


@given(NAMES, OWNERS)
def test_an_owner_read_from_labels_alone_is_correct_or_none(
    names: OwnerNames, owner: Owner
) -> None:
    assert names.owner(Metadata(labels=names.labels(owner))) in {owner, None}


# ---- owner labels and annotations of a secondary, and the index by owner

OWNER_NAMES = OwnerNames()
SHOP = Owner("App.apps", "shop")


def owned(owner: Owner, names: OwnerNames = OWNER_NAMES) -> Metadata:
    return Metadata(labels=names.labels(owner), annotations=names.annotations(owner))


class TestNames:
    def test_labels_and_annotations_have_the_same_names(self) -> None:
        assert owned(SHOP) == Metadata(
            labels={"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "shop"},
            annotations={"natsctl.io/owner-kind": "App.apps", "natsctl.io/owner-key": "shop"},
        )

    def test_the_domain_of_the_names_is_an_option(self) -> None:
        assert OwnerNames.of_domain("example.org").labels(SHOP) == {
            "example.org/owner-kind": "App.apps",
            "example.org/owner-key": "shop",
        }

    def test_the_names_can_be_those_of_kumori(self) -> None:
        assert KUMORI.labels(SHOP) == {"kumori/ownerkind": "App.apps", "kumori/ownerkey": "shop"}


class TestLabelValues:
    @pytest.mark.parametrize("text", ["shop", "a", "team-a.shop_1", "x" * 63, "0", "h", "hi.a"])
    def test_legal_text_is_its_own_label_value(self, text: str) -> None:
        assert label_value(text) == text

    def test_the_hash_is_stable_across_releases(self) -> None:
        hashed = "h.mx4drix37435qgqjeqxuijupcfxdhhkw4a66yrdyluf23wslcnaq"
        assert label_value("team/a") == hashed


class TestOwner:
    def test_an_object_without_labels_has_no_owner(self) -> None:
        assert OWNER_NAMES.owner(Metadata()) is None

    def test_an_object_with_annotations_only_has_no_owner(self) -> None:
        assert OWNER_NAMES.owner(Metadata(annotations=OWNER_NAMES.annotations(SHOP))) is None

    def test_an_object_without_the_kind_label_has_no_owner(self) -> None:
        labels = {OWNER_NAMES.key: OWNER_NAMES.labels(SHOP)[OWNER_NAMES.key]}
        metadata = Metadata(labels=labels, annotations=OWNER_NAMES.annotations(SHOP))
        assert OWNER_NAMES.owner(metadata) is None

    def test_without_the_key_label_the_annotation_names_the_owner(self) -> None:
        labels = {OWNER_NAMES.kind: OWNER_NAMES.labels(SHOP)[OWNER_NAMES.kind]}
        metadata = Metadata(labels=labels, annotations=OWNER_NAMES.annotations(SHOP))
        assert OWNER_NAMES.owner(metadata) == SHOP
        assert OWNER_NAMES.owner(Metadata(labels=labels)) is None

    def test_exact_labels_alone_name_the_owner(self) -> None:
        assert OWNER_NAMES.owner(Metadata(labels=OWNER_NAMES.labels(SHOP))) == SHOP

    def test_a_hashed_label_alone_names_no_owner(self) -> None:
        labels = OWNER_NAMES.labels(Owner("App.apps", "team/a"))
        assert OWNER_NAMES.owner(Metadata(labels=labels)) is None

    def test_an_object_whose_label_and_annotation_disagree_names_no_owner(self) -> None:
        metadata = Metadata(labels=OWNER_NAMES.labels(SHOP), annotations={OWNER_NAMES.key: "bar"})
        assert OWNER_NAMES.owner(metadata) is None

    def test_labels_of_another_domain_are_ignored(self) -> None:
        assert OWNER_NAMES.owner(owned(SHOP, KUMORI)) is None
