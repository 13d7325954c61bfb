"""Mapping of kinds to API resources, and how long a mapping is cached."""

import asyncio

import pytest

from natsctl.dynamic import GroupVersionKind, ObjectCache, ScopedGVR, kv_kind
from natsctl.errors import NoVersionedResourceError
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


async def test_a_missing_kind_is_looked_up_each_time(cluster: MemoryCluster) -> None:
    cache = ObjectCache(cluster)
    cluster.kinds.remove("x.io/v1", "Policy")
    for _ in range(2):
        with pytest.raises(NoVersionedResourceError, match="Policy"):
            await cache.gvk_to_gvr(POLICY)
    assert cluster.kinds.lookups == 2
    cluster.kinds.define("x.io/v1", "Policy", MemoryResource("policies"))
    assert (await cache.gvk_to_gvr(POLICY)).resource == "policies"
