"""A resource's store shows its objects as they were last seen."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from natsctl import UsageError, kv
from natsctl.model.manifests import KubeMetadata, KubeObject, kube
from natsctl.resource import Resource, ResourceStore
from natsctl.testing.memory import MemoryStores
from tests.support.controllers.resource_subscribers import Stage, staged
from tests.support.stores.sample_objects import thing


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    async with staged("b", "a") as stage:
        yield stage


async def test_it_lists_objects_and_keys(stage: Stage) -> None:
    store = await stage.resource.store()
    assert [obj.spec.text for obj in store.list()] == ["hi", "hi"]
    assert sorted(store.iter_keys()) == ["a", "b"]
    assert len(store) == 2


async def test_it_gives_an_object_by_its_key(stage: Stage) -> None:
    store = await stage.resource.store()
    found = store.get_by_key("a")
    assert found is not None
    assert found.spec.text == "hi"
    assert store.get_by_key("c") is None


async def test_it_follows_what_changes(stage: Stage) -> None:
    store = await stage.resource.store()
    await stage.put("a", "new")
    await stage.delete("b")
    await asyncio.sleep(1)
    assert [obj.spec.text for obj in store.list()] == ["new"]


async def test_keys_may_change_while_they_are_iterated(stage: Stage) -> None:
    keys = (await stage.resource.store()).iter_keys()
    first = next(keys)
    await stage.delete("a", "b")
    await stage.put("c")
    await asyncio.sleep(1)
    assert sorted([first, *keys]) == ["a", "b"]


async def test_what_a_reader_does_to_an_object_nobody_else_sees() -> None:
    stores = MemoryStores()
    kind = kv(dict, bucket="plain")
    await stores.store(kind).create("a", b'{"items": []}')
    async with Resource(kind, stores) as resource:
        store = await resource.store()
        for found in (*store.list(), store.get_by_key("a")):
            assert found == {"items": []}
            found["items"].append(1)


async def test_an_object_that_does_not_say_its_key_is_not_looked_up(stage: Stage) -> None:
    store = await stage.resource.store()
    with pytest.raises(UsageError, match=r"Thing\.things do not contain their key: use get_by_key"):
        store.get(thing("hi"))


@pytest.mark.parametrize(
    ("namespace", "key"), [("team", "team/shop"), ("", "shop")], ids=["namespaced", "cluster"]
)
async def test_an_object_of_a_cluster_is_looked_up_by_what_it_says(
    namespace: str, key: str
) -> None:
    stores = MemoryStores()
    configs = kube("v1", "ConfigMap", type=ConfigMap)
    documents = kube("v1", "ConfigMap")
    metadata = {"name": "shop", "namespace": namespace}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}
    await stores.store(configs).create(key, json.dumps(manifest).encode())
    async with Resource(configs, stores) as typed, Resource(documents, stores) as untyped:
        old = ConfigMap(metadata=KubeMetadata(name="shop", namespace=namespace))
        found = (await typed.store()).get(old)
        assert found is not None
        assert found.data == {"a": "1"}
        store: ResourceStore[dict[str, object]] = await untyped.store()
        assert store.get({"metadata": metadata}) == manifest
        assert store.get({"metadata": {**metadata, "name": "other"}}) is None
