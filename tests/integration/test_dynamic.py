"""Dynamic watches of real buckets and clusters survive faults, and leave nothing behind."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

import natsctl
from natsctl import Selector, kube, kv
from natsctl.dynamic import DynamicOptions, DynamicWatcher, ObjectIdentifier, kv_kind
from natsctl.errors import (
    InvalidInputError,
    NoVersionedResourceError,
    PermissionDeniedError,
    StoreError,
    StoreMissingError,
)
from natsctl.model.store import Store
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.nats_server import NatsServer
from tests.support.stores.custom_resources import cluster, define
from tests.support.stores.documents import put

QUIET = DynamicOptions(enable_cache=True, disable_initial_reconcile=True, list_timeout_s=240)
LIMITS = kv_kind("limits")
KIND = kv(bytes, bucket="limits", history=1)
OPEN = "authorization { timeout: 60, user: u, password: p }"
CLOSED = """authorization { timeout: 60, users: [ { user: u, password: p, permissions: {
    publish: { deny: ["$JS.API.CONSUMER.CREATE.KV_limits.>"] } } } ] }"""


def watcher_named(name: str) -> ObjectIdentifier:
    return ObjectIdentifier(version="v1", kind="Pod", namespace="default", name=name)


class WatcherBed:
    """A running dynamic watcher."""

    def __init__(self, **systems: Any) -> None:
        self.calls: Counter[str] = Counter()
        self.reconcile: Callable[[ObjectIdentifier], Awaitable[None]] | None = None
        self.watcher = DynamicWatcher(self._reconcile, options=QUIET, **systems)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        work = asyncio.create_task(self.watcher.start())
        await self.watcher.started.wait()
        try:
            yield
        finally:
            self.watcher.stop()
            await work

    async def called(self, *names: str) -> None:
        """Wait until the reconciler was called for these names, and check that no other was."""
        await eventually(lambda: self.calls.keys() >= set(names))
        assert self.calls.keys() == set(names)
        self.calls.clear()

    async def _reconcile(self, watcher: ObjectIdentifier) -> float | None:
        self.calls[watcher.name] += 1
        if self.reconcile is not None:
            await self.reconcile(watcher)
        return None


# ---- buckets


def kept_in(bucket: str, key: str) -> ObjectIdentifier:
    return ObjectIdentifier(group="nats", version="kv", kind=bucket, name=key)


class BucketBed(WatcherBed):
    """Watches the bucket `limits`."""

    def __init__(self, nats: Nats) -> None:
        super().__init__(nats=nats)
        self.nats = nats

    async def put(self, key: str, value_max: int = 1, **labels: str) -> None:
        store = await self.nats.open(KIND)
        await put(store, key, {"metadata": {"labels": labels}, "spec": {"most": value_max}})

    async def counted(self, count: int) -> None:
        """Check the watch count of the watcher, and wait until the server has as many consumers."""
        assert self.watcher.get_watch_count() == count

        async def has_consumers() -> bool:
            assert await self.consumers() == count
            return True

        await eventually(has_consumers)

    async def consumers(self) -> int:
        info = await self.nats.connection.api("STREAM.INFO.KV_limits")
        return int(info["state"]["consumer_count"])

    async def reconnected(self) -> None:
        """Wait until the server responds to requests again."""

        async def responds() -> bool:
            try:
                return await self.consumers() >= 0
            except StoreError:
                return False

        await eventually(responds)


@asynccontextmanager
async def watching(server: NatsServer, *, url: str = "") -> AsyncIterator[BucketBed]:
    """Run a dynamic watcher, and check at the end that it leaves no consumer."""
    async with natsctl.connect(url or server.url) as nats:
        await nats.open(KIND)
        bed = BucketBed(nats)
        async with bed.running():
            yield bed
        await bed.counted(0)


async def test_a_bucket_with_any_options_is_watched(nats_server: NatsServer) -> None:
    async with watching(nats_server) as bed:
        await bed.nats.open(kv(bytes, bucket="odd", history=17, ttl_s=999, storage="memory"))
        await bed.watcher.add_watcher(watcher_named("a"), kept_in("odd", "x"))
        assert bed.watcher.get_watch_count() == 1
        with pytest.raises(StoreMissingError, match="missing"):
            await bed.watcher.add_watcher(watcher_named("a"), kept_in("missing", "x"))
        assert bed.watcher.get_watch_count() == 1
        await bed.watcher.remove_watcher(watcher_named("a"))


async def test_a_restart_of_the_server_loses_no_change(nats_server: NatsServer) -> None:
    kind = kv(bytes, bucket="kept")
    async with watching(nats_server) as bed:
        store = await bed.nats.open(kind)
        names = [f"k{number}" for number in range(30)]
        for name in names:
            await store.create(name, b'{"spec": 1}')
            await bed.watcher.add_watcher(watcher_named(name), kept_in("kept", name))
        nats_server.kill()
        await asyncio.sleep(0.2)
        await nats_server.start()
        async with natsctl.connect(nats_server.url) as second_client:
            second_store = await second_client.open(kind)
            for name in names[:10]:
                await second_store.update(
                    name, b'{"spec": 2}', revision=(await second_store.get(name)).revision
                )
            for name in names[10:15]:
                await second_store.delete(name)
        await bed.called(*names[:15])
        for name in names:
            await bed.watcher.remove_watcher(watcher_named(name))
        assert bed.watcher.get_watch_count() == 0


async def test_a_revoked_permission_ends_the_watch_until_it_is_granted_again(
    nats_server: NatsServer,
) -> None:
    await nats_server.stop()
    nats_server.config = OPEN
    await nats_server.start()
    url = nats_server.url.replace("nats://", "nats://u:p@")
    seen: list[object] = []
    async with watching(nats_server, url=url) as bed:

        async def reconcile(watcher: ObjectIdentifier) -> None:
            async with bed.watcher.query_batch(watcher):
                try:
                    limit_object = await bed.watcher.get(watcher, LIMITS, "", "eu")
                except PermissionDeniedError:
                    seen.append("denied")
                    raise
                seen.append(None if limit_object is None else limit_object["spec"]["most"])  # type: ignore[index]

        bed.reconcile = reconcile
        await bed.watcher.add_watcher(watcher_named("a"), kept_in("limits", "eu"))
        await bed.put("eu", 1)
        await eventually(lambda: seen[-1:] == [1])
        await restart(nats_server, CLOSED)
        await eventually(lambda: "denied" in seen)
        await eventually(lambda: bed.watcher.get_watch_count() == 0)
        await restart(nats_server, OPEN)
        await bed.reconnected()
        await bed.put("eu", 2)
        await eventually(lambda: seen[-1] == 2)
        await bed.counted(1)


async def restart(server: NatsServer, config: str) -> None:
    """Restart the server with other permissions."""
    server.kill()
    server.config = config
    await server.start()


async def test_a_batch_that_reads_fewer_objects_stops_the_right_watches(
    nats_server: NatsServer,
) -> None:
    async with watching(nats_server) as bed:
        for number in range(40):
            await bed.put(f"s{number}", number, g=str(number % 2))

        async def read(name: str, numbers: range) -> list[int]:
            watcher_id = watcher_named(name)
            async with bed.watcher.query_batch(watcher_id):
                documents = await asyncio.gather(
                    *(bed.watcher.get(watcher_id, LIMITS, "", f"s{number}") for number in numbers)
                )
                odd = await bed.watcher.list(watcher_id, LIMITS, "", Selector.parse("g=1"))
            assert len(odd) == 20
            return [document["spec"]["most"] for document in documents if document is not None]  # type: ignore[index]

        assert await read("a", range(30)) == [*range(30)]
        assert await read("b", range(20, 40)) == [*range(20, 40)]
        await bed.counted(41)
        assert await read("a", range(5)) == [*range(5)]
        await bed.counted(26)
        await bed.put("s10", 10, g="0")
        await bed.put("s2", 2, g="0")
        await bed.called("a")


# ---- clusters


class ClusterBed(WatcherBed):
    """Watches ConfigMaps of a namespace. They're written as the admin."""

    def __init__(self, guest: Any, store: Store, namespace: str) -> None:
        super().__init__(kube=guest)
        self.namespace = namespace
        self._store = store

    def config(self, name: str) -> ObjectIdentifier:
        return ObjectIdentifier(version="v1", kind="ConfigMap", namespace=self.namespace, name=name)

    async def put(self, name: str) -> None:
        await put(self._store, f"{self.namespace}/{name}", {"data": {"text": "hi"}})


