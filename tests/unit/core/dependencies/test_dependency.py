"""Dependencies on one object or on selected objects: equality, validation and matching."""

from itertools import combinations
from typing import Any

import pytest

from natsctl import Kind, KubeKind, Selector, kube, kv
from natsctl.core.dependencies import Dependency, one, those
from natsctl.errors import InvalidKeyError, UsageError
from natsctl.model.store import Change, Stored
from tests.support.stores.sample_objects import THINGS, Thing

SECRETS = kube("v1", "Secret")
GOLD, SILVER = Selector.parse("tier=gold"), Selector.parse("tier=tin")
BYTES = kv(bytes, bucket="things")


def labelled(tier: str) -> Stored:
    return Stored("a", 1, b'{"metadata": {"labels": {"tier": "%s"}}}' % tier.encode())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (one(THINGS, "a"), one(kv(Thing, bucket="things"), "a")),
        (those(THINGS, GOLD), those(THINGS, Selector.parse("tier in (gold)"))),
        (one(SECRETS, "x/a"), one(kube("v1", "Secret", namespace="x"), "x/a")),
        (those(SECRETS, GOLD), those(kube("v1", "Secret", labels="tier=gold"), Selector())),
    ],
    ids=str,
)
def test_equivalent_dependencies_are_equal(first: Dependency[Any], second: Dependency[Any]) -> None:
    assert first == second
    assert len({first, second}) == 1


def test_different_dependencies_are_not_equal() -> None:
    different = [
        one(THINGS, "a"),
        one(THINGS, "b"),
        one(BYTES, "a"),
        one(kv(Thing, bucket="others"), "a"),
        those(THINGS, Selector()),
        those(THINGS, GOLD),
        those(THINGS, SILVER),
        those(kv(Thing, bucket="things", keys="a"), Selector()),
        one(SECRETS, "x/a"),
        one(SECRETS, "y/a"),
        one(kube("v1", "ConfigMap"), "x/a"),
        one(kube("v2", "Secret"), "x/a"),
        one(kube("v1", "Secret", metadata_only=True), "x/a"),
        those(SECRETS, Selector()),
        those(SECRETS, GOLD),
        those(kube("v1", "Secret", namespace="x"), GOLD),
    ]
    assert len(set(different)) == len(different)
    assert all(first != second for first, second in combinations((*different, "a"), 2))


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (THINGS, ""),
        (THINGS, "a.*"),
        (THINGS, "a.>"),
        (THINGS, "a..b"),
        (THINGS, "a*"),
        (kv(Thing, bucket="things", keys="eu.>"), "us.a"),
        (kube("v1", "Secret", namespace="x"), "y/a"),
        (kube("v1", "Secret", name="b"), "x/a"),
        (SECRETS, "x/y/a"),
    ],
)
def test_an_invalid_object_key_is_refused(kind: Kind[Any], key: str) -> None:
    with pytest.raises(InvalidKeyError):
        one(kind, key)


def test_a_selector_on_a_kind_without_labels_is_refused_except_for_bytes() -> None:
    with pytest.raises(UsageError):
        those(kv(dict, bucket="things"), GOLD)
    assert those(BYTES, GOLD).selects(labelled("gold"))


def test_every_object_of_a_kind_without_labels_can_be_selected() -> None:
    unlabelled = kv(dict, bucket="things")
    assert those(unlabelled, Selector()).kind is unlabelled


def test_the_cluster_evaluates_the_selector_of_its_objects() -> None:
    dependency = those(SECRETS, GOLD)
    assert isinstance(dependency.kind, KubeKind)
    assert (dependency.kind.selector, dependency.selector) == (GOLD, Selector())


def test_a_kind_of_neither_system_is_refused() -> None:
    with pytest.raises(UsageError):
        one(Kind(bytes, "elsewhere"), "a")


def test_a_dependency_concerns_objects_that_matched_before_or_match_now() -> None:
    dependency = those(BYTES, GOLD)
    gold, silver = labelled("gold"), labelled("tin")
    assert dependency.concerns(Change(BYTES, "a", None, gold))
    assert dependency.concerns(Change(BYTES, "a", gold, silver))
    assert dependency.concerns(Change(BYTES, "a", silver, gold))
    assert dependency.concerns(Change(BYTES, "a", gold, None))
    assert not dependency.concerns(Change(BYTES, "a", silver, None))
    assert not dependency.concerns(Change(BYTES, "a", None, silver))


def test_a_dependency_concerns_an_object_with_unknown_states() -> None:
    assert those(BYTES, GOLD).concerns(Change(BYTES, "a", None, None))


def test_an_object_with_unreadable_labels_matches_only_the_empty_selector() -> None:
    unreadable = Stored("a", 1, b"\xff")
    assert not those(BYTES, Selector.parse("tier!=gold")).selects(unreadable)
    assert those(BYTES, Selector()).selects(unreadable)
    assert not those(BYTES, Selector()).selects(None)


@pytest.mark.parametrize(
    ("dependency", "text"),
    [
        (one(THINGS, "a"), "Thing.things a"),
        (those(THINGS, Selector()), "all Thing.things"),
        (those(THINGS, GOLD), "Thing.things with tier=gold"),
        (those(SECRETS, GOLD), "Secret with tier=gold"),
    ],
)
def test_the_text_names_kind_and_key_or_selector(dependency: Dependency[Any], text: str) -> None:
    assert str(dependency) == text
    assert text in repr(dependency)
