"""Events of a resource, and the store that shows its cached objects."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from natsctl import KubeMetadata, KubeObject, UsageError, kube, kv
from natsctl.resource import Key, Resource, ResourceStore
from natsctl.testing import MemoryStores
from tests.support.controllers.resource_subscribers import (
    ResourceHarness,
    handled,
    resource_harness,
    synced,
)
from tests.support.stores.sample_objects import thing


class TestKey:
    def test_a_key_is_a_string(self) -> None:
        assert {Key("shop"): 1}["shop"] == 1  # type: ignore[index]
        assert f"{Key('team/shop')}" == "team/shop"

    @pytest.mark.parametrize(
        ("key", "namespace", "name"),
        [
            ("team/shop", "team", "shop"),
            ("shop", "", "shop"),
            ("team.shop", "", "team.shop"),
            ("", "", ""),
        ],
    )
    def test_a_key_has_a_namespace_and_a_name(self, key: str, namespace: str, name: str) -> None:
        assert (Key(key).namespace, Key(key).name) == (namespace, name)


async def test_an_event_has_an_object_unless_it_is_a_sync_and_is_done_once() -> None:
    async with resource_harness("team/shop") as harness, harness.resource.events() as events:
        event = await anext(events)
        without = await anext(events)
        assert event.object.spec.text == "hi"
        assert (repr(event), repr(without)) == ("<upsert team/shop>", "<sync>")
        with pytest.raises(UsageError, match="a sync event has no object"):
            assert without.object
        event.done()
        with pytest.raises(UsageError, match="<upsert team/shop> is already marked done"):
            event.done()
        without.done()


async def test_an_exception_that_is_no_error_returns_the_event_to_its_queue() -> None:
    async with resource_harness("team/shop") as harness, harness.resource.events() as events:
        interrupted = await anext(events)
        with pytest.raises(KeyboardInterrupt):
            async with interrupted:
                raise KeyboardInterrupt
        assert await handled(events, 1) == [("upsert", "team/shop", "hi")]
        assert await synced(events) == [("sync", "", "")]


class ConfigMap(KubeObject, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


@pytest.fixture
async def harness() -> AsyncIterator[ResourceHarness]:
    async with resource_harness("b", "a") as harness:
        yield harness


async def test_the_store_has_the_newest_objects(harness: ResourceHarness) -> None:
    store = await harness.resource.store()
    assert [obj.spec.text for obj in store.list()] == ["hi", "hi"]
    assert sorted(store.iter_keys()) == ["a", "b"]
    await harness.put("a", "new")
    await harness.delete("b")
    await asyncio.sleep(1)
    obj = store.get_by_key("a")
    assert obj is not None
    assert (obj.spec.text, store.get_by_key("b"), len(store)) == ("new", None, 1)


async def test_changes_to_a_returned_object_are_not_shared() -> None:
    stores = MemoryStores()
    kind = kv(dict, bucket="plain")
    await stores.store(kind).create("a", b'{"items": []}')
    async with Resource(kind, stores) as resource:
        store = await resource.store()
        for obj in (*store.list(), store.get_by_key("a")):
            assert obj == {"items": []}
            obj["items"].append(1)


async def test_get_is_refused_for_objects_that_do_not_contain_their_key(
    harness: ResourceHarness,
) -> None:
    store = await harness.resource.store()
    with pytest.raises(UsageError, match=r"Thing\.things do not contain their key: use get_by_key"):
        store.get(thing("hi"))


@pytest.mark.parametrize(
    ("namespace", "key"), [("team", "team/shop"), ("", "shop")], ids=["namespaced", "cluster"]
)
async def test_get_finds_a_kubernetes_object_by_its_metadata(namespace: str, key: str) -> None:
    stores = MemoryStores()
    configs = kube("v1", "ConfigMap", type=ConfigMap)
    documents = kube("v1", "ConfigMap")
    metadata = {"name": "shop", "namespace": namespace}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}
    await stores.store(configs).create(key, json.dumps(manifest).encode())
    async with Resource(configs, stores) as typed, Resource(documents, stores) as untyped:
        old = ConfigMap(metadata=KubeMetadata(name="shop", namespace=namespace))
        obj = (await typed.store()).get(old)
        assert obj is not None
        assert obj.data == {"a": "1"}
        store: ResourceStore[dict[str, object]] = await untyped.store()
        assert store.get({"metadata": metadata}) == manifest
        assert store.get({"metadata": {**metadata, "name": "other"}}) is None
