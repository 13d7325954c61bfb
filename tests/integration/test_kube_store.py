"""The store of a real cluster: its keys, requests, lost responses and errors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from natsctl import KubeKind, KubeOptions, connect_kube, kube
from natsctl.errors import (
    ConflictError,
    InvalidKeyError,
    InvalidObjectError,
    NotFoundError,
    StoreMissingError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.kubernetes.cluster import Kube
from natsctl.kubernetes.store import KubeStore
from natsctl.kubernetes.transport import Reply
from natsctl.kubernetes.watch import Incarnation
from natsctl.model.documents import Document, metadata_of, parse
from natsctl.model.store import Stored
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_proxy import through_proxy
from tests.support.stores.custom_resources import WatchedWire, cluster

OURS = "natsctl/apps"


def config(namespace: str, name: str = "shop", text: str = "hi", **metadata: Any) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name, **metadata},
        "data": {"text": text},
    }


def value(text: str) -> bytes:
    return msgspec.json.encode({"data": {"text": text}})


def uid(stored: Stored) -> str:
    return str(metadata_of(parse(stored.value))["uid"])


def data(stored: Stored) -> object:
    return parse(stored.value)["data"]


@pytest.fixture
async def stores(kube_server: KubeServer) -> AsyncIterator[Kube]:
    async with cluster(kube_server) as stores:
        yield stores


@pytest.fixture
async def store(stores: Kube) -> KubeStore:
    return await stores.open(kube("v1", "ConfigMap"))


@pytest.fixture
def wire(stores: Kube) -> WatchedWire:
    return WatchedWire(stores.transport)


def opened(stores: Kube, wire: Any, kind: KubeKind[Any] | None = None) -> KubeStore:
    """Return a store that sends its requests through *wire*."""
    kind = kind or kube("v1", "ConfigMap")
    return KubeStore(wire, stores.discovery, kind, Incarnation("here"))


async def test_a_key_has_the_namespace_and_the_name_of_the_object(
    stores: Kube, kube_namespace: str
) -> None:
    """A kind that declares a namespace has only its keys, and locates manifests there."""
    key = f"{kube_namespace}/shop"
    store = await stores.open(kube("v1", "ConfigMap", namespace=kube_namespace))
    created = await store.create(key, value("hi"))
    assert created.key == key
    assert (await store.get(key)).key == key
    assert metadata_of(parse(created.value))["namespace"] == kube_namespace
    for call in (
        store.get("default/shop"),
        store.create("default/shop", value("hi")),
        store.delete("default/shop"),
        store.history("default/shop"),
        store.patch_status("default/shop", {}),
    ):
        with pytest.raises(InvalidKeyError, match=kube_namespace):
            await call
    assert await store.locate({"metadata": {"name": "shop"}}) == key
    for wrong in ({"name": "shop", "namespace": "other"}, {"namespace": kube_namespace}, {}):
        with pytest.raises(InvalidObjectError):
            await store.locate({"metadata": wrong})
    cluster_scoped = await stores.open(kube("v1", "Namespace", namespace="default"))
    with pytest.raises(UsageError, match="cluster-scoped"):
        await cluster_scoped.get("default/shop")


async def test_what_is_missing_or_invalid_is_named(
    stores: Kube, store: KubeStore, kube_namespace: str
) -> None:
    with pytest.raises(StoreMissingError, match="ConfigMap"):
        await (await stores.open(kube("v1", "ConfigMop"))).get("default/shop")
    with pytest.raises(StoreMissingError, match="nowhere"):
        await store.create("nowhere/shop", value("hi"))
    with pytest.raises(StoreMissingError, match="nowhere"):
        await store.apply(config("nowhere"), manager=OURS, uid="")
    wrong = {**config(kube_namespace), "data": {"a b": "c"}}
    with pytest.raises(InvalidObjectError, match="a b"):
        await store.apply(wrong, manager=OURS, uid="")


class TestRequests:
    async def test_an_apply_is_one_request(
        self, stores: Kube, wire: WatchedWire, kube_namespace: str
    ) -> None:
        store = opened(stores, wire)
        created = await store.apply(config(kube_namespace), manager=OURS, uid="")
        assert data(created) == {"text": "hi"}
        changed = config(kube_namespace, text="ho")
        await store.apply(changed, manager=OURS, uid=uid(created))
        assert [method for method, _ in wire.requests] == ["PATCH"] * 2

    async def test_an_apply_manages_only_the_applied_fields(
        self, store: KubeStore, kube_server: KubeServer, kube_namespace: str
    ) -> None:
        await store.apply(config(kube_namespace), manager=OURS, uid="")
        path = f"/api/v1/namespaces/{kube_namespace}/configmaps/shop"
        stored_object = await kube_server.call("GET", path)
        [entry] = stored_object["metadata"]["managedFields"]
        assert (entry["manager"], entry["operation"]) == (OURS, "Apply")
        assert entry["fieldsV1"] == {"f:data": {"f:text": {}}}

    async def test_a_deletion_uses_the_declared_propagation(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        for propagation, finalizer in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
            kind = kube("v1", "ConfigMap", propagation=propagation)  # type: ignore[arg-type]
            store = await stores.open(kind)
            wanted = config(kube_namespace, propagation.lower())
            created = await store.apply(wanted, manager=OURS, uid="")
            await store.delete(created.key, revision=created.revision)
            left = kind.metadata((await store.get(created.key)).value)
            assert left.finalizers == (finalizer,)

    async def test_a_deletion_without_a_revision_retries_after_concurrent_writes(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        class Busy(WatchedWire):
            writes = 3

            async def call(self, method: str, path: str, **options: Any) -> Reply:
                if method == "DELETE" and self.writes:
                    self.writes -= 1
                    changed = config(kube_namespace, text=str(self.writes))
                    await other_store.apply(changed, manager=OURS, uid=uid(created))
                return await super().call(method, path, **options)

        other_store = opened(stores, stores.transport)
        created = await other_store.apply(config(kube_namespace), manager=OURS, uid="")
        store = opened(stores, Busy(stores.transport))
        assert await store.delete(created.key) > created.revision
        with pytest.raises(NotFoundError):
            await store.get(created.key)

    async def test_an_update_never_creates_even_if_the_server_would(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        store = await stores.open(kube("coordination.k8s.io/v1", "Lease"))
        created = await store.create(f"{kube_namespace}/turn", b'{"spec": {}}')
        read = await store.get(created.key)
        await store.delete(created.key)
        for value in (read.value, b'{"spec": {}}'):  # with and without its uid
            with pytest.raises(ConflictError):
                await store.update(created.key, value, revision=read.revision)
            with pytest.raises(NotFoundError):
                await store.get(created.key)

    async def test_an_update_of_a_metadata_only_kind_is_refused(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        store = await stores.open(kube("v1", "ConfigMap", metadata_only=True))
        created = await store.apply(config(kube_namespace), manager=OURS, uid="")
        assert "data" not in parse(created.value)
        read = await store.get(created.key)
        assert read == created
        with pytest.raises(UsageError, match="only its metadata"):
            await store.update(created.key, read.value, revision=read.revision)


class TestLostResponses:
    async def test_a_write_that_took_effect_is_returned(
        self, stores: Kube, wire: WatchedWire, kube_namespace: str
    ) -> None:
        store = opened(stores, wire)
        wire.lose = {"POST", "PUT", "PATCH", "DELETE"}
        created = await store.create(f"{kube_namespace}/made", value("hi"))
        assert await store.get(created.key) == created
        updated = await store.update(created.key, value("ho"), revision=created.revision)
        assert data(updated) == {"text": "ho"}
        assert await store.get(created.key) == updated
        applied = await store.apply(config(kube_namespace), manager=OURS, uid="")
        assert await store.get(applied.key) == applied
        assert await store.delete(created.key, revision=updated.revision) == updated.revision
        with pytest.raises(NotFoundError):
            await store.get(created.key)
        assert wire.lose == set()

    async def test_a_write_without_effect_has_an_unknown_outcome(
        self, stores: Kube, kube_namespace: str
    ) -> None:
        class Silent(WatchedWire):
            async def call(self, method: str, path: str, **options: Any) -> Reply:
                if method != "GET":
                    raise StoreTimeoutError("no answer")
                return await super().call(method, path, **options)

        there = await opened(stores, stores.transport).create(
            f"{kube_namespace}/there", value("hi")
        )
        store = opened(stores, Silent(stores.transport))
        for write in (
            store.create(f"{kube_namespace}/shop", value("hi")),
            store.apply(config(kube_namespace), manager=OURS, uid=""),
            store.update(there.key, value("ho"), revision=there.revision),
            store.delete(there.key, revision=there.revision),
        ):
            with pytest.raises(StoreTimeoutError):
                await write


async def test_connect_waits_for_a_server_that_starts_later(
    kube_server: KubeServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with through_proxy(kube_server) as (proxy, kubeconfig), asyncio.TaskGroup() as group:
        proxy.cut()

        async def connected() -> None:
            options = KubeOptions(kubeconfig=str(kubeconfig), timeout_s=5.0)
            async with connect_kube(options, wait=True):
                pass

        group.create_task(connected())
        await eventually(lambda: "cannot reach Kubernetes yet" in caplog.text)
        await proxy.heal()
