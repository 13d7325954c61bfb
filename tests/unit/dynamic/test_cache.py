"""The object cache: its objects, lists and absences, its resources, and identifiers."""

import asyncio
from collections.abc import Callable

import pytest

from natsctl import Selector
from natsctl.dynamic import GroupVersionKind, ObjectCache, ObjectIdentifier, ScopedGVR, kv_kind
from natsctl.errors import InvalidInputError, NoCacheEntryError, NoVersionedResourceError
from natsctl.testing import MemoryCluster, MemoryResource, MemoryStores

SECRET = GroupVersionKind("", "v1", "Secret")
GOLD = Selector.parse("tier=gold")
ONE: dict[str, object] = {"metadata": {"name": "one"}, "data": {"a": "1"}}
TWO: dict[str, object] = {"metadata": {"name": "two"}}
IDENTIFIER = ObjectIdentifier(version="v1", kind="Secret", namespace="default", name="one")


@pytest.fixture
def cache() -> ObjectCache:
    cache = ObjectCache()
    cache.cache_object(SECRET, "default", "one", ONE)
    return cache


def test_an_object_or_its_absence_is_cached(cache: ObjectCache) -> None:
    assert cache.get(SECRET, "default", "one") == ONE
    assert cache.from_object_identifier(IDENTIFIER) == [ONE]
    cache.cache_object(SECRET, "default", "one", None)
    assert cache.get(SECRET, "default", "one") is None
    assert cache.from_object_identifier(IDENTIFIER) == []


@pytest.mark.parametrize(
    "lookup",
    [
        lambda cache: cache.get(SECRET, "default", "two"),
        lambda cache: cache.get(SECRET, "other", "one"),
        lambda cache: cache.get(GroupVersionKind("", "v2", "Secret"), "default", "one"),
        lambda cache: cache.list(SECRET, "default"),
        lambda cache: cache.list(SECRET, "default", GOLD),
        lambda cache: cache.from_object_identifier(ObjectIdentifier()),
    ],
)
def test_an_object_or_list_that_was_not_cached_raises_an_error(
    cache: ObjectCache, lookup: Callable[[ObjectCache], object]
) -> None:
    with pytest.raises(NoCacheEntryError):
        lookup(cache)
    with pytest.raises(InvalidInputError):
        cache.get(SECRET, "default", "")


def test_uncache_removes_only_the_given_entry(cache: ObjectCache) -> None:
    cache.cache_object(SECRET, "default", "two", TWO)
    cache.cache_list(SECRET, "default", GOLD, [ONE])
    for _ in range(2):
        cache.uncache_object(SECRET, "default", "one")
        with pytest.raises(NoCacheEntryError):
            cache.get(SECRET, "default", "one")
    assert cache.get(SECRET, "default", "two") == TWO
    assert cache.list(SECRET, "default", GOLD) == [ONE]
    cache.uncache_list(SECRET, "default", GOLD)
    with pytest.raises(NoCacheEntryError):
        cache.list(SECRET, "default", GOLD)
    cache.uncache_from_object_identifier(
        ObjectIdentifier(version="v1", kind="Secret", namespace="default", name="two")
    )
    with pytest.raises(NoCacheEntryError):
        cache.get(SECRET, "default", "two")


def test_cached_and_returned_objects_are_copies(cache: ObjectCache) -> None:
    mine: dict[str, object] = {"data": {"a": "1"}}
    cache.cache_object(SECRET, "default", "one", mine)
    for given in (mine, cache.get(SECRET, "default", "one")):
        assert given == {"data": {"a": "1"}}
        given["data"]["a"] = "spoilt"  # type: ignore[index]
        assert cache.get(SECRET, "default", "one") == {"data": {"a": "1"}}


async def test_clear_removes_objects_and_kinds() -> None:
    cluster = MemoryStores().kube
    cache = ObjectCache(cluster)
    cache.cache_object(SECRET, "default", "one", ONE)
    await cache.gvk_to_gvr(SECRET)
    cache.clear()
    with pytest.raises(NoCacheEntryError):
        cache.get(SECRET, "default", "one")
    await cache.gvk_to_gvr(SECRET)
    assert cluster.kinds.lookups == 2


POLICY = GroupVersionKind("x.io", "v1", "Policy")


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryStores().kube


async def test_a_kind_maps_to_a_resource_and_its_scope(cluster: MemoryCluster) -> None:
    cache = ObjectCache(cluster)
    assert await cache.gvk_to_gvr(POLICY) == ScopedGVR("x.io", "v1", "policies", namespaced=True)
    node = await cache.gvk_to_gvr(GroupVersionKind("", "v1", "Node"))
    assert node == ScopedGVR("", "v1", "nodes", namespaced=False)


