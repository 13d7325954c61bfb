"""Mapping of kinds to API resources, and how long a mapping is cached."""

import asyncio

import pytest

from natsctl.dynamic import GroupVersionKind, ObjectCache, ObjectCacheOptions, ScopedGVR, kv_kind
from natsctl.errors import NoVersionedResourceError, StoreError
from natsctl.testing import MemoryCluster, MemoryResource, MemoryStores

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


async def test_the_time_to_live_of_a_mapping_is_an_option(cluster: MemoryCluster) -> None:
    cache = ObjectCache(cluster, options=ObjectCacheOptions(gvk_to_gvr_cache_ttl_s=5))
    await cache.gvk_to_gvr(POLICY)
    await asyncio.sleep(6)
    await cache.gvk_to_gvr(POLICY)
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


async def test_the_time_to_live_of_a_missing_kind_is_an_option(cluster: MemoryCluster) -> None:
    options = ObjectCacheOptions(missing_api_resource_cache_ttl_s=30)
    cache = ObjectCache(cluster, options=options)
    cluster.kinds.remove("x.io/v1", "Policy")
    for _ in range(2):
        with pytest.raises(NoVersionedResourceError):
            await cache.gvk_to_gvr(POLICY)
    assert cluster.kinds.lookups == 1
    cluster.kinds.define("x.io/v1", "Policy", MemoryResource("policies"))
    await asyncio.sleep(31)
    assert (await cache.gvk_to_gvr(POLICY)).resource == "policies"


async def test_concurrent_lookups_share_one_request(cluster: MemoryCluster) -> None:
    cache = ObjectCache(cluster)
    result = await asyncio.gather(*(cache.gvk_to_gvr(POLICY) for _ in range(20)))
    assert len(set(map(id, result))) == 1
    assert cluster.kinds.lookups == 1


async def test_a_failed_lookup_is_not_cached_as_a_missing_kind() -> None:
    class FailingCluster:
        def __init__(self) -> None:
            self.error: StoreError | None = StoreError("away")

        async def resource(self, _api_version: str, _kind: str) -> MemoryResource:
            if self.error is not None:
                raise self.error
            return MemoryResource("policies")

    failing = FailingCluster()
    cache = ObjectCache(failing, options=ObjectCacheOptions(missing_api_resource_cache_ttl_s=600))
    with pytest.raises(StoreError, match="away"):
        await cache.gvk_to_gvr(POLICY)
    failing.error = None
    assert (await cache.gvk_to_gvr(POLICY)).resource == "policies"
