"""Parts of kinds: keys, namespaces, single objects and selectors."""

import pytest

from natsctl import InvalidKeyError, KubeKind, Manifest, Selector, kube, kv
from natsctl.testing import MemoryStores

SECRETS = kube("v1", "Secret")
LIMITS = kv(bytes, bucket="limits", history=7)


def test_a_part_of_a_bucket_has_the_same_options_and_other_keys() -> None:
    part = LIMITS.part("eu.>")
    assert (part.bucket, part.history, part.keys) == ("limits", 7, "eu.>")
    assert (part.holds("eu.a"), part.holds("us.a"), LIMITS.holds("us.a")) == (True, False, True)


def test_a_part_of_a_kind_may_be_one_object() -> None:
    part = SECRETS.only("x/a")
    assert (part.namespace, part.object_name) == ("x", "a")
    assert (part.holds("x/a"), part.holds("x/b"), part.holds("y/a")) == (True, False, False)
    assert SECRETS.object_name is None


def test_a_part_of_a_cluster_scoped_kind_may_be_one_object() -> None:
    part = kube("v1", "Node").only("n1")
    assert (part.namespace, part.object_name) == (None, "n1")
    assert (part.holds("n1"), part.holds("n2")) == (True, False)


def test_a_kind_may_be_declared_with_an_object_name() -> None:
    kind = kube("v1", "Secret", name="a")
    assert (kind.holds("x/a"), kind.holds("y/a"), kind.holds("x/b")) == (True, True, False)


def test_a_key_outside_a_part_is_refused() -> None:
    with pytest.raises(InvalidKeyError):
        kube("v1", "Secret", namespace="x").only("y/a")
    with pytest.raises(InvalidKeyError):
        kube("v1", "Secret", name="b").only("x/a")


@pytest.mark.parametrize(
    ("kind", "metadata", "key"),
    [
        (kube("v1", "Secret"), {"name": "a", "namespace": "x"}, "x/a"),
        (kube("v1", "Secret", namespace="x"), {"name": "a"}, "x/a"),
        (kube("v1", "Node"), {"name": "n1"}, "n1"),
    ],
)
def test_the_key_of_a_manifest_has_the_namespace_of_the_manifest_or_of_its_kind(
    kind: KubeKind[Manifest], metadata: dict[str, str], key: str
) -> None:
    assert kind.key_of({"metadata": metadata}) == key


def test_selectors_of_nested_parts_are_combined() -> None:
    part = kube("v1", "Secret", labels="a=b").selected(Selector.parse("c=d"))
    assert str(part.selector) == "a=b,c=d"
    assert str(part.labelled({"e": "f"}).selector) == "a=b,c=d,e=f"


async def test_a_store_of_one_object_shows_only_that_object() -> None:
    cluster = MemoryStores().kube
    await cluster.store(SECRETS).create("x/a", b"{}")
    await cluster.store(SECRETS).create("x/b", b"{}")
    await cluster.store(SECRETS).create("y/a", b"{}")
    assert cluster.store(SECRETS.only("x/a")).keys() == ["x/a"]
    assert cluster.store(kube("v1", "Secret", name="a")).keys() == ["x/a", "y/a"]