async def test_a_bucket_maps_to_a_resource_of_its_name() -> None:
    result = await ObjectCache().gvk_to_gvr(kv_kind("limits"))
    assert result == ScopedGVR("nats", "kv", "limits", namespaced=True)


async def test_a_mapping_is_cached_for_ten_minutes(cluster: MemoryCluster) -> None:
    cache = ObjectCache(cluster)
    await cache.gvk_to_gvr(POLICY)
    cluster.kinds.define("x.io/v1", "Policy", MemoryResource("politika"))
    await asyncio.sleep(599)
    assert (await cache.gvk_to_gvr(POLICY)).resource == "policies"
    await asyncio.sleep(2)
    assert (await cache.gvk_to_gvr(POLICY)).resource == "politika"
    assert cluster.kinds.lookups == 2


async def test_a_missing_kind_is_looked_up_each_time(cluster: MemoryCluster) -> None:
    cache = ObjectCache(cluster)
    cluster.kinds.remove("x.io/v1", "Policy")
    for _ in range(2):
        with pytest.raises(NoVersionedResourceError, match="Policy"):
            await cache.gvk_to_gvr(POLICY)
    assert cluster.kinds.lookups == 2
    cluster.kinds.define("x.io/v1", "Policy", MemoryResource("policies"))
    assert (await cache.gvk_to_gvr(POLICY)).resource == "policies"


DEPLOYMENT = ObjectIdentifier(
    group="apps", version="v1", kind="Deployment", namespace="shop", name="web"
)
SELECTED = ObjectIdentifier(version="v1", kind="Secret", selector="a=b,c in (d,e)")
EVERY_SECRET = ObjectIdentifier(version="v1", kind="Secret", everything=True)
LIMIT = ObjectIdentifier(group="nats", version="kv", kind="limits", namespace="eu", name="west")


def test_an_identifier_and_a_kind_have_a_readable_text() -> None:
    assert str(DEPLOYMENT) == "apps/v1, Kind=Deployment, Namespace=shop, Name=web, Selector="
    assert str(SELECTED) == "/v1, Kind=Secret, Namespace=, Name=, Selector=a=b,c in (d,e)"
    deployments, secrets = DEPLOYMENT.group_version_kind(), SELECTED.group_version_kind()
    assert deployments == GroupVersionKind("apps", "v1", "Deployment")
    assert LIMIT.group_version_kind() == kv_kind("limits")
    assert (deployments.api_version, str(deployments)) == ("apps/v1", "apps/v1, Kind=Deployment")
    assert (secrets.api_version, str(secrets)) == ("v1", "/v1, Kind=Secret")


@pytest.mark.parametrize(
    ("identifier", "key"),
    [
        (DEPLOYMENT, "shop/web"),
        (ObjectIdentifier(version="v1", kind="Node", name="n1"), "n1"),
        (LIMIT, "eu.west"),
        (ObjectIdentifier(group="nats", version="kv", kind="limits", name="eu.west"), "eu.west"),
        (SELECTED, ""),
    ],
    ids=str,
)
def test_the_key_has_the_form_of_its_store(identifier: ObjectIdentifier, key: str) -> None:
    assert identifier.key == key


@pytest.mark.parametrize("identifier", [DEPLOYMENT, SELECTED, LIMIT, EVERY_SECRET], ids=str)
def test_an_identifier_that_selects_objects_is_valid(identifier: ObjectIdentifier) -> None:
    identifier.validate()


@pytest.mark.parametrize(
    "identifier",
    [
        ObjectIdentifier(),
        ObjectIdentifier(version="v1", name="x"),
        ObjectIdentifier(kind="Secret", name="x"),
        ObjectIdentifier(version="v1", kind="Secret"),
        ObjectIdentifier(version="v1", kind="Secret", namespace="shop"),
        ObjectIdentifier(version="v1", kind="Secret", name="x", selector="a=b"),
        ObjectIdentifier(version="v1", kind="Secret", name="x", everything=True),
        ObjectIdentifier(version="v1", kind="Secret", selector="a=b", everything=True),
        ObjectIdentifier(version="v1", kind="Secret", selector="a in"),
    ],
    ids=str,
)
def test_an_identifier_that_selects_nothing_is_refused(identifier: ObjectIdentifier) -> None:
    with pytest.raises(InvalidInputError):
        identifier.validate()


def test_equal_identifiers_have_equal_hashes_and_are_ordered() -> None:
    equal_identifier = ObjectIdentifier(
        group="apps", version="v1", kind="Deployment", namespace="shop", name="web"
    )
    assert {DEPLOYMENT, equal_identifier} == {DEPLOYMENT}
    assert min([DEPLOYMENT, SELECTED]) == SELECTED
