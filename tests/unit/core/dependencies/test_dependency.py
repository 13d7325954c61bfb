from typing import Any

import pytest

from natsctl.core.dependencies.dependency import Dependency, one, those
from natsctl.errors import InvalidKeyError, UsageError
from natsctl.model.kinds import Kind, kv
from natsctl.model.manifests import kube
from natsctl.model.selectors import Selector
from natsctl.model.store import Change, Stored
from tests.support.stores.sample_objects import THINGS, Thing

SECRETS = kube("v1", "Secret")
GOLD, TIN = Selector.parse("tier=gold"), Selector.parse("tier=tin")
BYTES = kv(bytes, bucket="things")


def labelled(tier: str) -> Stored:
    return Stored("a", 1, b'{"metadata": {"labels": {"tier": "%s"}}}' % tier.encode())


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (one(THINGS, "a"), one(kv(Thing, bucket="things"), "a")),
        (those(THINGS, GOLD), those(THINGS, Selector.parse("tier in (gold)"))),
        (one(SECRETS, "x/a"), one(kube("v1", "Secret", namespace="x"), "x/a")),
        (those(SECRETS, GOLD), those(kube("v1", "Secret", labels="tier=gold"), Selector())),
    ],
    ids=str,
)
def test_the_same_however_it_is_said_is_equal(
    left: Dependency[Any], right: Dependency[Any]
) -> None:
    assert left == right
    assert len({left, right}) == 1


def test_all_that_differs_is_told_apart() -> None:
    different = [
        one(THINGS, "a"),
        one(THINGS, "b"),
        one(BYTES, "a"),
        one(kv(Thing, bucket="others"), "a"),
        those(THINGS, Selector()),
        those(THINGS, GOLD),
        those(THINGS, TIN),
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
    assert one(THINGS, "a") != "a"


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
def test_a_key_of_no_object_is_refused(kind: Kind[Any], key: str) -> None:
    with pytest.raises(InvalidKeyError):
        one(kind, key)


def test_labels_of_what_has_none_are_refused_but_of_bytes() -> None:
    with pytest.raises(UsageError):
        those(kv(dict, bucket="things"), GOLD)
    assert those(BYTES, GOLD).selects(labelled("gold"))


def test_a_kind_of_neither_system_is_refused() -> None:
    with pytest.raises(UsageError):
        one(Kind(bytes, "elsewhere"), "a")


def test_it_concerns_what_was_meant_before_or_is_now() -> None:
    on = those(BYTES, GOLD)
    gold, tin = labelled("gold"), labelled("tin")
    assert on.concerns(Change(BYTES, "a", None, gold))
    assert on.concerns(Change(BYTES, "a", gold, tin))
    assert on.concerns(Change(BYTES, "a", tin, gold))
    assert on.concerns(Change(BYTES, "a", gold, None))
    assert not on.concerns(Change(BYTES, "a", tin, None))
    assert not on.concerns(Change(BYTES, "a", None, tin))


def test_what_nobody_knows_may_have_been_meant() -> None:
    assert those(BYTES, GOLD).concerns(Change(BYTES, "a", None, None))


def test_what_has_no_readable_labels_is_never_meant() -> None:
    junk = Stored("a", 1, b"\xff")
    assert not those(BYTES, Selector.parse("tier!=gold")).selects(junk)
    assert those(BYTES, Selector()).selects(junk)
    assert not those(BYTES, Selector()).selects(None)


@pytest.mark.parametrize(
    ("on", "text"),
    [
        (one(THINGS, "a"), "Thing.things a"),
        (those(THINGS, Selector()), "all Thing.things"),
        (those(THINGS, GOLD), "Thing.things with tier=gold"),
        (those(SECRETS, GOLD), "Secret with tier=gold"),
    ],
)
def test_people_can_read_it(on: Dependency[Any], text: str) -> None:
    assert str(on) == text
    assert text in repr(on)
