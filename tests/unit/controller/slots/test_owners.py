"""Owner labels and annotations of a secondary, and the index by owner."""

import pytest

from natsctl import KUMORI, Metadata, OwnerNames
from natsctl.controller.owners import Owner, label_value

NAMES = OwnerNames()
SHOP = Owner("App.apps", "shop")


def owned(owner: Owner, names: OwnerNames = NAMES) -> Metadata:
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
        assert NAMES.owner(Metadata()) is None

    def test_an_object_with_annotations_only_has_no_owner(self) -> None:
        assert NAMES.owner(Metadata(annotations=NAMES.annotations(SHOP))) is None

    def test_an_object_without_the_kind_label_has_no_owner(self) -> None:
        labels = {NAMES.key: NAMES.labels(SHOP)[NAMES.key]}
        assert NAMES.owner(Metadata(labels=labels, annotations=NAMES.annotations(SHOP))) is None

    def test_without_the_key_label_the_annotation_names_the_owner(self) -> None:
        labels = {NAMES.kind: NAMES.labels(SHOP)[NAMES.kind]}
        metadata = Metadata(labels=labels, annotations=NAMES.annotations(SHOP))
        assert NAMES.owner(metadata) == SHOP
        assert NAMES.owner(Metadata(labels=labels)) is None

    def test_exact_labels_alone_name_the_owner(self) -> None:
        assert NAMES.owner(Metadata(labels=NAMES.labels(SHOP))) == SHOP

    def test_a_hashed_label_alone_names_no_owner(self) -> None:
        labels = NAMES.labels(Owner("App.apps", "team/a"))
        assert NAMES.owner(Metadata(labels=labels)) is None

    def test_an_object_whose_label_and_annotation_disagree_names_no_owner(self) -> None:
        metadata = Metadata(labels=NAMES.labels(SHOP), annotations={NAMES.key: "bar"})
        assert NAMES.owner(metadata) is None

    def test_labels_of_another_domain_are_ignored(self) -> None:
        assert NAMES.owner(owned(SHOP, KUMORI)) is None