@asynccontextmanager
async def watching_cluster(
    server: KubeServer, namespace: str, *, user: str = "admin"
) -> AsyncIterator[ClusterBed]:
    """Run a dynamic watcher as this user."""
    async with cluster(server) as admin, cluster(server, user=user) as guest:
        bed = ClusterBed(guest, await admin.open(kube("v1", "ConfigMap")), namespace)
        async with bed.running():
            yield bed


async def test_one_object_is_watched_with_permission_for_this_object_only(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
    rule["resourceNames"] = ["one"]
    await asyncio.to_thread(kube_server.allow, "guest", [rule], namespace=kube_namespace)
    async with watching_cluster(kube_server, kube_namespace, user="guest") as bed:

        async def is_allowed() -> bool:
            try:
                await bed.watcher.add_watcher(watcher_named("a"), bed.config("one"))
            except PermissionDeniedError:
                return False
            return True

        await eventually(is_allowed)
        with pytest.raises(PermissionDeniedError):
            await bed.watcher.add_watcher(watcher_named("a"), bed.config("two"))
        await bed.put("two")
        await bed.put("one")
        await bed.called("a")
        assert bed.watcher.get_watch_count() == 1


async def test_a_deleted_kind_ends_its_watch_and_calls_its_watchers(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    async with watching_cluster(kube_server, kube_namespace) as bed, cluster(kube_server) as admin:
        node = ObjectIdentifier(version="v1", kind="Node", namespace="passed-over", name="n1")
        await bed.watcher.add_watcher(watcher_named("a"), node)
        with pytest.raises(InvalidInputError, match="namespace"):
            await bed.watcher.add_watcher(
                watcher_named("a"), ObjectIdentifier(version="v1", kind="ConfigMap", name="x")
            )
        gadget = ObjectIdentifier(group="dynamic.test", version="v1", kind="Gadget", name="g")
        with pytest.raises(NoVersionedResourceError):
            await bed.watcher.add_watcher(watcher_named("a"), gadget)
        await define(admin.transport, "dynamic.test", "Gadget")
        await bed.watcher.add_watcher(watcher_named("a"), gadget)
        served = await bed.watcher.gvk_to_gvr(gadget.group_version_kind())
        assert (served.resource, served.namespaced) == ("gadgets", False)
        store = await admin.open(kube("dynamic.test/v1", "Gadget"))
        await store.create("g", b'{"spec": {}}')
        await bed.called("a")
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await kube_server.call("DELETE", f"{definitions}/gadgets.dynamic.test")
        await eventually(lambda: bed.watcher.get_watch_count() == 1)
        await bed.called("a")


async def test_a_kind_without_watch_is_an_error_and_leaves_no_watch(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    async with watching_cluster(kube_server, kube_namespace) as bed:
        review = ObjectIdentifier(
            group="authorization.k8s.io", version="v1", kind="SelfSubjectAccessReview", name="x"
        )
        with pytest.raises(StoreError, match="selfsubjectaccessreviews"):
            await bed.watcher.add_or_update_watcher(watcher_named("a"), bed.config("one"), review)
        assert bed.watcher.get_watch_count() == 0
