"""Dynamic watches of a real cluster survive restarts and changed permissions."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from natsctl import (
    kube,
)
from natsctl.dynamic import DynamicOptions, DynamicWatcher, GroupVersionKind, ObjectIdentifier
from natsctl.errors import (
    InvalidInputError,
    NoVersionedResourceError,
    PermissionDeniedError,
    StoreError,
)
from natsctl.model.store import Store
from tests.support.eventually import eventually
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.stores.custom_resources import cluster, define
from tests.support.stores.documents import put

CONFIG = GroupVersionKind("", "v1", "ConfigMap")
CONFIGS = kube("v1", "ConfigMap")
QUIET = DynamicOptions(enable_cache=True, disable_initial_reconcile=True, list_timeout_s=240)
READ = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}


def watcher_named(name: str) -> ObjectIdentifier:
    return ObjectIdentifier(version="v1", kind="Pod", namespace="default", name=name)


class WatcherBed:
    """A running dynamic watcher in its own namespace."""

    def __init__(
        self,
        kube: Any,
        store: Store,
        namespace: str,
        options: DynamicOptions,
        *,
        kind: str = "ConfigMap",
    ) -> None:
        self.calls: Counter[str] = Counter()
        self.reconcile: Callable[[ObjectIdentifier], Awaitable[None]] | None = None
        self.watcher = DynamicWatcher(self._reconcile, kube=kube, options=options)
        self.namespace = namespace
        self.kind = kind
        self._store = store

    def config(self, name: str = "", selector: str = "") -> ObjectIdentifier:
        return ObjectIdentifier(
            version="v1",
            kind=self.kind,
            namespace=self.namespace,
            name=name,
            selector=selector,
            everything=not (name or selector),
        )

    async def put(self, name: str, text: str = "hi", **labels: str) -> None:
        """Write an object with this text, which only a ConfigMap keeps, and these labels."""
        key = f"{self.namespace}/{name}"
        await put(self._store, key, {"metadata": {"labels": labels}, "data": {"text": text}})

    async def delete(self, name: str) -> None:
        await self._store.delete(f"{self.namespace}/{name}")

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


@asynccontextmanager
async def watching(
    server: KubeServer,
    namespace: str,
    *,
    user: str = "admin",
    options: DynamicOptions = QUIET,
    **options_of_kube: Any,
) -> AsyncIterator[WatcherBed]:
    """Run a dynamic watcher as this user. Objects are written as the admin."""
    async with cluster(server) as admin, cluster(server, user=user, **options_of_kube) as guest:
        bed = WatcherBed(guest, await admin.open(CONFIGS), namespace, options)
        work = asyncio.create_task(bed.watcher.start())
        await bed.watcher.started.wait()
        try:
            yield bed
        finally:
            bed.watcher.stop()
            await work


async def test_a_watcher_is_called_for_its_objects_and_selections(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    async with watching(kube_server, kube_namespace) as bed:
        watcher = bed.watcher
        await bed.put("one", "1")
        await watcher.add_or_update_watcher(
            watcher_named("a"), bed.config("one"), bed.config("", "g=1")
        )
        await watcher.add_watcher(watcher_named("b"), bed.config("one"))
        await watcher.add_watcher(watcher_named("c"), bed.config("two"))
        await bed.put("one", "2")
        await bed.called("a", "b")
        await bed.put("three", g="1")
        await bed.called("a")
        await bed.put("three", "2")
        await bed.called("a")
        await bed.put("two")
        await bed.called("c")
        await bed.delete("one")
        await bed.called("a", "b")
        await bed.put("one", "3")
        await bed.called("a", "b")
        config_map = watcher.get_from_cache(CONFIG, kube_namespace, "one")
        assert config_map is not None
        assert config_map["data"] == {"text": "3"}
        assert (config_map["kind"], config_map["metadata"]["name"]) == ("ConfigMap", "one")  # type: ignore[index]
        assert watcher.get_watch_count() == 3


async def test_one_object_is_watched_with_permission_for_this_object_only(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    rule = {**READ, "resourceNames": ["one"]}
    await asyncio.to_thread(kube_server.allow, "guest", [rule], namespace=kube_namespace)
    async with watching(kube_server, kube_namespace, user="guest") as bed:

        async def allowed() -> bool:
            try:
                await bed.watcher.add_watcher(watcher_named("a"), bed.config("one"))
            except PermissionDeniedError:
                return False
            return True

        await eventually(allowed)
        with pytest.raises(PermissionDeniedError):
            await bed.watcher.add_watcher(watcher_named("a"), bed.config("two"))
        await bed.put("two")
        await bed.put("one")
        await bed.called("a")
        assert bed.watcher.get_watch_count() == 1


async def test_a_revoked_permission_ends_the_watch_until_it_is_granted_again(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    await asyncio.to_thread(kube_server.allow, "other", [READ], namespace=kube_namespace)
    seen: list[object] = []
    async with watching(kube_server, kube_namespace, user="other", watch_timeout_s=2.0) as bed:

        async def reconcile(watcher: ObjectIdentifier) -> None:
            async with bed.watcher.query_batch(watcher):
                try:
                    config_map = await bed.watcher.get(watcher, CONFIG, kube_namespace, "one")
                except PermissionDeniedError:
                    seen.append("denied")
                    raise
                seen.append(None if config_map is None else config_map["data"]["text"])  # type: ignore[index]

        bed.reconcile = reconcile

        async def allowed() -> bool:
            try:
                await bed.watcher.add_watcher(watcher_named("a"), bed.config("one"))
            except PermissionDeniedError:
                return False
            return True

        await eventually(allowed)
        await bed.put("one", "1")
        await eventually(lambda: seen[-1:] == ["1"])
        await revoke(kube_server, kube_namespace)
        await eventually(lambda: "denied" in seen)
        await eventually(lambda: bed.watcher.get_watch_count() == 0)
        await asyncio.to_thread(kube_server.allow, "other", [READ], namespace=kube_namespace)
        await bed.put("one", "2")
        await eventually(lambda: seen[-1] == "2")
        assert bed.watcher.get_watch_count() == 1


async def revoke(server: KubeServer, namespace: str) -> None:
    """Delete all role bindings of a namespace."""
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
    await server.call("DELETE", bindings)


async def test_a_deleted_kind_ends_its_watch_and_calls_its_watchers(
    kube_server: KubeServer, kube_namespace: str
) -> None:
    async with watching(kube_server, kube_namespace) as bed, cluster(kube_server) as admin:
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
    async with watching(kube_server, kube_namespace) as bed:
        review = ObjectIdentifier(
            group="authorization.k8s.io", version="v1", kind="SelfSubjectAccessReview", name="x"
        )
        with pytest.raises(StoreError, match="selfsubjectaccessreviews"):
            await bed.watcher.add_or_update_watcher(watcher_named("a"), bed.config("one"), review)
        assert bed.watcher.get_watch_count() == 0


async def test_a_restart_of_the_server_loses_no_watch_and_no_change(
    own_kube_server: KubeServer,
) -> None:
    namespace = await asyncio.to_thread(own_kube_server.new_namespace)
    async with watching(own_kube_server, namespace) as bed:
        names = [f"s{number}" for number in range(50)]
        for name in names[:40]:
            await bed.put(name)
        await asyncio.gather(
            *(bed.watcher.add_watcher(watcher_named(name), bed.config(name)) for name in names)
        )
        own_kube_server.kill()
        await asyncio.sleep(0.5)
        await own_kube_server.start()
        for name in names[:5]:
            await bed.put(name, "2")
        for name in names[5:10]:
            await bed.delete(name)
        for name in names[40:45]:
            await bed.put(name)
        await bed.called(*names[:10], *names[40:45])
        assert bed.watcher.get_watch_count() == 50
